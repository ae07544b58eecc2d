"""Two arms compared: on the same rows, or on the same tasks and seeds."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, TypedDict

from ..tasks.statistics import Interval, same_mean
from .runs import RunRecord, Runs
from .spread import PairedTest, Pairs, paired_scores, t_interval


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
    arms = [[by_seed(runs, part, task) for part in (first, second)] for task in tasks]
    shared = [[(one[s]["score"], other[s]["score"]) for s in one if s in other]
              for one, other in arms]  # fmt: skip
    if not all(shared):
        return None
    over = "tasks x seeds"
    pairs: Pairs = [pair for part in shared for pair in part]
    differences = [a - b for a, b in pairs]
    if len(tasks) == 1:
        over, pairs = paired_scores(*arms[0])
    by_unit = [a - b for a, b in pairs]
    test, means = PairedTest.of(over, pairs), (fmean(by_unit), fmean(differences))
    return {
        "difference": round(means[1], 4),
        # rows that a metric such as F1 is not the mean of only serve the test
        "interval": t_interval(by_unit if same_mean(*means) else differences),
        "p": None if test is None else float(f"{test.p:.4g}"),
        "over": over,
        "pairs": len(pairs),
    }


def by_seed(runs: Runs, arm: Sequence[RunRecord], task: str) -> dict[int, dict[str, Any]]:
    """What `paired_scores` needs of an arm's finished runs on a task."""
    return {
        run.seed: {
            "score": score,
            "row_scores": runs.row_scores(run),
            "targets": run.predictions.get(runs.split(run), {}).get("targets"),
            "digest": run.digests.get(runs.split(run), run.digests.get("validation")),
        }
        for run in arm
        if run.task == task and (score := runs.score(run)) is not None
    }
