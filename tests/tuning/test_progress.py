"""Progress in Python: lines on standard error, a bar in notebooks, nothing if not verbose."""

import dataclasses
import json
import types
from pathlib import Path
from typing import Any

import pytest

import softprompts
from softprompts.artifacts.run_folder import RunFolder
from softprompts.cli import main
from softprompts.tuning import progress
from softprompts.tuning.tune import tune_config

QUICK: dict[str, Any] = {
    "text": "review",
    "label": "mood",
    "preset": "prompt-tuning",
    "prompt": {"length": 3},
    "steps": 4,
    "evaluate_every": 2,
    "batch_size": 4,
    "max_length": 40,
    "device": "cpu",
    "baselines": False,
}


def test_python_prints_stages_and_evaluations(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = softprompts.tune(train=str(toy_csv), output=tmp_path / "run", **QUICK)
    lines = capsys.readouterr().err.splitlines()
    assert "softprompts: loading t5-tiny" in lines
    assert "softprompts: tokenising 24 rows" in lines
    evaluations = [line for line in lines if "reviews.csv:mood: step" in line]
    assert [line.split(", ")[0].split(": ")[-1] for line in evaluations] == [
        *("step 2 of 4", "step 4 of 4"),
    ]
    assert f"(best {tuned.metrics['accuracy']:.1f})" in evaluations[-1]
    softprompts.tune(train=str(toy_csv), output=tmp_path / "run", verbose=False, **QUICK)
    assert capsys.readouterr().err == ""
    softprompts.tune(train=str(toy_csv), output=tmp_path / "run", **QUICK)
    assert "run at step 4 of 4" in capsys.readouterr().err


def test_the_runs_of_a_cohort_are_named_by_what_differs(
    toy_csv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    softprompts.tune(train=str(toy_csv), seed=[0, 1], **QUICK)
    shown = capsys.readouterr().err
    assert "softprompts: seed 0: step 4 of 4" in shown
    assert "softprompts: seed 1: step 4 of 4" in shown


def test_a_notebook_has_a_bar(
    toy_csv: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = type("ZMQInteractiveShell", (), {})()
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(progress.sys.modules, "IPython", ipython)  # type: ignore[attr-defined]
    softprompts.tune(train=str(toy_csv), **QUICK)
    shown = capsys.readouterr().err
    assert "reviews.csv:mood: 100%" in shown
    assert "4/4" in shown
    assert "accuracy" in shown


def test_the_command_line_prints_lines_in_logs(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        *("tune", "--train", str(toy_csv), "--text", "review", "--label", "mood"),
        *("--steps", "2", "--prompt.length", "3", "--device", "cpu", "--no-baselines"),
        *("--preset", "prompt-tuning", "--max-length", "40"),
    ]
    assert main([*command, "--output", str(tmp_path / "a")]) == 0
    assert "reviews.csv:mood: step 2 of 2" in capsys.readouterr().err
    assert main([*command, "--output", str(tmp_path / "b"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_class_with_one_row_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    rows = [f"text {number},{'ab'[number % 2]}" for number in range(40)]
    path.write_text("\n".join(["review,mood", *rows, "odd,c"]) + "\n")
    softprompts.tune(train=str(path), **QUICK)
    assert "warning: c has a single training row; add rows" in capsys.readouterr().err


def test_an_interrupted_run_keeps_its_scoring(toy_csv: Path, tmp_path: Path) -> None:
    """Earlier versions generated the answers to own data, too."""
    config = softprompts.run_config(
        {
            "task": {"train": str(toy_csv), "text": "review", "label": "mood"},
            "prompt": {"length": 3},
            "preset": "prompt-tuning",
            "device": "cpu",
            "tuning": {"steps": 2, "max_length": 40, "scoring": "generate", "baselines": False},
        }
    )
    folder = tmp_path / "run"
    tune_config(config, folder)
    (folder / "prompt.json").unlink()  # interrupted before it was saved
    auto = dataclasses.replace(config, tuning=dataclasses.replace(config.tuning, scoring="auto"))
    assert tune_config(auto, folder).card.scoring == "generate"
    assert RunFolder(folder).config().tuning.scoring == "generate"
    assert tune_config(auto, tmp_path / "new").card.scoring == "labels"
    assert json.loads((tmp_path / "new" / "prompt.json").read_text())["invalid"] == 0
