"""How large a score is and how sure: means over seeds, tests, tasks too weak to judge.

Nothing here needs torch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Self, TypedDict, TypeVar

from ..tasks.statistics import Interval, paired_test, rows_agree

SIGNIFICANCE = 0.05
Pairs = Sequence[tuple[float, float]]
"""The scores of two systems on the same units."""
Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values of each key, in their order."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def significant(p: float | None) -> bool:
    return p is not None and p < SIGNIFICANCE


class MeanAndStd(TypedDict):
    mean: float
    std: float | None


class RoundedSpread(MeanAndStd):
    runs: int


@dataclass(frozen=True)
class Spread:
    """A mean over runs, with its standard deviation (None for one run)."""

    mean: float
    std: float | None
    runs: int

    @property
    def standard_error(self) -> float | None:
        return None if self.std is None else self.std / math.sqrt(self.runs)

    def rounded(self) -> RoundedSpread:
        std = None if self.std is None else round(self.std, 4)
        return {"mean": round(self.mean, 4), "std": std, "runs": self.runs}


def spread(values: Iterable[float]) -> Spread | None:
    """Mean and spread of the values; None if there are none."""
    numbers = list(values)
    if not numbers:
        return None
    return Spread(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None, len(numbers))


def number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:z.{digits}f}"


def plus_minus(value: MeanAndStd | None, digits: int = 1) -> str:
    """Such as `81.2 ± 0.7`; empty if the mean is unknown."""
    if value is None:
        return ""
    std = "" if value["std"] is None else f" ± {number(value['std'], digits)}"
    return f"{number(value['mean'], digits)}{std}"


@dataclass(frozen=True)
class PairedTest:
    """The two-sided p of a difference between two systems, paired over the same units."""

    p: float
    over: str  # rows, seeds or targets
    pairs: int

    @classmethod
    def of(cls, over: str, pairs: Pairs) -> Self | None:
        """None for a single pair, which says nothing about chance."""
        if len(pairs) < 2:
            return None
        return cls(paired_test(*zip(*pairs, strict=True)), over, len(pairs))

    def __str__(self) -> str:
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.2g}"
        return f"{p}, {self.pairs:,} {self.over}"


def paired_columns(test: PairedTest | None) -> dict[str, Any]:
    """The test as columns of a table."""
    return {
        "p_paired": test and float(f"{test.p:.6g}"),
        "paired_over": test and test.over,
        "pairs": test and test.pairs,
    }


def paired_text(row: Mapping[str, Any], form: str = "{}") -> str:
    """The test of a table's row, such as "p = 0.03, 277 rows"; empty without one."""
    if row["p_paired"] is None:
        return ""
    return form.format(PairedTest(row["p_paired"], row["paired_over"], row["pairs"]))


def paired_scores(
    one: Mapping[int, Mapping[str, Any]], other: Mapping[int, Mapping[str, Any]]
) -> tuple[str, Pairs]:
    """The scores of two systems' runs by seed, and over what they are paired: over rows, where
    `row_scores` are known of the same ones (by their number and the digest of their `targets`, or,
    of runs of earlier versions, of their texts, too), each row by its mean over the seeds of both;
    or else over these seeds. So, too, where more rows are right but a score such as F1 is no
    higher: rows then say nothing about the difference between the scores."""
    runs = [(one[seed], other[seed]) for seed in one if seed in other]
    seeds = [(first["score"], second["score"]) for first, second in runs]
    known = all(run.get("targets") for pair in runs for run in pair)
    key = "targets" if known else "digest"
    rows = {(len(run.get("row_scores") or ()), run.get(key)) for pair in runs for run in pair}
    if len(rows) != 1 or not next(iter(rows))[0]:
        return "seeds", seeds
    means = ([fmean(row) for row in zip(*(run["row_scores"] for run in system), strict=True)]
             for system in zip(*runs, strict=True))  # fmt: skip
    pairs = list(zip(*means, strict=True))
    by_row, by_seed = (fmean(a - b for a, b in part) for part in (pairs, seeds))
    return ("rows", pairs) if rows_agree(by_row, by_seed) else ("seeds", seeds)


@dataclass(frozen=True)
class TaskScore:
    """A task's score without transfer: a target's baseline, or a source's own runs."""

    name: str
    score: Spread | None
    majority: float | None = None
    rows: int | None = None
    metric: str | None = None
    split: str = "validation"

    @property
    def standard_error(self) -> float | None:
        """The standard error of the score, over seeds and rows, added in quadrature.

        All seeds are evaluated on the same rows, so averaging over seeds does not remove the chance
        in drawing the rows. That part is binomial, sqrt(p (1 - p) / rows). If the majority class
        scores 0, the metric is a correlation (Matthews, Pearson) with an error of about
        (1 - r^2) / sqrt(rows) at r, and the larger of the two counts.
        """
        if self.score is None or self.majority is None or not self.rows:
            return None
        p = min(max(self.score.mean / 100, 0.0), 1.0)
        over_rows = math.sqrt(p * (1 - p) / self.rows)
        if self.majority <= 0:
            over_rows = max(over_rows, (1 - p * p) / math.sqrt(self.rows))
        return math.hypot(100 * over_rows, self.score.standard_error or 0.0)

    @property
    def weak(self) -> bool:
        """Whether the score is within two standard errors of the majority class, or below it.

        Nothing can be concluded from such a task.
        """
        if self.score is None or self.majority is None or self.standard_error is None:
            return True
        return self.score.mean <= self.majority + 2 * self.standard_error

    def reduction(self, score: float) -> float | None:
        """Relative error reduction in percent, (s - b) / (100 - b).

        None without a baseline, or if the baseline makes no errors.
        """
        if self.score is None or self.score.mean >= 100:
            return None
        return 100 * (score - self.score.mean) / (100 - self.score.mean)


def finite(score: float | None) -> float | None:
    return None if score is None or not math.isfinite(score) else float(score)


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for that many comparisons (Holm 1979): each may be called significant if
    the corrected one is, and the chance of any false alarm stays below that level."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def t_interval(values: Sequence[float], level: float = 1 - SIGNIFICANCE) -> Interval | None:
    """Student's interval of a mean; None for fewer than two values."""
    known = spread(values)
    if known is None or known.standard_error is None:
        return None
    width = _t_quantile(known.runs - 1, level) * known.standard_error
    return known.mean - width, known.mean + width


def _t_quantile(freedom: int, level: float) -> float:
    """The t with that share of Student's distribution between -t and t, by bisection."""
    low, high = 0.0, 1.0
    while _t_share(high, freedom) < level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_share(middle, freedom) < level else (low, middle)
    return high


def _t_share(t: float, freedom: int) -> float:
    """The share of Student's distribution between -t and t (Abramowitz and Stegun, 26.7.3-4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    term, total = (cosine, 0.0) if freedom % 2 else (1.0, 0.0)
    for k in range(freedom % 2, freedom - 1, 2):
        total += term
        term *= cosine**2 * (k + 1) / (k + 2)
    return 2 / math.pi * (angle + sine * total) if freedom % 2 else sine * total
