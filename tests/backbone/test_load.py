"""Model folders that lack something are refused in one sentence."""

import json
import logging
from pathlib import Path

import pytest
import torch

from softprompts.backbone import load_backbone
from softprompts.errors import UserError

from ..models import random_model


@pytest.mark.parametrize("kind", ["t5", "mt5", "bart", "gpt2", "llama", "bert", "roberta"])
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path, kind: str) -> None:
    """transformers makes one up for most kinds, of special tokens and no words."""
    random_model(kind).model.save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=r"tokenizer.*; take a copy of the model with its tokenizer files"
    ):
        load_backbone(str(tmp_path), device="cpu")


def test_a_tokenizer_of_bytes_needs_no_file_of_words(tmp_path: Path) -> None:
    random_model("t5").model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "ByT5Tokenizer"})
    )
    assert load_backbone(str(tmp_path), device="cpu").tokenise(["x"], 10) == [[123, 1]]


def test_an_output_of_its_own_is_kept_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """T5 v1.1 and FLAN-T5: transformers keeps both matrices, and warns that it does, with advice that is not for a user."""
    made = random_model("t5")
    own = torch.randn_like(made.model.shared.weight)
    made.model.lm_head.weight = torch.nn.Parameter(own)
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    logger, before = logging.getLogger("transformers"), caplog.text
    logger.addHandler(caplog.handler)
    try:
        read = load_backbone(str(tmp_path), device="cpu", dtype="fp32").model
    finally:
        logger.removeHandler(caplog.handler)
    assert torch.equal(read.lm_head.weight, own)
    assert not torch.equal(read.shared.weight, own)
    assert caplog.text == before
