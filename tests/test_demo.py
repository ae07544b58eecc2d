"""The promise of the README: with the defaults, far above the majority class."""

import json
from pathlib import Path

import pytest

from softprompts.cli import main


@pytest.mark.slow
def test_the_defaults_beat_the_majority_class_by_thirty_points(tmp_path: Path) -> None:
    """With 250 of the demo's 400 steps and one evaluation at the end, to save time."""
    quick = ["--steps", "250", "--evaluate-every", "250", "--device", "cpu"]
    assert (
        main(["tune", "--task", "helpdesk/intent", *quick, "--output", str(tmp_path / "demo")]) == 0
    )
    card = json.loads((tmp_path / "demo" / "prompt.json").read_text())
    assert card["metrics"]["accuracy"] >= card["majority"]["accuracy"] + 30
