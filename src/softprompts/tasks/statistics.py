"""How sure a score is: 95 % intervals, and paired tests of differences on the same rows.

Fractions have Wilson intervals and exact McNemar tests; everything else is bootstrapped with a
fixed seed, so that the same predictions always give the same numbers.
"""

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from .metrics import metric
from .task_definition import Example

Z = 1.959964
"""The 97.5 % quantile of the normal distribution."""
RESAMPLES = 200
MAX_ROWS = 1000
"""Rows of a resample. Of more rows, a resample is smaller and its deviation scaled accordingly."""
BINS = 15
"""Bins of confidence for the calibration error, as in Guo 2017."""
MOST_EXACT = 12
"""Differences up to which a permutation test enumerates all signs; of more, it samples them."""
ROUNDING = 0.01
"""Points by which scores may differ because they are rounded."""
MEANS = {"accuracy": None, "em": "group", "exact_match": "question"} | dict.fromkeys(
    ("rouge1", "rouge2", "rougeL", "rougeLsum")
)
"""Metrics that are the mean of a value per row, or per group of rows with the same metadata."""
CORRELATIONS = frozenset({"pearson_corrcoef", "spearman_corrcoef"})
"""Metrics of numbers, by which a single row is neither right nor wrong."""

Interval = tuple[float, float]


def unit_scores(
    name: str, examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> list[float] | None:
    """The metric of each row or group of rows; None for metrics that are not a mean of them."""
    units, function = _units(name, examples, labels), metric(name)
    if units is None:
        return None
    return [
        function([examples[i] for i in rows], [predictions[i] for i in rows], labels)
        for rows in units
    ]


def _units(name: str, examples: Sequence[Example], labels: Sequence[str]) -> list[list[int]] | None:
    """The rows, or groups of rows, of which a metric is the mean; None if it is not one."""
    first, _, others = name.partition("+")
    if others:
        units = _units(first, examples, labels)
        return units if units == _units(others, examples, labels) else None
    if name not in MEANS and (name != "f1" or labels):
        return None
    key = MEANS.get(name, "group")
    groups: dict[str, list[int]] = {}
    for number, example in enumerate(examples):
        group = None if key is None else example.metadata.get(key)
        groups.setdefault(f"row {number}" if group is None else repr(group), []).append(number)
    return list(groups.values())


def scored_rows(name: str, examples: Sequence[Example], labels: Sequence[str]) -> list[int] | None:
    """The row whose prediction decides each of the `row_scores`; None if several rows do."""
    units = _units(name, examples, labels)
    if units is None:
        return list(range(len(examples)))
    several = name == "exact_match" and any(len(rows) > 1 for rows in units)
    return None if several else [rows[0] for rows in units]


def row_scores(
    name: str, examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> list[float]:
    """What paired tests compare: a score in percent for each row (or group of rows).

    For metrics that are not a mean over rows, whether the prediction equals its target; none for
    correlations.
    """
    scores = unit_scores(name, examples, predictions, labels)
    if scores is not None:
        return scores
    if not CORRELATIONS.isdisjoint(name.split("+")):
        return []
    return [100.0 * (e.target == p) for e, p in zip(examples, predictions, strict=True)]


def is_wrong(name: str, example: Example, prediction: str, labels: Sequence[str]) -> bool:
    """Whether a prediction has less than the full score."""
    scores = unit_scores(name, [example], [prediction], labels)
    return prediction != example.target if scores is None else scores[0] < 100


def interval(
    name: str, examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> Interval | None:
    """The 95 % interval of a metric; None if resampled rows do not give one."""
    scores = unit_scores(name, examples, predictions, labels)
    if scores is not None:
        if is_binary(scores):
            return wilson(sum(map(bool, scores)), len(scores))
        return bootstrap(lambda rows: fmean(scores[row] for row in rows), len(scores))
    function = metric(name)

    def resampled(rows: Sequence[int]) -> float:
        value = function([examples[i] for i in rows], [predictions[i] for i in rows], labels)
        return 0.0 if math.isnan(value) else value

    try:
        return bootstrap(resampled, len(examples))
    except Exception:  # a plugin's metric may refuse rows of a single class
        return None


def is_binary(scores: Sequence[float]) -> bool:
    return set(scores) <= {0.0, 100.0}


def wilson(successes: int, count: int) -> Interval:
    """The Wilson interval of a fraction, in percent."""
    share, scale = successes / count, 1 + Z**2 / count
    centre = (share + Z**2 / (2 * count)) / scale
    width = Z / scale * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    low, high = 100 * (centre - width), 100 * (centre + width)
    return (0.0 if successes == 0 else low, 100.0 if successes == count else high)


def bootstrap(value: Callable[[Sequence[int]], float], count: int) -> Interval | None:
    """The percentile interval of a value of rows.

    None if all resamples agree: too few rows, or a perfect score, say nothing about the doubt.
    """
    generator, size = random.Random(0), min(count, MAX_ROWS)
    full = value(range(count))
    scale = math.sqrt(size / count)
    values = sorted(value(generator.choices(range(count), k=size)) for _ in range(RESAMPLES))
    low, high = values[round(0.025 * (RESAMPLES - 1))], values[round(0.975 * (RESAMPLES - 1))]
    return None if low == high else (full + scale * (low - full), full + scale * (high - full))


def paired_test(first: Sequence[float], second: Sequence[float]) -> float:
    """The two-sided p-value of a difference between two systems' scores of the same rows."""
    differences = [a - b for a, b in zip(first, second, strict=True) if a != b]
    if is_binary(first) and is_binary(second):
        return mcnemar(sum(d > 0 for d in differences), sum(d < 0 for d in differences))
    return _sign_flips(differences)


def same_mean(by_row: float, by_score: float) -> bool:
    """Whether the mean difference of the rows is that of the scores, which are rounded when they
    are saved. A metric such as F1 is not the mean of its rows."""
    return abs(by_row - by_score) < ROUNDING


def score_p(first: Sequence[float], second: Sequence[float], difference: float) -> float | None:
    """The p-value of a difference between two scores, from those of the same rows; None if single
    rows have none, or disagree with the difference."""
    if not first or len(first) != len(second):
        return None
    if not rows_agree(fmean(first) - fmean(second), difference):
        return None
    return float(f"{paired_test(first, second):.6g}")


def rows_agree(by_row: float, by_score: float) -> bool:
    """Whether rows can test a difference between scores: not if more of them are right, but a score
    such as F1 is no higher."""
    return same_mean(by_row, by_score) or by_row * by_score > 0


def mcnemar(first_only: int, second_only: int) -> float:
    """The exact McNemar test: rows that only the one, and only the other, gets right."""
    count, smaller = first_only + second_only, min(first_only, second_only)
    logarithms = [
        math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1)
        for k in range(smaller + 1)
    ]
    tail = math.fsum(math.exp(value - count * math.log(2)) for value in logarithms)
    return min(1.0, 2 * tail)


def _sign_flips(differences: Sequence[float]) -> float:
    """A paired permutation test: how often random signs give as large a difference."""
    generator, observed = random.Random(0), abs(math.fsum(differences)) - 1e-9
    if len(differences) <= MOST_EXACT:
        flipped = itertools.product(*((d, -d) for d in differences))
        return fmean(abs(math.fsum(signed)) >= observed for signed in flipped)
    rounds = max(RESAMPLES, min(10 * RESAMPLES, 10**6 // max(1, len(differences))))
    larger = sum(
        abs(math.fsum(d if generator.random() < 0.5 else -d for d in differences)) >= observed
        for _ in range(rounds)
    )
    return (larger + 1) / (rounds + 1)


def calibration_error(
    examples: Sequence[Example], probabilities: Sequence[Mapping[str, float]]
) -> float:
    """The expected calibration error (ECE) of label probabilities, in percent."""
    bins: dict[int, list[float]] = {}
    for example, shares in zip(examples, probabilities, strict=True):
        label = max(shares, key=shares.__getitem__)
        number = min(BINS - 1, int(shares[label] * BINS))
        bins.setdefault(number, []).append((label == example.target) - shares[label])
    return 100 * math.fsum(abs(math.fsum(gaps)) for gaps in bins.values()) / len(examples)
