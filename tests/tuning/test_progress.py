"""Progress in Python: lines on standard error, a bar in notebooks, nothing if not verbose."""

import dataclasses
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import softprompts
from softprompts.artifacts.run_folder import RunFolder
from softprompts.cli import main
from softprompts.tuning import evaluate, progress
from softprompts.tuning.tune import tune_config

from ..conftest import write_toy
from .test_finish import with_test_rows

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


LINE = r"softprompts: \d+ of 80 rows answered, \d+ s, about \d+ s left"


def in_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = type("ZMQInteractiveShell", (), {})()
    ipython = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]


def test_python_prints_stages_and_evaluations(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = softprompts.tune(train=str(toy_csv), output=tmp_path / "run", **QUICK)
    lines = capsys.readouterr().err.splitlines()
    assert "softprompts: loading t5-tiny" in lines
    assert sum("t5-tiny (14M parameters) is for trying things out" in line for line in lines) == 1
    evaluations = [line for line in lines if "reviews.csv:mood: step" in line]
    assert [line.split(", ")[0].split(": ")[-1] for line in evaluations] == [
        *("step 2 of 4", "step 4 of 4"),
    ]
    assert f"(best {tuned.metrics['accuracy']:.1f})" in evaluations[-1]
    softprompts.tune(train=str(toy_csv), output=tmp_path / "run", verbose=False, **QUICK)
    assert capsys.readouterr().err == ""
    softprompts.tune(train=str(toy_csv), output=tmp_path / "run", **QUICK)
    assert "run already finished, at step 4" in capsys.readouterr().err


def test_the_runs_of_a_cohort_are_named_by_what_differs(
    toy_csv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    softprompts.tune(train=str(toy_csv), seed=[0, 1], **QUICK)
    shown = capsys.readouterr().err
    assert "softprompts: seed 0: step 4 of 4" in shown
    assert "softprompts: seed 1: step 4 of 4" in shown


def test_an_error_at_once_stands_alone(
    toy_csv: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    too_long = QUICK | {"max_length": 8, "prompt": {"length": 7}}
    monkeypatch.setattr(progress, "HOLD_SECONDS", 60)
    with pytest.raises(softprompts.UserError):
        softprompts.tune(train=str(toy_csv), **too_long)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "HOLD_SECONDS", 0)
    with pytest.raises(softprompts.UserError):
        softprompts.tune(train=str(toy_csv), **too_long)
    assert capsys.readouterr().err.startswith("softprompts: reading the data\n"), "it took long"


@pytest.mark.parametrize("reader", ["script", "notebook", "log"])
def test_stages_that_take_time_are_announced(
    reader: str,
    toy_csv: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("softprompts.tuning.tune.load_task", with_test_rows)
    if reader == "notebook":
        in_notebook(monkeypatch)

    def tune(steps: int) -> str:
        if reader == "log":
            command = [
                *("tune", "--train", str(toy_csv), "--text", "review", "--label", "mood"),
                *("--steps", str(steps), "--prompt.length", "3", "--device", "cpu"),
                *("--preset", "prompt-tuning", "--max-length", "40", "--no-baselines"),
            ]
            assert main([*command, "--output", str(tmp_path)]) == 0
        else:
            settings = QUICK | {"train": str(toy_csv), "output": tmp_path, "steps": steps}
            softprompts.tune(**settings)
        return capsys.readouterr().err

    shown = tune(4)
    for stage in (*("reading the data", "loading t5-tiny", "answering 5 test rows"),):
        assert stage in shown
    assert f"resuming {tmp_path} at step 4 of 6" in tune(6)


def test_a_notebook_has_a_bar(
    toy_csv: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_notebook(monkeypatch)
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


def test_labels_that_differ_in_case_alone_are_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    rows = [f"text {number},{'Good' if number % 2 else 'good'}" for number in range(40)]
    path.write_text("\n".join(["review,mood", *rows]) + "\n")
    softprompts.tune(train=str(path), **QUICK)
    assert "warning: Good and good are different classes, although" in capsys.readouterr().err


def test_validation_on_training_rows_is_warned_of(
    toy_csv: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    softprompts.tune(train=str(toy_csv), validation=str(toy_csv), **QUICK)
    warning = capsys.readouterr().err
    assert "validation rows are also training rows, so the score" in warning
    assert "name other rows with validation." in warning


def test_a_class_with_one_row_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.csv"
    rows = [f"text {number},{'ab'[number % 2]}" for number in range(40)]
    path.write_text("\n".join(["review,mood", *rows, "odd,c"]) + "\n")
    softprompts.tune(train=str(path), **QUICK)
    assert "warning: c has a single training row; add rows" in capsys.readouterr().err
    rows = [f"text {number},{'happy' if number % 2 else 'sad'}" for number in range(40)]
    path.write_text("\n".join(["review,mood", *rows, "odd,hapy"]) + "\n")
    softprompts.tune(train=str(path), **QUICK)
    assert "add rows, or correct hapy if it should be happy" in capsys.readouterr().err


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


CALLS: dict[str, Any] = {
    "predict": lambda tuned, rows, **verbose: tuned.predict(rows, **verbose),
    "probabilities": lambda tuned, rows, **verbose: tuned.probabilities(rows, **verbose),
    "evaluate": lambda tuned, rows, **verbose: tuned.evaluate(rows, **verbose),
    "answer": lambda tuned, rows, **verbose: softprompts.Engine(
        tuned.backbone, {"mood": tuned}, batch_size=8, **verbose
    ).answer([("mood", row) for row in rows]),
    "engine's probabilities": lambda tuned, rows, **verbose: softprompts.Engine(
        tuned.backbone, {"mood": tuned}, **verbose
    ).probabilities([("mood", row) for row in rows]),
    "ensemble": lambda tuned, rows, **verbose: softprompts.ensemble(
        [tuned], rows, "mean", **verbose
    ),
    "mean": lambda tuned, rows, **verbose: softprompts.probabilities(tuned, rows, **verbose),
}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> softprompts.Tuned:
    csv = write_toy(tmp_path_factory.mktemp("toy"))
    return softprompts.tune(train=str(csv), verbose=False, **QUICK)


@pytest.mark.parametrize("call", CALLS)
def test_long_answers_show_their_progress(
    call: str,
    tuned: softprompts.Tuned,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [{"review": f"a fine place, visit {n}", "mood": "positive"} for n in range(80)]
    CALLS[call](tuned, rows)
    assert capsys.readouterr().err == "", "it took a moment only"
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(evaluate, "PART", 16)
    CALLS[call](tuned, rows)
    lines = capsys.readouterr().err.splitlines()
    assert all(re.fullmatch(LINE, line) for line in lines)
    assert lines, "the first batch was reported"
    CALLS[call](tuned, rows, verbose=False)
    assert capsys.readouterr().err == ""


def test_a_notebook_has_a_bar_over_the_rows(
    tuned: softprompts.Tuned, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    in_notebook(monkeypatch)
    tuned.predict(["a fine place"] * 3)
    assert "answering" not in capsys.readouterr().err, "it took a moment only"
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.0)
    tuned.predict(["a fine place"] * 3)
    assert "answering: 100%" in capsys.readouterr().err
