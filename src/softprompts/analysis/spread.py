"""How large a score is and how sure: means over seeds, tests, tasks too weak to judge.

Nothing here needs torch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Self

from ..tasks.statistics import Interval, paired_test

SIGNIFICANCE = 0.05


def significant(p: float | None) -> bool:
    return p is not None and p < SIGNIFICANCE


@dataclass(frozen=True)
class Spread:
    """A mean over runs, with its standard deviation (None for one run)."""

    mean: float
    std: float | None
    runs: int

    @property
    def standard_error(self) -> float | None:
        return None if self.std is None else self.std / math.sqrt(self.runs)


def spread(values: Iterable[float]) -> Spread | None:
    """Mean and spread of the values; None if there are none."""
    numbers = list(values)
    if not numbers:
        return None
    return Spread(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None, len(numbers))


@dataclass(frozen=True)
class PairedTest:
    """The two-sided p of a difference between two systems, paired over the same units."""

    p: float
    over: str  # rows, seeds or targets
    pairs: int

    @classmethod
    def of(cls, over: str, first: Sequence[float], second: Sequence[float]) -> Self | None:
        """None for a single pair, which says nothing about chance."""
        return cls(paired_test(first, second), over, len(first)) if len(first) > 1 else None

    def __str__(self) -> str:
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.2g}"
        return f"{p}, {self.pairs:,} {self.over}"


def paired_runs(
    one: Mapping[int, Mapping[str, Any]], other: Mapping[int, Mapping[str, Any]]
) -> PairedTest | None:
    """The test of two systems' runs by seed: on their rows, where `row_scores` are known of the
    same ones, each row by its mean over the seeds of both; or else over these seeds."""
    systems = [[runs[seed] for seed in one if seed in other] for runs in (one, other)]
    rows = [[run.get("row_scores") or () for run in runs] for runs in systems]
    lengths = {len(scores) for system in rows for scores in system}
    if len(lengths) == 1 and lengths != {0}:
        means = [[fmean(seeds) for seeds in zip(*system, strict=True)] for system in rows]
        return PairedTest.of("rows", *means)
    return PairedTest.of("seeds", *([run["score"] for run in runs] for runs in systems))


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
