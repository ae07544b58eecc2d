"""benchmarks/recycling.py: what survives of prompts when the backbone changes."""

import json
import sys
from pathlib import Path

import pytest

import softprompts
from softprompts.backbone import load_backbone

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_prompts_of_a_model_survive_in_its_copy_with_other_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A copy that answers as the model does gives the scores the prompts had; what is left over is rounding."""
    sys.path.insert(0, str(BENCHMARKS))
    import recycling

    softprompts.tune(
        ["helpdesk/urgency", "helpdesk/sentiment"], preset="prompt-tuning", prompt={"length": 4}, steps=2, batch_size=4, cap_validation=12,
        scoring="labels", device="cpu", output=tmp_path / "runs",
    )  # fmt: skip
    new = load_backbone("t5-tiny", device="cpu")
    new.model.lm_head.weight.data[-1] += (
        1.0  # no token: another model by its fingerprint, the same by what it does
    )
    new.model.save_pretrained(tmp_path / "new")
    new.tokenizer.save_pretrained(tmp_path / "new")
    asked = [
        str(tmp_path / "runs"),
        "--from-model",
        "t5-tiny",
        "--model",
        str(tmp_path / "new"),
        "--beside",
        str(tmp_path / "runs"),
    ]
    assert recycling.main([*asked, "--device", "cpu", "--output", str(tmp_path / "out.json")]) == 0
    found = json.loads((tmp_path / "out.json").read_text())
    assert [line["task"] for line in found["table"]] == [
        "helpdesk/sentiment",
        "helpdesk/urgency",
        "mean",
    ]
    for prompt in found["prompts"]:
        assert prompt["least squares"] == pytest.approx(
            prompt["old"], abs=100 / 12 + 1e-6
        )  # one near tie may turn
    for line in found["table"]:
        assert line["tuned on the new"] == pytest.approx(line["old"])
    assert "| mean |" in capsys.readouterr().out
    assert (
        recycling.main([str(tmp_path / "none"), *asked[1:], "--output", str(tmp_path / "no.json")])
        == 2
    )
    assert "no tuned prompts" in capsys.readouterr().err
