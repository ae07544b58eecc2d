"""Tournaments: the plan and its budget, who leaves, what judges, resuming, minutes."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import softprompts
from softprompts.artifacts.run_folder import RunFolder
from softprompts.artifacts.tournament import TournamentRecord, read_tournament, write_tournament
from softprompts.backbone import Backbone
from softprompts.config import Member, TaskConfig, run_config, sections
from softprompts.config.candidates import (
    ANSWERED,
    CANDIDATES,
    FIRST_STEPS,
    JUDGING,
    TOURNAMENT_RUNS,
    check_minutes,
    check_steps,
    make_candidates,
    sizes,
    steps_needed,
    winner_steps,
)
from softprompts.errors import UserError
from softprompts.tasks import load_task
from softprompts.tuning import Run, Watcher, auto, auto_tune
from softprompts.tuning.auto import count_candidates, rung_steps
from softprompts.tuning.progress import RowCount
from softprompts.tuning.tournament_picture import tournament_figure
from softprompts.tuning.tune import tune_auto, tune_config

from ..models import TOY

ROWS = [{"review": f"{text}, {visit}", "mood": mood} for visit in range(6) for text, mood in TOY]
SETTINGS: dict[str, Any] = {
    "text": "review",
    "label": "mood",
    "batch_size": 2,
    "max_length": 32,
    "baselines": False,
    "device": "cpu",
}


def layer(toy_csv: Path, **settings: Any) -> dict[str, Any]:
    return sections({"train": str(toy_csv), **SETTINGS, **settings})


def lists(toy_csv: Path, **settings: Any) -> list[Member]:
    settings = {"lr": [0.01, 0.1, 0.3, 1.0], "prompt": {"length": 2}, "steps": 72, **settings}
    return make_candidates(layer(toy_csv, **settings))[0]


# -- candidates ------------------------------------------------------------------------------------


def test_built_in_candidates_differ_and_settings_hold_for_all(toy_csv: Path) -> None:
    members, default = make_candidates(layer(toy_csv, max_length=200))
    assert default
    assert len(members) == len(CANDIDATES) == 16
    assert len({str(member.varied) for member in members}) == 16
    assert members[0].config.plain() == run_config(layer(toy_csv, max_length=200)).plain()
    assert len({str(member.varied) for member in members[: auto.MOST]}) == auto.MOST
    fixed, _ = make_candidates(layer(toy_csv, preset="residual", lr=0.2))
    assert {(m.config.preset, m.config.tuning.lr) for m in fixed} == {("residual", 0.2)}
    assert 2 <= len(fixed) < 16
    short, _ = make_candidates(layer(toy_csv, max_length=64))
    assert all(member.config.prompt.length < 64 for member in short)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": [0, 1]}, "seed is a list"),
        ({"batch_size": [4, 8]}, "batch_size is a list"),
        ({"shots": [1, 2]}, "shots is a list"),
        ({"patience": 3}, "patience selects by validation score"),
        ({"paper": True, "preset": "smop"}, "paper fixes what auto would choose"),
        ({"preset": "model-tuning"}, "auto compares prompts"),
        (
            {"preset": "smop", "lr": 1, "prompt": {"length": 5, "start": "labels"}},
            "leave nothing for auto to choose",
        ),
    ],
)
def test_settings_that_a_tournament_cannot_have(
    toy_csv: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        make_candidates(layer(toy_csv, **settings))


def test_minutes_need_auto_and_no_steps() -> None:
    assert check_minutes(None, False) is None
    assert check_minutes("1.5", True, {"tuning": {"lr": 0.1}}) == 1.5  # type: ignore[arg-type]
    for arguments, message in [
        ((1, False), "minutes is the budget of auto"),
        ((1, True, {"tuning": {"steps": 5}}), "Both minutes and steps"),
        ((0, True), "minutes is 0"),
    ]:
        with pytest.raises(UserError, match=message):
            check_minutes(*arguments)  # type: ignore[arg-type]


# -- the plan --------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4, 6, 8, 16])
@pytest.mark.parametrize("batch_rows", [1, 16, 128])
def test_tournament_and_winner_cost_at_most_three_runs(count: int, batch_rows: int) -> None:
    for steps in (steps_needed(count), 400, 1000, 30_000):
        if count_candidates(count, steps, count) < count:
            continue
        winner = winner_steps(steps)
        judging = JUDGING * TOURNAMENT_RUNS * winner * batch_rows / (ANSWERED * sum(sizes(count)))
        for held_out in (1, int(judging)):
            ends = rung_steps(winner, batch_rows, count, held_out)
            assert ends[0] >= FIRST_STEPS
            assert ends == sorted(ends)
            assert ends[-1] < winner
            record: TournamentRecord = {
                "candidates": {str(n): {} for n in range(count)},
                "steps": winner,
                "batch_rows": batch_rows,
                "held_out": held_out,
                "rung_steps": ends,
                "rungs": [],
            }
            cost = auto.row_passes(record, 100)
            spent = cost["tournament_training"] + ANSWERED * cost["tournament_judging"]
            assert spent + cost["winner_training"] <= 3 * steps * batch_rows
            assert cost["runs"] <= 2


def test_small_budgets_and_cpus_take_fewer_candidates() -> None:
    assert sizes(8) == [8, 4, 2]
    assert sizes(5) == [5, 3, 2]
    assert rung_steps(600, 16, 5, 0) == [30, 80, 230]  # the last two are judged late
    assert [count_candidates(16, steps, 16) for steps in (18, 72, 400, 1000)] == [2, 4, 8, 16]
    assert count_candidates(16, 1000, auto.MOST) == auto.MOST
    assert count_candidates(16, 1000, auto.MOST_ON_CPU) == auto.MOST_ON_CPU < auto.MOST
    with pytest.raises(UserError, match=r"steps is 71, and .* 4 candidates needs 72 or more"):
        check_steps(4, 71)


def test_listed_candidates_all_take_part(toy_csv: Path) -> None:
    members = lists(toy_csv)
    task = load_task(members[0].config.task)
    assert len(auto.plan(members, task, 72)["candidates"]) == 4
    for refuse in (lambda: auto.plan(members, task, 71), lambda: lists(toy_csv, steps=71)):
        with pytest.raises(UserError, match="4 candidates needs 72 or more; raise it, or compare"):
            refuse()
    assert len(make_candidates(layer(toy_csv, lr=[0.1, 0.2], steps=1), minutes=1)[0]) == 2
    (epochs, *_), _ = make_candidates(layer(toy_csv, epochs=3))
    assert auto.planned_steps(epochs.config, task) == 3 * 22 / 2


def test_held_out_rows_are_training_rows_of_every_class(toy_csv: Path) -> None:
    task = load_task(TaskConfig(train=str(toy_csv), text="review", label="mood"))
    judged = auto.hold_out(task, {"held_out_share": auto.held_out_share(task, 400, 16, 8)})
    assert len(judged.train) + len(judged.validation) == len(task.train)
    texts = {example.input for example in judged.validation}
    assert texts <= {example.input for example in task.train}
    assert not texts & {example.input for example in [*judged.train, *task.validation]}
    assert {example.target for example in judged.validation} == {"positive", "negative"}
    mixture = load_task(TaskConfig(task="helpdesk/intent+helpdesk/register"))
    share = auto.held_out_share(mixture, 100_000, 16, 2)
    parts = auto.hold_out(mixture, {"held_out_share": share})
    assert [len(part.validation) > 0 for part in parts.members] == [True, True]
    assert parts.validation == [row for part in parts.members for row in part.validation]
    assert len(parts.validation) == pytest.approx(0.1 * len(mixture.train), rel=0.1)


# -- playing ---------------------------------------------------------------------------------------


class Followed(Watcher):
    """Notes what was trained, and counts rows."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.rows = RowCount()
        self.steps: list[tuple[float, int]] = []

    def on_message(self, message: str) -> None:
        self.messages.append(message)

    def on_row_plan(self, rows: int, done: int) -> None:
        self.rows.plan(rows, done)

    def on_step(self, run: Run) -> None:
        self.rows.add_steps(run)
        self.steps.append((run.config.tuning.lr, run.step))

    def on_rows_answered(self, run: Run, rows: int) -> None:
        self.rows.done += rows


def test_the_worse_half_leaves_and_the_winner_is_tuned_on_all_rows(
    toy_csv: Path, tmp_path: Path, t5: Backbone
) -> None:
    followed = Followed()
    members = lists(toy_csv)
    tuned = tune_auto(members, tmp_path / "run", watcher=followed, backbone=t5)
    record = json.loads((tmp_path / "run" / "tournament.json").read_text())
    assert tuned.tournament == record
    assert [len(rung["standings"]) for rung in record["rungs"]] == [4, 2]
    for rung in record["rungs"]:
        places = [(-place["score"], place["loss"]) for place in rung["standings"]]
        assert places == sorted(places)
        half = len(places) // 2
        assert [place["left"] for place in rung["standings"]] == [False] * half + [True] * half
    winner = record["rungs"][-1]["standings"][0]["candidate"]
    assert record["winner"] == winner
    config = RunFolder(tmp_path / "run").config()
    assert config.tuning.lr == record["candidates"][winner]["lr"]
    assert tuned.card.task.rows["train"] == 22  # all training rows
    assert tuned.card.best_step == tuned.card.steps == 108
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    assert record["result"]["score"] == tuned.card.score
    assert followed.rows.done == followed.rows.rows == record["cost"]["total"]
    assert record["cost"]["runs"] <= 2
    assert (tmp_path / "run" / "tournament.png").read_bytes()[:4] == b"\x89PNG"
    assert not (tmp_path / "run" / "tournament").exists()
    again = tune_auto(members, tmp_path / "run", watcher=(idle := Followed()), backbone=t5)
    assert idle.steps == []
    assert again.tournament == record


def test_a_tournament_resumes_after_its_last_rung(
    toy_csv: Path, tmp_path: Path, t5: Backbone
) -> None:
    members = lists(toy_csv, checkpoint_every=5)
    expected = tune_auto(members, None, backbone=t5).tournament

    class Interrupted(Followed):
        def on_step(self, run: Run) -> None:
            super().on_step(run)
            if run.step == 22:  # in the second rung
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune_auto(members, tmp_path / "run", watcher=Interrupted(), backbone=t5)
    saved = read_tournament(RunFolder(tmp_path / "run"))
    assert saved is not None
    assert len(saved["rungs"]) == 1
    with pytest.raises(UserError, match="holds a tournament that is not finished"):
        tune_config(members[0].config, tmp_path / "run", backbone=t5)
    resumed = Followed()
    tuned = tune_auto(members, tmp_path / "run", watcher=resumed, backbone=t5)
    assert tuned.tournament == expected
    assert resumed.steps[0][1] == 21
    assert not any("rung 1" in message for message in resumed.messages)
    with pytest.raises(UserError, match=r"other settings .its candidates"):
        tune_auto(lists(toy_csv, lr=[0.02, 0.1, 0.3, 1.0]), tmp_path / "run", backbone=t5)
    write_tournament(RunFolder(tmp_path / "run"), {})
    with pytest.raises(UserError, match=r"tournament.json is corrupted"):
        tune_auto(members, tmp_path / "run", backbone=t5)


EARLIER: TournamentRecord = {
    "candidates": {f"lr={rate}": {"lr": rate} for rate in (0.01, 0.1, 0.3)},
    "left_out": [],
    "metric": "accuracy",
    "steps": 30,  # too few for a tournament that is planned now
    "batch_rows": 2,
    "held_out": 2,
    "rung_steps": [15],  # two rungs now
    "rungs": [],
}
"""The plan that an earlier version made."""


def test_a_tournament_that_an_earlier_version_planned_resumes(
    toy_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(Watcher):
        def on_step(self, run: Run) -> None:
            if run.step == 12:
                raise KeyboardInterrupt

    asked: dict[str, Any] = {
        "lr": [0.01, 0.1, 0.3],
        "prompt": {"length": 2},
        "steps": 30,
        "checkpoint_every": 5,
    }
    members, _ = make_candidates(layer(toy_csv, **asked), resumed=True)
    with monkeypatch.context() as earlier:
        earlier.setattr(auto_tune, "plan", lambda *_: copy.deepcopy(EARLIER))
        with pytest.raises(KeyboardInterrupt):
            tune_auto(members, tmp_path / "run", watcher=Interrupted())
    tuned = softprompts.tune(
        train=toy_csv, **SETTINGS, **asked, auto=True, output=tmp_path / "run", verbose=False
    )
    assert isinstance(tuned, softprompts.Tuned)
    assert tuned.tournament is not None
    assert tuned.tournament["rung_steps"] == [15]
    assert [len(rung["standings"]) for rung in tuned.tournament["rungs"]] == [3]
    assert tuned.tournament["cost"]["tournament_training"] == 3 * 15 * 2


def test_the_rows_that_an_earlier_version_held_out_are_held_out_again() -> None:
    task = load_task(TaskConfig(task="helpdesk/register"))
    record: TournamentRecord = {**EARLIER, "steps": 60, "rung_steps": [9, 20]}
    share = 0.25 * 2 * 60 * 2 / (3 + 2) / len(task.train)
    assert auto.hold_out(task, record).validation == task.held_out(share).validation
    now = auto.held_out_share(task, 90, 2, 3)
    assert len(task.held_out(share).validation) != len(task.held_out(now).validation)
    record["held_out_share"] = now
    assert auto.hold_out(task, record).validation == task.held_out(now).validation


def test_candidates_that_fail_leave(toy_csv: Path, t5: Backbone) -> None:
    rates = {"lr": [0.1, 1e30, 1e31, 1e32], "optimizer": "adamw"}
    record = tune_auto(lists(toy_csv, **rates), None, backbone=t5).tournament
    assert record is not None
    assert record["winner"] == "lr=0.1"
    assert [place["score"] is None for place in record["rungs"][0]["standings"]] == [
        *(False, True, True, True)
    ]
    figure = tournament_figure(record, "run: toy on t5")
    assert figure.get_suptitle() == "run: toy on t5"
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert [name.rpartition(" ")[2] for name in names[:4]] == ["(winner)", *["(failed)"] * 3]
    with pytest.raises(softprompts.RunFailedError, match="All candidates failed"):
        tune_auto(lists(toy_csv, lr=[1e30, 1e31]), None, backbone=t5)


def test_the_default_wins_unless_another_is_clearly_better(toy_csv: Path) -> None:
    members = lists(toy_csv)
    task = load_task(members[0].config.task)
    assert auto.plan(members, task, 72, most=4)["default"] == members[0].name
    assert "default" not in auto.plan(members, task, 72)

    def left(wrong: dict[str, int], last: bool, default: str | None = "default") -> list[str]:
        """Who leaves if candidates have this many wrong answers among 16."""
        scores = {name: [100.0 * (n >= count) for n in range(16)] for name, count in wrong.items()}
        standings: list[Any] = [
            {"candidate": name, "score": -count, "loss": 1.0} for name, count in wrong.items()
        ]
        standings.sort(key=auto.rank)
        return [place["candidate"] for place in auto.leaving(standings, scores, default, last)]

    assert left({"default": 9, "a": 2, "b": 1, "c": 3}, last=False) == ["a", "c"]
    assert left({"default": 1, "a": 2, "b": 0, "c": 3}, last=False) == ["a", "c"]
    assert left({"default": 1, "a": 0}, last=True) == ["a"]  # by a row, which is no more than luck
    assert left({"default": 9, "a": 0}, last=True) == ["default"]
    assert left({"default": 1, "a": 0}, last=True, default=None) == ["default"]
    free_text = [10.0 * (row % 5) for row in range(16)]  # by a metric such as ROUGE
    assert auto.clearly_better([score + 20 for score in free_text], free_text)
    assert not auto.clearly_better([*free_text[1:], 40.0], free_text)
    assert auto.clearly_better([], [])  # by a correlation, of which rows have no scores


def test_equal_scores_are_decided_by_the_loss() -> None:
    places = [(50.0, 2.0), (None, None), (50.0, 1.0), (60.0, 3.0)]
    standings: list[Any] = [{"score": score, "loss": loss} for score, loss in places]
    assert [place["loss"] for place in sorted(standings, key=auto.rank)] == [3.0, 1.0, 2.0, None]


def test_built_in_candidates_without_labels_to_start_from_are_left_out(
    tmp_path: Path, t5: Backbone
) -> None:
    path = tmp_path / "free.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    members, _ = make_candidates(layer(path, free_text=True, max_length=200))
    task = load_task(members[0].config.task)
    fit, left_out = auto.fitting(members, task, t5)
    assert len(fit) == 14
    assert {entry["settings"]["start"] for entry in left_out} == {"labels"}
    assert all("no class labels to start from" in entry["why"] for entry in left_out)


def test_minutes_become_steps(toy_csv: Path, t5: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    members = lists(toy_csv)
    task = load_task(members[0].config.task)
    team = softprompts.tuning.team.Team()
    one = auto.affordable_steps(members, task, t5, team, 60)
    assert one > 0
    assert auto.affordable_steps(members, task, t5, team, 0.01) == 0
    monkeypatch.setattr(auto_tune, "affordable_steps", lambda *_: 80)
    record = tune_auto(members, None, minutes=1, backbone=t5).tournament
    assert record is not None
    assert record["steps"] == 120
    assert record["request"]["minutes"] == 1
    monkeypatch.setattr(auto_tune, "affordable_steps", lambda *_: 0)
    with pytest.raises(UserError, match="a run of 0 steps here, and a tournament needs 216"):
        tune_auto(members, None, minutes=1, backbone=t5)


def test_python_with_rows_in_memory(capsys: pytest.CaptureFixture[str]) -> None:
    prompt = {"length": [1, 2]}
    tuned = softprompts.tune(train=ROWS, **SETTINGS, auto=True, steps=18, prompt=prompt)
    assert isinstance(tuned, softprompts.Tuned)
    assert tuned.tournament is not None
    assert tuned.tournament["candidates"] == {"length=1": {"length": 1}, "length=2": {"length": 2}}
    assert tuned.predict(["I love it"], verbose=False)[0] in ("positive", "negative")
    assert "rung 1 of 1: 2 candidates up to step" in capsys.readouterr().err
