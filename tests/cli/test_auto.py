"""`softprompts tune --auto`: what it prints, its exit codes, and a real kill."""

import io
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from softprompts.artifacts.run_folder import RunFolder
from softprompts.artifacts.tournament import Standing, TournamentRecord, read_tournament
from softprompts.backbone import Backbone
from softprompts.cli import main, tune_runs
from softprompts.files.tensors import read_tensors
from softprompts.tuning.auto import Tournament

from ..conftest import write_toy
from ..processes import ForkServer
from .conftest import Start

COSTS = (
    *("tournament_training", "tournament_judging", "winner_training", "winner_evaluation"),
    *("total", "runs"),
)


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory, t5: Backbone) -> list[str]:
    home = tmp_path_factory.mktemp("data")
    RunFolder(home).save_model(t5)
    return [
        *("tune", "--auto", "--model", str(home / "model"), "--train", str(write_toy(home))),
        *("--text", "review", "--label", "mood"),
        *("--steps", "72", "--batch-size", "2", "--checkpoint-every", "10", "--max-length", "32"),
        *("--lr", "0.01,0.1,0.3,1", "--prompt.length", "2", "--device", "cpu", "--no-baselines"),
        *("--scoring", "labels", "--output"),
    ]


@pytest.fixture(scope="module")
def uninterrupted(command: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert main([*command, str(folder), "--quiet"]) == 0
    return folder


def test_the_tournament_is_printed_and_part_of_the_json(
    command: list[str], uninterrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(uninterrupted), "--quiet"]) == 0  # finished; nothing is repeated
    text = capsys.readouterr().out
    assert "4 candidates, judged by accuracy on 2 rows held out of the training data" in text
    table = [line.split() for line in text.splitlines() if line[:1] in ("1", "2")]
    assert [(row[0], row[-1]) for row in table if row[-1] in ("eliminated", "stays", "won")] == [
        *(("1", "stays"), ("1", "stays"), ("1", "eliminated"), ("1", "eliminated")),
        *(("2", "won"), ("2", "eliminated")),
    ]
    assert "row passes: tournament 220 (training 208, judging 12), winner 218" in text
    assert "in all 1.99 times the winner's run alone" in text
    assert "2 rows separate only candidates that differ widely" in text
    assert "the run was already finished" in text
    assert main([*command, str(uninterrupted), "--quiet", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["tournament"] == read_tournament(RunFolder(uninterrupted))
    assert result["steps"] == 108


def test_kill_9_in_a_tournament_repeats_no_rung(
    command: list[str],
    uninterrupted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    torch_server: ForkServer,
) -> None:
    folder = RunFolder(tmp_path / "run")
    with torch_server.start([*command, str(folder.path)]) as victim:
        deadline = time.time() + 120
        while victim.poll() is None and time.time() < deadline:
            record = read_tournament(folder)
            if record is not None and record["rungs"]:
                break
            time.sleep(0.01)
    before = read_tournament(folder)
    assert before is not None
    assert len(before["rungs"]) == 1
    assert "winner" not in before
    assert main([*command, str(folder.path)]) == 0
    resumed = capsys.readouterr().err
    assert "rung 1 of 2" not in resumed
    assert "rung 2 of 2: 2 candidates up to step" in resumed
    after, expected = read_tournament(folder), read_tournament(RunFolder(uninterrupted))
    assert after is not None
    assert expected is not None
    assert after["rungs"][0] == before["rungs"][0]
    assert after["winner"] == expected["winner"]
    one, other = (
        read_tensors(path / "prompt.safetensors")[0]["vectors"]
        for path in (folder.path, uninterrupted)
    )
    assert torch.equal(one, other)


def test_another_run_in_the_folder_is_refused(
    command: list[str], uninterrupted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, str(uninterrupted), "--steps", "60"]) == 2
    assert "--steps was 72 and is now 60" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "5"], "--minutes is the budget of --auto; use both, or set --steps."),
        (["--auto", "--minutes", "5", "--epochs", "2"], "Both --minutes and --epochs set"),
        (["--auto", "--minutes", "soon"], "--minutes is 'soon'; give a number."),
        (["--auto", "--seed", "0,1"], "--seed is a list, but all candidates of --auto share"),
        (
            ["--auto", "--steps", "5"],
            "a tournament of 2 candidates needs 18 or more; raise it.",
        ),
        (
            ["--auto", "--lr", "1,2,3,4", "--steps", "71"],
            "4 candidates needs 72 or more; raise it, or compare fewer.",
        ),
        (["--auto", "--patience", "2"], "--patience selects by validation score"),
    ],
)
def test_wrong_settings_are_refused_without_torch(
    arguments: list[str], message: str, start: Start, tmp_path: Path
) -> None:
    output = ["--output", str(tmp_path / "run")]
    process = start(["tune", "--task", "helpdesk/intent", *arguments, *output])
    assert process.returncode == 2
    error, imported = process.stderr.splitlines()
    assert message in error
    assert imported == "imported:"


def test_a_protected_default_is_not_said_to_lead() -> None:
    places: list[Standing] = [
        {"candidate": name, "score": score, "interval": None, "loss": 1.0, "left": left}
        for name, score, left in (("1", 75.0, False), ("2", 100.0, True))
    ]
    record: TournamentRecord = {
        "candidates": {"1": {"preset": "mixture"}, "2": {"preset": "smop"}},
        "left_out": [],
        "metric": "accuracy",
        "held_out": 8,
        "rung_steps": [10],
        "rungs": [{"step": 10, "rows": 8, "standings": places}],
        "cost": dict.fromkeys(COSTS, 1),
    }
    reason = "the default method won because no other candidate was significantly better (p < 0.1)"
    assert reason in tune_runs.describe_tournament(record, Path("run"))
    tournament: Any = SimpleNamespace(record=record)
    summary = Tournament._summary(tournament, 0, record["rungs"][0])
    assert "smop leads with accuracy 100.0 on 8 held-out rows; 1 eliminated" in summary
    places[1]["score"] = 70.0
    assert reason not in tune_runs.describe_tournament(record, Path("run"))


def test_a_bar_over_all_rungs_shows_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(
        "softprompts.cli.progress.Console",
        lambda **_: Console(file=screen, force_terminal=True, width=140),
    )
    tuning = SimpleNamespace(batch_size=5, accumulate=2)
    run: Any = SimpleNamespace(config=SimpleNamespace(tuning=tuning), step=2, steps=9)
    with tune_runs.TournamentProgress() as progress:
        progress.on_message("rung 1 of 2")
        progress.on_row_plan(100, 30)
        progress.on_step(run)
        progress.on_rows_answered(run, 5)
        time.sleep(0.01)
        assert progress.count.done == 45
        assert progress.count.before == 30
        assert progress.count.seconds_left is not None
        progress.on_start([run])  # the winner resumes at step 2
        assert (progress.count.done, progress.count.before) == (65, 50)
    text = screen.getvalue()
    assert "rung 1 of 2" in text
    assert "winner" in text
    assert "rows/s" in text
    assert "left" in text
