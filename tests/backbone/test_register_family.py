"""A model family defined outside the package, in a plugin, is one class in one file."""

from pathlib import Path

import pytest
import torch
import transformers

from softprompts.backbone import load_backbone
from softprompts.backbone.families import FAMILIES, peft_task_types
from softprompts.backbone.load import meta_backbone
from softprompts.errors import UserError

from ..models import random_causal

PLUGIN = '''
import transformers

from softprompts.backbone import Causal, register_family


class ShoutConfig(transformers.GPT2Config):
    model_type = "shout"


class ShoutForCausalLM(transformers.GPT2LMHeadModel):
    config_class = ShoutConfig


transformers.AutoConfig.register("shout", ShoutConfig)
transformers.AutoModelForCausalLM.register(ShoutConfig, ShoutForCausalLM)


@register_family("shouting")
class Shouting(Causal):
    """Generates in capitals."""

    model_types = frozenset({"shout"})

    def decode(self, ids):
        return [text.upper() for text in super().decode(ids)]
'''


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The folder of a GPT-2 under a model type that transformers does not know."""
    backbone = random_causal("gpt2")
    folder = tmp_path / "model"
    backbone.model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
    config = folder / "config.json"
    text = config.read_text().replace('"model_type": "gpt2"', '"model_type": "shout"')
    config.write_text(text.replace("GPT2LMHeadModel", "ShoutForCausalLM"))
    return folder


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "shouting.py"
    path.write_text(PLUGIN)
    monkeypatch.setenv("SOFTPROMPTS_PLUGINS", str(path))
    return path


def test_without_a_plugin_the_model_type_is_unknown(model: Path) -> None:
    config = model / "config.json"
    config.write_text(config.read_text().replace('"shout"', '"whisper-softly"'))
    with pytest.raises(UserError, match="cannot be loaded"):
        load_backbone(str(model), device="cpu")


def test_a_plugins_family_loads_its_models(model: Path, plugin: Path, tmp_path: Path) -> None:
    loaded = load_backbone(str(model), device="cpu", dtype="fp32")
    try:
        assert (loaded.family, type(loaded).__name__) == ("shouting", "Shouting")
        assert meta_backbone(str(model)).family == "shouting"
        gpt2 = random_causal("gpt2")
        prompt = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(0))
        texts, targets = ["never again", "I love it"], gpt2.tokenise_targets(["yes", "no"])
        (losses, answers), (expected, plain) = (
            (backbone.losses(prompt, text, targets).nll, backbone.generate(prompt, text, 5))
            for backbone in (loaded, gpt2)
            for text in [backbone.embed_rows(backbone.tokenise(texts, 20))]
        )
        torch.testing.assert_close(losses, expected)
        assert loaded.decode(answers) == [text.upper() for text in gpt2.decode(plain)]
        assert peft_task_types()["shouting"] == "CAUSAL_LM"
    finally:
        del FAMILIES["shouting"]


def test_a_family_without_model_types_decides_by_the_config() -> None:
    assert FAMILIES["decoder-only"].handles(transformers.GPT2Config())
    assert not FAMILIES["encoder-only"].handles(transformers.GPT2Config())
    assert not FAMILIES["decoder-only"].handles(transformers.T5Config())
    assert not FAMILIES["encoder-only"].handles(transformers.BartConfig())
