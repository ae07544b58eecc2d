"""Pretraining that continues from an existing model, such as LM adaptation."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from softprompts.backbone import load_backbone
from softprompts.backbone.load import BUNDLED_MODELS
from softprompts.errors import UserError
from softprompts.pretraining.config import PretrainConfig
from softprompts.pretraining.train import pretrain

from ..models import TOKENS, random_t5
from .conftest import SMALL
from .test_train import weights

MakeConfig = Callable[..., PretrainConfig]


def test_lm_adaptation(make_config: MakeConfig, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    config = make_config(steps=40, batch_tokens=1600, lr=0.02, tie=False, saved="bf16")
    before = pretrain(config, first)["losses"]["held_out"]["prefix"]
    adapted = make_config(
        from_model=str(first), tokenizer=None, objectives={"prefix": 1}, lr=1e-6, steps=2
    )
    losses = pretrain(adapted, second)["losses"]["held_out"]
    assert abs(losses["prefix"] - before) < 0.3
    assert losses.keys() == {"prefix"}
    assert weights(first)["lm_head.weight"].dtype == torch.bfloat16
    assert weights(second)["lm_head.weight"].dtype == torch.float32
    tokenizers = [(folder / "tokenizer.json").read_bytes() for folder in (first, second)]
    assert tokenizers[0] == tokenizers[1]


KINDS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "v1.0": ("T5", {"feed_forward_proj": "relu"}, True),
    "v1.1": ("T5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, False),
    "untied and scaled": ("T5", {"feed_forward_proj": "relu"}, False),
    "tied, not scaled": ("T5", {"feed_forward_proj": "relu", "tie_word_embeddings": False}, True),
    "mt5": ("MT5", {"tie_word_embeddings": False}, False),
    "umt5": ("UMT5", {}, False),
}
"""The class, its config, and whether embeddings and output share one matrix."""


def write_random_t5(kind: str, tokenizer: Any, folder: Path) -> None:
    """A tiny random model, with tie_word_embeddings in config.json as its kind has it."""
    name, config_changes, tie = KINDS[kind]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(
        **SMALL, vocab_size=256, **TOKENS, **config_changes
    )
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config)
    if not tie:
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(saved | config_changes))


@pytest.mark.filterwarnings("ignore:.*tied weights mapping.*")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_t5_can_be_trained_further(
    make_config: MakeConfig, tokenizer: Any, tmp_path: Path, kind: str
) -> None:
    """At a tiny learning rate the model does not change; at a larger one it learns."""
    original, unchanged = tmp_path / "original", tmp_path / "unchanged"
    write_random_t5(kind, tokenizer, original)
    settings = {
        "from_model": str(original),
        "tokenizer": None,
        "objectives": {"prefix": 1},
        "warmup": 0,
    }
    card = pretrain(make_config(**settings, steps=1, lr=1e-9), unchanged)
    name, config_changes, tie = KINDS[kind]
    assert card["model"]["model_type"] == name.lower()
    assert card["model"]["tie"] is tie
    feed_forward = config_changes.get("feed_forward_proj", "gated-gelu")
    assert card["model"]["feed_forward_proj"] == feed_forward
    before, after = (
        load_backbone(str(folder), device="cpu", dtype="fp32") for folder in (original, unchanged)
    )
    ids = before.tokenizer("the cat sat on the mat", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        old, new = (
            backbone.model(input_ids=ids, decoder_input_ids=ids).logits
            for backbone in (before, after)
        )
    torch.testing.assert_close(old, new, atol=1e-4, rtol=1e-4)
    config = make_config(**settings, steps=60, lr=0.01, batch_tokens=1600)
    trained = pretrain(config, tmp_path / "trained")
    assert trained["losses"]["held_out"]["prefix"] < card["losses"]["held_out"]["prefix"] - 0.5


def test_models_have_the_names_that_backbones_have(
    make_config: MakeConfig, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The embedded model by name, or a Hub id: here one that is in the Hub's cache."""
    settings: dict[str, Any] = {"tokenizer": None, "objectives": {"prefix": 1}, "steps": 1}
    embedded = make_config(from_model="t5-tiny", batch_tokens=50, **settings)
    assert pretrain(embedded, tmp_path / "tiny")["model"]["d_model"] == 256
    cached = tmp_path / "hub" / "models--some--model"
    write_random_t5("v1.0", tokenizer, cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    card = pretrain(make_config(from_model="some/model", **settings), tmp_path / "run")
    assert card["model"]["d_model"] == 16
    assert card["config"]["from_model"] == "some/model"


def test_the_card_has_the_dimensions_of_the_model(make_config: MakeConfig, tmp_path: Path) -> None:
    first = pretrain(make_config(steps=1, d_ff=48, tie=False), tmp_path / "first")
    config = make_config(steps=1, from_model=str(tmp_path / "first"), tokenizer=None, d_ff=999)
    second = pretrain(config, tmp_path / "second")
    assert first["model"] == second["model"]
    assert first["model"].items() >= {"d_ff": 48, "num_layers": 1, "tie": False}.items()
    assert first["config"]["d_ff"] == 48
    assert not {"size", "d_ff", "tie", "vocabulary", "sentinels"} & second["config"].keys()


def test_a_hub_model_out_of_reach_is_an_error(make_config: MakeConfig, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^The model 'no/such-t5' cannot be loaded"):
        pretrain(make_config(from_model="no/such-t5", tokenizer=None), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_missing_weights_are_an_error(
    make_config: MakeConfig, tokenizer: Any, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    write_random_t5("v1.1", tokenizer, first)
    encoder = {
        name: weight
        for name, weight in weights(first).items()
        if not name.startswith("decoder.block")
    }
    save_file(encoder, first / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=r"lacks \d+ weights, such as decoder"):
        pretrain(make_config(from_model=str(first), tokenizer=None), tmp_path / "run")


def test_a_model_of_another_type_or_with_too_few_tokens_is_an_error(
    make_config: MakeConfig, tmp_path: Path, tokenizer_folder: Path
) -> None:
    bert, small, run = tmp_path / "bert", tmp_path / "small", tmp_path / "run"
    shutil.copytree(tokenizer_folder, bert)
    (bert / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="bert model; only a T5 can be trained further"):
        pretrain(make_config(from_model=str(bert), tokenizer=None), run)
    pretrain(make_config(steps=1), small)
    config = make_config(from_model=str(small), tokenizer=str(BUNDLED_MODELS["t5-tiny"]))
    with pytest.raises(UserError, match="fewer; use the tokenizer"):
        pretrain(config, run)


def test_a_model_without_a_tokenizer_is_an_error(make_config: MakeConfig, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    random_t5().model.save_pretrained(bare)
    config = make_config(from_model=str(bare), tokenizer=None, objectives={"prefix": 1})
    with pytest.raises(UserError, match="tokenizer files"):
        pretrain(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()
