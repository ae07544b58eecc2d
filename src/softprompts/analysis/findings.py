"""Findings about a claim's expectations: the runs they are about, and tasks too weak to judge."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..study.claims import Selector
from ..tasks.statistics import Interval
from .runs import CHOICES, RunRecord, Runs
from .spread import grouped

HELD, NOT_HELD, TOO_WEAK = "held", "did not hold", "too weak to tell"
NOT_RUN = "not run yet"
NEAREST = "nearest"
"""As a stage: the transfer from the most similar source prompt."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one expectation."""

    verdict: str
    sentence: str
    difference: float | None = None
    interval: Interval | None = None
    p: float | None = None
    pairs: int = 0

    def plain(self) -> dict[str, Any]:
        return dict(vars(self))


def select(selector: Selector, runs: Runs) -> list[RunRecord]:
    """The finished runs that a selector names; without a source or a stage, those without
    transfer."""
    where = dict(selector.where)
    stages = where.pop("stage", ("transfer",) if "source" in where else ("baseline",))
    return [
        run
        for run in (*runs.records, *(nearest(runs) if NEAREST in stages else ()))
        if run.stage in stages
        and run.stage not in CHOICES
        and run.scores
        and all(run.arm.get(name) in values for name, values in where.items())
    ]


def nearest(runs: Runs) -> list[RunRecord]:
    """The transfers from the source prompt that is most similar to their target: for each seed of
    the target's embedding, that which an average began its choice with."""
    setting = ("variant", "backbone")
    cells = {run.name: run for run in runs.records}
    transfers = {
        (*map(run.arm.get, setting), run.arm.get("source"), run.task, run.seed): run
        for run in runs.records
        if run.stage == "transfer"
    }
    found = {}
    for run in runs.records:
        source = cells.get(run.chosen[0]) if run.stage == "average" and run.chosen else None
        if source is not None:
            arm = {name: run.arm[name] for name in setting if name in run.arm}
            key = (*map(arm.get, setting), source.task, run.task, source.seed)
            if key in transfers:
                found[*map(arm.get, setting), run.task, run.seed] = replace(
                    transfers[key], seed=run.seed, stage=NEAREST, arm=arm | {"stage": NEAREST}
                )
    return list(found.values())


def weak(runs: Runs, found: Sequence[RunRecord], task: str) -> bool:
    """Whether no arm among the runs is above the majority class on the task."""
    arms = grouped((repr(sorted(run.arm.items(), key=str)), run) for run in found)
    return all(runs.task_score(task, part).weak for part in arms.values())
