"""Where the time of a command goes."""

import json
from pathlib import Path

import pytest

from softprompts.cli import main
from softprompts.cli.tune_summary import describe_cost
from softprompts.tuning import phases
from softprompts.tuning.phases import Phases


def test_a_phase_inside_another_is_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(phases.time, "monotonic", lambda: now[0])
    clock = Phases(began=97.0)

    def wait(seconds: float) -> None:
        now[0] += seconds

    with clock("train"):
        wait(5)
        with clock("evaluate"):
            wait(2)
        wait(1)
    wait(0.25)
    clock.move("train", "compile", 4)
    assert clock.seconds() == {"start": 3.2, "train": 2.0, "evaluate": 2.0, "compile": 4.0}


def test_the_summary_leaves_out_what_took_no_time() -> None:
    cost = {"phases": {"start": 4.25, "data": 0.4, "train": 30.0}, "peak_gib": 1.5, "from_step": 0}
    assert describe_cost(cost) == "took 35 s (start 4.2, train 30.0), 1.5 GiB at peak"


def test_tune_says_where_its_time_went(
    toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        *("tune", "--train", str(toy_csv), "--text", "review", "--label", "mood", "--json"),
        *("--steps", "2", "--prompt.length", "3", "--device", "cpu", "--no-baselines"),
    ]
    assert main([*command, "--output", str(tmp_path / "run")]) == 0
    spent = json.loads(capsys.readouterr().out)["cost"]["phases"]
    assert {"start", "data", "model", "train", "evaluate", "finish"} <= spent.keys()
    assert all(seconds >= 0 for seconds in spent.values())
