"""The time left of a run and of a cohort."""

from types import SimpleNamespace
from typing import Any

import pytest

from softprompts.cli.progress import Pace


def run(step: int, judged: int) -> Any:
    tuning = SimpleNamespace(evaluate_every=10, batch_size=4)
    history = [{"step": 10 * (number + 1)} for number in range(judged)]
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
    assert pace.left([run(0, 0)]) is None
    pace.took("step")
    now[0] = 2.0
    pace.took("step")
    assert pace.left([run(2, 0)]) == 23 * 2 + 3 * 40 / 4 * 2 / 2, (
        "evaluations at 10, 20 and 25, guessed by their rows"
    )
    now[0] = 9.0
    pace.took("judge")
    assert pace.left([run(10, 1)]) == 15 * 2 + 2 * 7
    now[0] = 12.0
    assert pace.left([run(10, 1)]) == 15 * 2 + 2 * 7 - 3, "it goes down while nothing is told"
    assert pace.left([run(10, 1), run(25, 3)]) == 15 * 2 + 2 * 7 - 3
    ended = run(10, 1)
    ended.stopped = "patience"
    assert pace.left([ended]) == 0
