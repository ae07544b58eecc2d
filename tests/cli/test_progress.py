"""Estimates of the time left of a run, of a cohort, and of rows to answer."""

from types import SimpleNamespace
from typing import Any

import pytest

from softprompts.cli.progress import Pace
from softprompts.cli.row_progress import RowProgress
from softprompts.tuning.progress import Lines


def run_at(step: int, evaluations: int) -> Any:
    tuning = SimpleNamespace(evaluate_every=10, batch_size=4)
    history = [{"step": 10 * (number + 1)} for number in range(evaluations)]
    return SimpleNamespace(
        step=step,
        steps=25,
        stopped=None,
        history=history,
        held_out=[0] * 40,
        config=SimpleNamespace(tuning=tuning),
    )


def test_the_time_left_counts_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("softprompts.cli.progress.time.monotonic", lambda: now[0])
    pace = Pace()
    assert pace.seconds_left([run_at(0, 0)]) is None
    pace.record("step")
    now[0] = 2.0
    pace.record("step")
    assert pace.seconds_left([run_at(2, 0)]) == 23 * 2 + 3 * 40 / 4 * 2 / 2, (
        "evaluations at 10, 20 and 25, estimated from their rows"
    )
    now[0] = 9.0
    pace.record("evaluation")
    assert pace.seconds_left([run_at(10, 1)]) == 15 * 2 + 2 * 7
    now[0] = 12.0
    assert pace.seconds_left([run_at(10, 1)]) == 15 * 2 + 2 * 7 - 3, "it goes down between events"
    assert pace.seconds_left([run_at(10, 1), run_at(25, 3)]) == 15 * 2 + 2 * 7 - 3
    stopped = run_at(10, 1)
    stopped.stopped = "patience"
    assert pace.seconds_left([stopped]) == 0


@pytest.mark.parametrize("quiet", [False, True])
def test_rows_have_a_line_now_and_then_without_a_terminal(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr("softprompts.cli.row_progress.time.monotonic", lambda: now[0])
    with RowProgress("predicting", 4000, quiet) as progress:
        for now[0] in (4.0, 11.0, 15.0, 44.0):  # the last rows are the end, not progress
            progress.advance_rows(1000)
    line = "softprompts: predicting: 2,000 of 4,000, 11 s, about 11 s left"
    assert capsys.readouterr().err.splitlines() == ([] if quiet else [line])


def test_a_run_without_training_has_no_steps_and_no_loss(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = {"step": 0, "loss": 0.0, "accuracy": 50.0}
    run: Any = SimpleNamespace(
        task=SimpleNamespace(name="mood"),
        metric="accuracy",
        step=0,
        steps=0,
        stopped=None,
        history=[entry],
        best_entry=entry,
    )
    Lines().on_evaluation(run)
    assert capsys.readouterr().err == "softprompts: mood: accuracy 50.0, 0 s\n"
