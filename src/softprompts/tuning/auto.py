"""Tournaments: candidates start together in one cohort, and at each rung the worse half leaves
(successive halving: Jamieson 2016).

They are judged by rows held out of the training data. The validation rows choose nothing: the
winner is tuned again on all training rows, evaluated on them once, at its end.
"""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ..artifacts.run_folder import RunFolder
from ..artifacts.tournament import RungRecord, Standing, TournamentRecord, write_tournament
from ..backbone import Backbone
from ..config import Member, RunConfig, spell
from ..config.candidates import (
    ANSWERED,
    BUDGET,
    JUDGING,
    TOURNAMENT_RUNS,
    check_steps,
    rung_shares,
    sizes,
    steps_needed,
    winner_steps,
)
from ..errors import UserError, setting
from ..tasks import Task
from ..tasks.score_report import ScoreReport, task_report
from ..tasks.statistics import paired_test
from .batches import batches_per_epoch
from .checkpoint import load_checkpoint
from .cohort import Cohort, save
from .phases import Phases
from .prepare import count_steps
from .run import Run, RunFailedError, check_losses
from .team import Team
from .watch import Watcher

HELD_OUT = 0.1
"""The share of the training rows that judges candidates, unless that costs more than `JUDGING`."""
MOST, MOST_ON_CPU = 5, 3
"""The most candidates, unless they are given: more would be judged too early for a choice."""
TIMED_RUNS, UNTIMED, FEWEST_TIMED, MOST_TIMED, TIMING = 4, 2, 5, 25, 3.0
"""How the time of a row is measured for a budget in minutes: with how many runs, from which step
on, in how many steps, and in about how many seconds."""
UNLIKELY = 0.1
"""Below this p-value, a candidate is taken to be better than the default method."""
EARLIER_JUDGING = 0.5
"""The most that judging cost, in runs of the winner, in the versions that did not record the share
of held-out rows."""
RESERVE = 0.1
"""The share of the minutes that is left for loading, baselines and pictures."""


# -- the plan --------------------------------------------------------------------------------------


def count_candidates(available: int, steps: int, most: int) -> int:
    """The largest number of candidates, a power of two or all, that the budget is enough for."""
    count = min(available, most)
    while count > 2 and steps < steps_needed(count):
        count = 2 ** math.ceil(math.log2(count) - 1)
    return count


def rung_steps(steps: int, batch_rows: int, count: int, held_out: int) -> list[int]:
    """The steps at which candidates are judged. `steps`: those of the winner."""
    rungs = sizes(count)
    budget = TOURNAMENT_RUNS * steps * batch_rows - sum(rungs) * held_out * ANSWERED
    ends, step = list[int](), 0
    for size, share in zip(rungs, rung_shares(count), strict=True):
        step += math.floor(budget * share / (size * batch_rows))
        ends.append(min(step, steps - 1))
    if ends[0] < 1:
        raise UserError(
            f"Judging {count} candidates on {held_out} rows costs more than a run of {steps} "
            f"steps; raise {setting('tuning.steps')}, or compare fewer."
        )
    return ends


def held_out_share(task: Task, steps: int, batch_rows: int, count: int) -> float:
    """The share of the training rows that judges candidates. `steps`: those of the winner."""
    affordable = JUDGING * TOURNAMENT_RUNS * steps * batch_rows / (ANSWERED * sum(sizes(count)))
    return min(HELD_OUT, affordable / len(task.train))


def _earlier_share(task: Task, record: TournamentRecord) -> float:
    """`held_out_share` of the versions that did not record it."""
    affordable = EARLIER_JUDGING * record["steps"] * record["batch_rows"]
    return min(HELD_OUT, affordable / sum(_sizes(record)) / len(task.train))


def hold_out(task: Task, record: TournamentRecord) -> Task:
    """The task of the candidates: trained on most of the training rows, judged by the others."""
    share = record.get("held_out_share")
    try:
        return task.held_out(_earlier_share(task, record) if share is None else share)
    except UserError:
        raise UserError(
            f"{task.name} has too few training rows for {setting('auto')}, which holds some out; "
            f"add rows, or leave out {setting('auto')}."
        ) from None


def _sizes(record: TournamentRecord) -> list[int]:
    """The number of candidates that each rung is to judge; earlier versions planned fewer rungs."""
    return sizes(len(record["candidates"]))[: len(record["rung_steps"])]


def row_passes(record: TournamentRecord, validation: int) -> dict[str, float]:
    """What tournament and winner cost: a row counts each time that the model reads it. A tournament
    that is not decided is counted as planned.

    `runs`: the cost of all in runs of the winner alone.
    """
    played = [len(rung["standings"]) for rung in record["rungs"]]
    rungs = played if "winner" in record else _sizes(record)
    ends, batch = [0, *record["rung_steps"]], record["batch_rows"]
    training = sum(size * (ends[i + 1] - ends[i]) * batch for i, size in enumerate(rungs))
    judging = sum(rungs) * record["held_out"]
    single = record["steps"] * batch
    cost = single + ANSWERED * validation
    return {
        "tournament_training": training,
        "tournament_judging": judging,
        "winner_training": single,
        "winner_evaluation": validation,
        "total": training + judging + single + validation,
        "runs": round((training + ANSWERED * judging + cost) / cost, 2),
    }


def affordable_steps(
    members: Sequence[Member], task: Task, backbone: Backbone, team: Team, seconds: float
) -> int:
    """The `steps` with which tournament and winner take about that long."""
    runs = [Run(member.config, task, backbone, team=team) for member in members[:TIMED_RUNS]]
    rows = runs[0].config.tuning.batch_size * runs[0].config.tuning.accumulate

    def seconds_per_row(timed: Sequence[Run]) -> float:
        """The median over steps: some of the first ones record kernels for the later ones."""
        cohort, times = Cohort(timed, [None] * len(timed)), list[float]()
        while len(times) < FEWEST_TIMED or (len(times) < MOST_TIMED and sum(times) < TIMING):
            start = time.monotonic()
            cohort.step()
            check_losses(timed)  # waits for the GPU
            times.append(time.monotonic() - start)
        return median(times[UNTIMED:]) / (len(timed) * rows)

    start = time.monotonic()
    together, alone = seconds_per_row(runs), seconds_per_row(runs[:1])
    left = seconds * (1 - RESERVE) - (time.monotonic() - start) - len(task.validation) * together
    winner = left / (rows * (alone + TOURNAMENT_RUNS * together))
    return max(0, math.floor(winner * (1 + TOURNAMENT_RUNS) / BUDGET))


def fitting(
    members: Sequence[Member], task: Task, backbone: Backbone
) -> tuple[list[Member], list[dict[str, Any]]]:
    """The candidates that task and model can have, and the others with the reason why not."""
    fit, left_out, small = list[Member](), list[dict[str, Any]](), task.truncated
    for member in members:
        try:
            Run(member.config, small, backbone)
            fit.append(member)
        except UserError as error:
            left_out.append({"settings": member.varied, "why": str(error)})
            first = error
    if not fit:
        raise first
    return fit, left_out


def planned_steps(config: RunConfig, task: Task) -> int:
    """The steps of a run on all training rows."""
    size = config.tuning.batch_size
    per_epoch = batches_per_epoch(task.member_sizes, size, task.mixture_limit)
    return count_steps(config.tuning, per_epoch)


def winner_config(config: RunConfig, steps: int) -> RunConfig:
    """The config of the winner's run: evaluated once, so that no checkpoint is chosen."""
    tuning = dataclasses.replace(config.tuning, steps=steps, epochs=None, evaluate_every=steps)
    return dataclasses.replace(config, tuning=tuning)


def plan(
    members: Sequence[Member],
    task: Task,
    steps: int,
    most: int | None = None,
    left_out: Sequence[dict[str, Any]] = (),
) -> TournamentRecord:
    """The record of a tournament before its first step.

    `steps`: those of a run without a tournament; `most`: fewer candidates are enough.
    """
    tuning = members[0].config.tuning
    batch_rows = tuning.batch_size * tuning.accumulate
    count = len(members) if most is None else count_candidates(len(members), steps, most)
    check_steps(count, steps)
    steps = winner_steps(steps)
    record: TournamentRecord = {} if most is None else {"default": members[0].name}
    record["held_out_share"] = held_out_share(task, steps, batch_rows, count)
    rows = len(hold_out(task, record).validation)
    return {
        **record,
        "candidates": {member.name: member.varied for member in members[:count]},
        "left_out": list(left_out),
        "metric": task.metrics[0],
        "steps": steps,
        "batch_rows": batch_rows,
        "held_out": rows,
        "rung_steps": rung_steps(steps, batch_rows, count, rows),
        "rungs": [],
    }


# -- the tournament --------------------------------------------------------------------------------


class Tournament:
    """Candidates on one backbone, at the rung where `record` left off."""

    def __init__(
        self,
        members: Sequence[Member],
        task: Task,
        backbone: Backbone,
        record: TournamentRecord,
        folder: RunFolder | None = None,
        team: Team | None = None,
        watcher: Watcher | None = None,
        phases: Phases | None = None,
    ) -> None:
        """`task` is that of `hold_out`. Without a folder, nothing is saved."""
        self.record, self.task, self.folder = record, task, folder
        self.team, self.watcher = team or Team(), watcher or Watcher()
        self.phases = phases or Phases()
        gone = {place["candidate"] for place in self._standings() if place["left"]}
        self.runs = {
            member.name: self._load(member, backbone)
            for member in members
            if member.name in record["candidates"] and member.name not in gone
        }

    def _standings(self) -> list[Standing]:
        return [place for rung in self.record["rungs"] for place in rung["standings"]]

    def _load(self, member: Member, backbone: Backbone) -> Run:
        folder = None if self.folder is None else self.folder.candidate(member.name)
        resumed = self.team.on_main(lambda: folder is not None and folder.has_checkpoint)
        config = winner_config(member.config, self.record["steps"])
        run = Run(config, self.task, backbone, resumed, self.team)
        if folder is not None and resumed:
            load_checkpoint(run, folder)
        return run

    @property
    def rows_done(self) -> int:
        """The row passes so far, by all candidates."""
        rungs, batch = self.record["rungs"], self.record["batch_rows"]
        gone = [r["step"] for r in rungs for place in r["standings"] if place["left"]]
        steps = sum(gone) + sum(run.step for run in self.runs.values())
        return steps * batch + sum(len(rung["standings"]) * rung["rows"] for rung in rungs)

    def play(self) -> str:
        """Play the rungs that are left; the name of the winner."""
        ends = self.record["rung_steps"]
        for number in range(len(self.record["rungs"]), len(ends)):
            if len(self.runs) == 1:  # the others failed
                break
            self.watcher.on_message(
                f"rung {number + 1} of {len(ends)}: {len(self.runs)} candidates up to step "
                f"{ends[number]} of {self.record['steps']}"
            )
            self._play_rung(number)
        (winner,) = self.runs
        self.record["winner"] = winner
        if self.folder is not None and self.team.is_main:
            write_tournament(self.folder, self.record)
            self.folder.remove_candidates(list(self.record["candidates"]))
        return winner

    def _play_rung(self, number: int) -> None:
        """Train, judge, drop the worse half; the rung is recorded before anything is removed."""
        end = self.record["rung_steps"][number]
        cohort = self._train(end)
        active = {name: run for name, run in self.runs.items() if not run.failed}
        answers = zip(active, cohort.evaluate(list(active.values())), strict=True)
        reports = {
            name: task_report(self.task, "validation", of, baselines=False) for name, of in answers
        }
        start = self.record["rung_steps"][number - 1] if number else 0
        standings = [
            _standing(name, run, reports.get(name), start) for name, run in self.runs.items()
        ]
        standings.sort(key=rank)
        if standings[0]["score"] is None:
            why = next(iter(self.runs.values())).stopped
            raise RunFailedError(f"All candidates failed; the first one: {why}.")
        scores = {name: report.row_scores for name, report in reports.items()}
        last = number == len(self.record["rung_steps"]) - 1
        for place in leaving(standings, scores, self.record.get("default"), last):
            place["left"] = True
        gone = [place["candidate"] for place in standings if place["left"]]
        self.runs = {name: run for name, run in self.runs.items() if name not in gone}
        rung: RungRecord = {
            "step": end,
            "rows": len(self.task.validation),
            "standings": standings,
        }
        self.record["rungs"].append(rung)
        self.watcher.on_message(self._summary(number, rung))
        if self.folder is not None and self.team.is_main:
            write_tournament(self.folder, self.record)
            self.folder.remove_candidates(gone)

    def _train(self, end: int) -> Cohort:
        """Train all runs up to a step, and save them there."""
        folders = [self.folder and self.folder.candidate(name) for name in self.runs]
        runs = list(self.runs.values())
        for run in runs:
            run.pause_at = end
        cohort = Cohort(runs, folders, self.watcher, self.phases)
        cohort.train()
        check_losses(runs)
        for run, folder in cohort.members:
            if folder is not None and self.team.is_main:
                save(run, folder)
        return cohort

    def _summary(self, number: int, rung: RungRecord) -> str:
        best = min(rung["standings"], key=rank)  # a protected default may come before it
        settings = self.record["candidates"][best["candidate"]]
        return (
            f"rung {number + 1} of {len(self.record['rung_steps'])}: {in_words(settings)} leads "
            f"with {self.record['metric']} {best['score']:.1f} on {rung['rows']} held-out rows; "
            f"{sum(place['left'] for place in rung['standings'])} eliminated"
        )


def _standing(name: str, run: Run, report: ScoreReport | None, start: int) -> Standing:
    """A candidate's score; a failed one, which gave no answers, leaves."""
    if report is None:
        return {"candidate": name, "score": None, "interval": None, "loss": None, "left": True}
    losses = [loss for step, loss in run.losses if step > start]
    return {
        "candidate": name,
        "score": report.metrics[run.metric],
        "interval": report.intervals.get(run.metric),
        "loss": round(sum(losses) / max(1, len(losses)), 4),
        "left": False,
    }


def rank(place: Standing) -> tuple[float, float]:
    """By score, and equal scores by the training loss; the order of the candidates stays."""
    score = -math.inf if place["score"] is None else place["score"]
    return -score, math.inf if place["loss"] is None else place["loss"]


def leaving(
    standings: list[Standing],
    scores: Mapping[str, Sequence[float]],
    default: str | None,
    last: bool,
) -> list[Standing]:
    """Who leaves, of standings that are in order: the worse half, at the last rung all but one.

    The default method, if it is among them, reaches the last rung, and wins there unless the best
    of the others is clearly better. `scores`: each candidate's `row_scores` of the held-out rows.
    """
    kept = 1 if last else math.ceil(len(standings) / 2)
    (index,) = [i for i, place in enumerate(standings) if place["candidate"] == default] or [0]
    protected = standings[index]
    if index >= kept and protected["score"] is not None:
        best = standings[0]["candidate"]
        if not last or not clearly_better(scores[best], scores[protected["candidate"]]):
            standings.insert(kept - 1, standings.pop(index))
    return standings[kept:]


def clearly_better(first: Sequence[float], second: Sequence[float]) -> bool:
    """Whether the first scores more on the same rows, and chance is an unlikely reason.

    A metric without scores of rows cannot be tested; the better one is better.
    """
    return not first or (sum(first) > sum(second) and paired_test(first, second) < UNLIKELY)


def in_words(settings: dict[str, Any]) -> str:
    """`residual, lr 0.1, length 10, start labels`"""
    return ", ".join(
        spell(value) if name == "preset" else f"{name} {spell(value)}"
        for name, value in settings.items()
    )
