"""A run continues with more steps, in its own folder."""

from pathlib import Path
from typing import Any

import pytest
import torch

import softprompts
from softprompts.artifacts.run_folder import RunFolder

SETTINGS: dict[str, Any] = {
    "task": "helpdesk/register",
    "cap": 12,
    "cap_validation": 6,
    "batch_size": 4,
    "max_length": 40,
    "evaluate_every": 2,
    "prompt": {"length": 3},
    "device": "cpu",
}


def test_a_constant_rate_gives_the_run_of_that_length(tmp_path: Path) -> None:
    settings = {**SETTINGS, "schedule": "constant", "warmup": 0}
    softprompts.tune(**settings, steps=4, output=tmp_path / "run")
    longer = softprompts.tune(**settings, steps=8, output=tmp_path / "run")
    at_once = softprompts.tune(**settings, steps=8)
    assert longer.cost is not None
    assert longer.cost["from_step"] == 4
    assert longer.card.steps == 8
    assert torch.equal(longer.prompt.table, at_once.prompt.table)
    assert longer.card.metrics == at_once.card.metrics
    assert RunFolder(tmp_path / "run").config().tuning.steps == 8


def test_a_decaying_rate_continues_on_the_longer_schedule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {**SETTINGS, "schedule": "linear", "warmup": 0}
    softprompts.tune(**settings, epochs=1, output=tmp_path / "run")  # 3 steps
    capsys.readouterr()
    longer = softprompts.tune(**settings, steps=6, output=tmp_path / "run")
    assert longer.card.steps == 6
    assert (
        "the linear schedule now spans 6 steps instead of 3, "
        "so training continues at 50% of the learning rate"
    ) in capsys.readouterr().err


def test_fewer_steps_and_other_settings_are_refused(tmp_path: Path) -> None:
    softprompts.tune(**SETTINGS, steps=4, output=tmp_path / "run")
    with pytest.raises(softprompts.UserError, match="steps was 4 and is now 2"):
        softprompts.tune(**SETTINGS, steps=2, output=tmp_path / "run")
    with pytest.raises(softprompts.UserError, match="lr was"):
        softprompts.tune(**SETTINGS, steps=8, lr=0.01, output=tmp_path / "run")
