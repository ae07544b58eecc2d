"""Clear errors for incomplete model folders, and for models that cannot be backbones."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from softprompts.backbone import load_backbone
from softprompts.backbone.load import resolve_device, resolve_dtype, unsupported_reason
from softprompts.errors import UserError

from ..models import random_model


@pytest.mark.parametrize("kind", ["t5", "mt5", "bart", "gpt2", "llama", "bert", "roberta"])
def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path, kind: str) -> None:
    """For most model types, transformers would make up one without words."""
    random_model(kind).model.save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=r"tokenizer.*; use a copy of the model with its tokenizer files"
    ):
        load_backbone(str(tmp_path), device="cpu")


@pytest.mark.parametrize(
    ("model_type", "settings", "why"),
    [
        ("funnel", {}, "whose output depends on padding"),
        ("mobilebert", {}, "whose output depends on padding"),
        ("nystromformer", {}, "whose output depends on padding"),
        ("yoso", {}, "whose output depends on padding"),
        ("mamba", {}, "no key-value cache"),
        ("xlnet", {}, "no key-value cache"),
        ("pegasus", {"scale_embedding": True}, "scales embeddings only if it looks them up"),
        ("gemma3n_text", {}, "look up the token at every position"),
        ("gemma4_text", {"hidden_size_per_layer_input": 16}, "the token at every position"),
    ],
)
def test_a_model_whose_answers_would_be_wrong_is_refused(
    model_type: str, settings: dict[str, Any], why: str, tmp_path: Path
) -> None:
    config = {"model_type": model_type, **settings}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UserError, match=f"unsupported model type {model_type}, .*{why}.*; choose another model"
    ):
        load_backbone(str(tmp_path), device="cpu")


def test_what_a_model_type_could_do_wrong_is_no_reason_if_it_does_not() -> None:
    assert unsupported_reason(transformers.PegasusConfig(scale_embedding=False)) is None
    assert unsupported_reason(transformers.Gemma4TextConfig(hidden_size_per_layer_input=0)) is None


@pytest.mark.parametrize(
    ("cuda", "mps", "device"),
    [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")],
)
def test_auto_takes_the_gpu_there_is(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert resolve_device("auto") == torch.device(device)
    assert resolve_dtype("auto", torch.device(device)) == ("bf16" if device == "cuda" else "fp32")


def test_a_byte_tokenizer_needs_no_vocabulary_file(tmp_path: Path) -> None:
    random_model("t5").model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "ByT5Tokenizer"})
    )
    assert load_backbone(str(tmp_path), device="cpu").tokenise(["x"], 10) == [[123, 1]]


def test_a_separate_output_matrix_is_loaded_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """T5 v1.1 and FLAN-T5: transformers keeps both matrices, but warns of it."""
    saved = random_model("t5")
    output = torch.randn_like(saved.model.shared.weight)
    saved.model.lm_head.weight = torch.nn.Parameter(output)
    saved.model.save_pretrained(tmp_path)
    saved.tokenizer.save_pretrained(tmp_path)
    logger, before = logging.getLogger("transformers"), caplog.text
    logger.addHandler(caplog.handler)
    try:
        loaded = load_backbone(str(tmp_path), device="cpu", dtype="fp32").model
    finally:
        logger.removeHandler(caplog.handler)
    assert torch.equal(loaded.lm_head.weight, output)
    assert not torch.equal(loaded.shared.weight, output)
    assert caplog.text == before
