"""The core on real models, if SOFTPROMPTS_BACKBONES names a folder with them: flan-t5-small,
smollm2-135m or minilm-l6."""

import os
from pathlib import Path

import pytest
import torch

from softprompts.artifacts.peft import write_adapter
from softprompts.backbone import Backbone, load_backbone
from softprompts.config import PromptConfig, run_config
from softprompts.prompt import Material
from softprompts.prompt.prompt import build_prompt
from softprompts.tuning.tune import tune_config
from softprompts.tuning.tuned import load

from ..models import TEXTS, our_log_probs, peft_log_probs

HOME = Path(os.environ.get("SOFTPROMPTS_BACKBONES", "backbones"))
MODELS = ["flan-t5-small", "smollm2-135m", "minilm-l6"]
PRESETS = ["mixture", "prompt-tuning", "residual", "smop", "p-tuning"]


@pytest.fixture(scope="module", params=MODELS)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    if not (HOME / request.param).is_dir():
        pytest.skip(f"no {request.param}; set SOFTPROMPTS_BACKBONES to the folder it is in")
    return load_backbone(str(HOME / request.param), dtype="fp32", device="cpu")


def test_padded_rows_give_the_unpadded_answers(backbone: Backbone) -> None:
    prompt = build_prompt(
        PromptConfig(length=8), Material(backbone, ["positive", "negative"]), 0, backbone.unit
    )
    if not backbone.generates:
        pytest.skip("it needs a head; see test_families")
    rows = backbone.tokenise(TEXTS, 40)
    vectors = prompt.fold().table.detach().expand(3, -1, -1)
    alone = [
        backbone.generate(vectors[:1], backbone.embed_rows([row]), 6)[0].tolist() for row in rows
    ]
    generated = backbone.generate(vectors, backbone.embed_rows(rows), 6).tolist()
    assert [answer[: len(one)] for answer, one in zip(generated, alone, strict=True)] == alone


def test_peft_has_the_same_logits(backbone: Backbone, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not installed")
    if not backbone.generates:
        pytest.skip("PEFT cannot hold its head")
    prompt = build_prompt(PromptConfig(length=8), Material(backbone), 0, backbone.unit).fold()
    write_adapter(tmp_path, prompt, backbone.family, backbone.name)
    fresh = load_backbone(backbone.name, dtype="fp32", device="cpu")
    with torch.no_grad():
        expected = peft_log_probs(
            backbone, peft.PeftModel.from_pretrained(fresh.model, tmp_path).eval(), 8
        )
        torch.testing.assert_close(
            our_log_probs(backbone, prompt.table), expected, rtol=1e-3, atol=1e-3
        )


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_learns_folds_and_loads(
    backbone: Backbone, preset: str, toy_csv: Path, tmp_path: Path
) -> None:
    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    tuning = {"steps": 24, "batch_size": 4, "evaluate_every": 12, "max_length": 64}
    tuned = tune_config(
        run_config({"preset": preset, "task": task, "tuning": tuning}), tmp_path, backbone=backbone
    )
    losses = [
        float(line.split('"loss": ')[1].split(",")[0])
        for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert losses[-1] < losses[0]
    again = load(tmp_path, backbone=backbone)
    assert again.predict(TEXTS) == tuned.predict(TEXTS)
