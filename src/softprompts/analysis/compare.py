"""Two arms compared: on the same rows, or on the same tasks and seeds."""

from collections.abc import Sequence
from statistics import fmean
from typing import TypedDict

from ..tasks.statistics import Interval, paired_test
from .runs import RunRecord, Runs
from .spread import t_interval

ROUNDING = 0.01
"""Scores are rounded before they are saved."""


class Comparison(TypedDict):
    """A difference in points between two arms, with its 95 % interval and a paired test."""

    difference: float
    interval: Interval | None
    p: float | None
    over: str
    pairs: int


def compare(
    runs: Runs, first: Sequence[RunRecord], second: Sequence[RunRecord], tasks: Sequence[str]
) -> Comparison | None:
    """The difference of two arms in points: on one task by the rows, if predictions were saved
    (each row's score being the mean over seeds); otherwise over tasks and seeds."""
    pairs = [_pairs(runs, first, second, task) for task in tasks]
    if not all(pairs):
        return None
    differences = [a - b for part in pairs for a, b in part]
    over, tested = "seeds" if len(tasks) == 1 else "tasks x seeds", pairs
    rows = [_row_pairs(runs, first, second, task) for task in tasks] if len(tasks) == 1 else []
    if rows and rows[0]:
        over, tested = "rows", rows
    firsts, seconds = ([pair[index] for part in tested for pair in part] for index in (0, 1))
    unit = [a - b for a, b in zip(firsts, seconds, strict=True)]
    enough = len(unit) > 1
    # a metric such as F1 is not the mean of its rows, which then only serve the test
    same_mean = bool(unit) and abs(fmean(unit) - fmean(differences)) < ROUNDING
    return {
        "difference": round(fmean(differences), 4),
        "interval": t_interval(unit if same_mean else differences),
        "p": float(f"{paired_test(firsts, seconds):.4g}") if enough else None,
        "over": over,
        "pairs": len(unit),
    }


def _pairs(
    runs: Runs, first: Sequence[RunRecord], second: Sequence[RunRecord], task: str
) -> list[tuple[float, float]]:
    """The scores of both arms on a task, seed by seed."""
    one, other = (
        {run.seed: score for run in part if run.task == task
         if (score := runs.score(run)) is not None}
        for part in (first, second)
    )  # fmt: skip
    return [(one[seed], other[seed]) for seed in one if seed in other]


def _row_pairs(
    runs: Runs, first: Sequence[RunRecord], second: Sequence[RunRecord], task: str
) -> list[tuple[float, float]]:
    """The scores of both arms on each row, means over the seeds that both have."""
    split = runs.split(task)
    one, other = (
        {run.seed: run.row_scores(split) for run in part if run.task == task and run.scores}
        for part in (first, second)
    )
    both = [seed for seed in one if seed in other]
    systems = [[part[seed] for seed in both] for part in (one, other)]
    lengths = {len(scores) for system in systems for scores in system}
    if len(lengths) != 1 or lengths == {0}:
        return []
    means = [[fmean(row) for row in zip(*system, strict=True)] for system in systems]
    return list(zip(*means, strict=True))
