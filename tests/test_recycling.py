"""benchmarks/recycling.py: what is left of prompts when the backbone changes."""

import json
from pathlib import Path

import pytest

import softprompts
from softprompts.backbone import load_backbone

from .scripts import load_script


def test_prompts_keep_their_scores_on_an_equivalent_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a copy that answers as the model does, the scores differ only by rounding."""
    recycling = load_script("benchmarks/recycling.py")
    runs, new = tmp_path / "runs", tmp_path / "new"
    softprompts.tune(
        ["helpdesk/urgency", "helpdesk/sentiment"],
        preset="prompt-tuning",
        prompt={"length": 4},
        steps=2,
        batch_size=4,
        cap_validation=12,
        scoring="labels",
        device="cpu",
        output=runs,
    )
    backbone = load_backbone("t5-tiny", device="cpu")
    # The last row is no token: another fingerprint, but the same answers.
    backbone.model.lm_head.weight.data[-1] += 1.0
    backbone.model.save_pretrained(new)
    backbone.tokenizer.save_pretrained(new)
    flags = ["--from-model", "t5-tiny", "--model", str(new), "--beside", str(runs)]
    output = tmp_path / "out.json"
    assert recycling.main([str(runs), *flags, "--device", "cpu", "--output", str(output)]) == 0
    result = json.loads(output.read_text())
    tasks = [line["task"] for line in result["table"]]
    assert tasks == ["helpdesk/sentiment", "helpdesk/urgency", "mean"]
    one_row = 100 / 12 + 1e-6  # a near tie may flip
    for prompt in result["prompts"]:
        assert prompt["least squares"] == pytest.approx(prompt["old"], abs=one_row)
    for line in result["table"]:
        assert line["tuned on the new"] == pytest.approx(line["old"])
    assert "| mean |" in capsys.readouterr().out
    missing = [str(tmp_path / "none"), *flags, "--output", str(tmp_path / "none.json")]
    assert recycling.main(missing) == 2
    assert "no tuned prompts" in capsys.readouterr().err
