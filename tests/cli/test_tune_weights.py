"""`tune --weights`: the frozen model in fewer bits."""

import json
from pathlib import Path

import pytest

from softprompts.cli import main

QUICK = [
    *("--steps", "2", "--batch-size", "4", "--evaluate-every", "2"),
    *("--prompt.length", "3", "--max-length", "40", "--device", "cpu"),
]


@pytest.mark.parametrize("flag", ["--weights", "--dtype"])
def test_int8_is_recorded_on_the_card_and_used_by_predict(
    flag: str, toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    data = ["--train", str(toy_csv), "--text", "review", "--label", "mood"]
    assert main(["tune", *data, *QUICK, flag, "int8", "--output", str(folder)]) == 0
    capsys.readouterr()
    card = json.loads((folder / "prompt.json").read_text())
    assert card["backbone"]["dtype"] == "int8"
    assert main(["predict", str(folder), "a lovely film", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.strip()
