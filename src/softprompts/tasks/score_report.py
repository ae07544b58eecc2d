"""Score reports: rows, 95 % intervals, baselines with paired tests, classes, calibration.

One report serves `tune`, `evaluate`, cohorts and studies.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from .baselines import bag_of_words
from .metrics import rounded, score
from .statistics import (
    calibration_error,
    interval,
    row_scores,
    score_p,
    scored_rows,
)
from .task import MEAN, Task
from .task_definition import Example

MAJORITY, BAG_OF_WORDS = "majority", "bag_of_words"
BASELINE_NAMES = {MAJORITY: "majority class", BAG_OF_WORDS: "bag of words"}

_BY_ROW = ("row_scores", "scored_rows")
Probabilities = Sequence[Mapping[str, float]]


@dataclass(frozen=True)
class ScoreReport:
    """The scores of predictions for some rows, with what it takes to judge them."""

    rows: int
    metrics: dict[str, float]
    intervals: dict[str, list[float]]
    """95 % intervals of the metrics."""
    baselines: dict[str, dict[str, Any]] = field(default_factory=dict)
    """For each baseline, its `metrics` and the `p` of a paired test against it."""
    invalid: int = 0
    """Answers that matched no label."""
    classes: dict[str, dict[str, float | None]] = field(default_factory=dict)
    """Rows, precision and recall of each label; None where nothing was predicted or there is no
    row."""
    confusion: dict[str, dict[str, int]] = field(default_factory=dict)
    """Counts by target and prediction, without the zeros."""
    ece: float | None = None
    """The expected calibration error of the label probabilities."""
    row_scores: list[float] = field(default_factory=list)
    """What paired tests compare; not part of `plain`."""
    scored_rows: list[int] | None = None
    """The row that decides each of the `row_scores`, if one row does; not part of `plain`."""

    def plain(self) -> dict[str, Any]:
        """The report as cards hold it."""
        return {name: value for name, value in vars(self).items() if name not in _BY_ROW}

    @classmethod
    def of(cls, plain: Mapping[str, Any], row_scores: Sequence[float] = ()) -> Self:
        """The report that `plain` returned; keys of newer versions are left out."""
        known = {name: plain[name] for name in plain if name in cls.__dataclass_fields__}
        return cls(**known | {"row_scores": list(row_scores)})


def score_report(
    examples: Sequence[Example],
    predictions: Sequence[str],
    metrics: Sequence[str],
    labels: Sequence[str],
    baselines: Mapping[str, Sequence[str]],
    probabilities: Probabilities | None = None,
) -> ScoreReport:
    """The report of predictions; `baselines` are the predictions of others for the same rows."""
    scores = row_scores(metrics[0], examples, predictions, labels)
    ours = rounded(score(metrics, examples, predictions, labels))
    compared: dict[str, dict[str, Any]] = {}
    for name, answers in baselines.items():
        theirs = rounded(score(metrics, examples, answers, labels))
        difference = ours[metrics[0]] - theirs[metrics[0]]
        others = row_scores(metrics[0], examples, answers, labels)
        p = score_p(scores, others, difference)
        compared[name] = {"metrics": theirs, **({} if p is None else {"p": p})}
    pairs = Counter(
        (example.target, prediction)
        for example, prediction in zip(examples, predictions, strict=True)
        if labels
    )
    confusion: dict[str, dict[str, int]] = {}
    for (target, prediction), count in sorted(pairs.items()):
        confusion.setdefault(target, {})[prediction] = count
    return ScoreReport(
        rows=len(examples),
        metrics=ours,
        intervals={
            name: [round(limit, 4) for limit in limits]
            for name in metrics
            if (limits := interval(name, examples, predictions, labels)) is not None
        },
        baselines=compared,
        invalid=sum(answer not in labels for answer in predictions) if labels else 0,
        classes=_classes(labels, pairs),
        confusion=confusion,
        ece=None if probabilities is None else round(calibration_error(examples, probabilities), 4),
        row_scores=scores,
        scored_rows=scored_rows(metrics[0], examples, labels),
    )


def task_report(
    task: Task,
    split: str,
    predictions: Sequence[str],
    baselines: bool = True,
    probabilities: Probabilities | None = None,
) -> ScoreReport:
    """The report of predictions for a split of a task; of a mixture, that of all its tasks.

    `baselines`: also train a bag of words.
    """
    reports, first = dict[str, ScoreReport](), 0
    for member in task.members:
        examples: list[Example] = getattr(member, split)
        own = slice(first, first := first + len(examples))
        reports[member.name] = score_report(
            examples,
            predictions[own],
            member.metrics,
            member.labels,
            baseline_predictions(member, examples, baselines),
            None if probabilities is None else probabilities[own],
        )
    return reports[task.name] if task.members[0] is task else _mixture(reports)


def baseline_predictions(
    task: Task, examples: Sequence[Example], words: bool = True
) -> dict[str, list[str]]:
    """The answers of the majority class, and of a bag of words, after the training rows."""
    answers = {MAJORITY: [task.majority_label] * len(examples)}
    if words and task.labels and examples:
        answers[BAG_OF_WORDS] = bag_of_words(task.train, [example.input for example in examples])
    return answers


def bags_of_words(task: Task) -> list[tuple[Sequence[Example], list[str]]]:
    """What the bags of words in a task's reports learn from, and what they predict."""
    return [
        (member.train, [example.input for example in examples])
        for member in task.members
        for examples in (member.validation, member.test)
        if member.labels and examples
    ]


def _classes(
    labels: Sequence[str], pairs: Counter[tuple[str, str]]
) -> dict[str, dict[str, float | None]]:
    targets = Counter(target for target, _ in pairs.elements())
    answers = Counter(prediction for _, prediction in pairs.elements())

    def percent(label: str, total: int) -> float | None:
        return round(100 * pairs[label, label] / total, 4) if total else None

    return {
        label: {
            "rows": targets[label],
            "precision": percent(label, answers[label]),
            "recall": percent(label, targets[label]),
        }
        for label in labels
    }


def _mixture(reports: Mapping[str, ScoreReport]) -> ScoreReport:
    """The reports of a mixture's tasks as one, with the mean of their first metrics."""

    def joined(part: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        return {f"{task}:{name}": v for task, values in part.items() for name, v in values.items()}

    def mean(part: Sequence[Mapping[str, float]]) -> float:
        return round(math.fsum(next(iter(values.values())) for values in part) / len(part), 4)

    parts = list(reports.values())
    metrics = {MEAN: mean([report.metrics for report in parts])}
    intervals: dict[str, list[float]] = {}
    firsts = [report.intervals.get(next(iter(report.metrics))) for report in parts]
    if all(limits is not None for limits in firsts):
        width = math.hypot(*((high - low) / 2 for low, high in filter(None, firsts))) / len(parts)
        intervals[MEAN] = [round(metrics[MEAN] - width, 4), round(metrics[MEAN] + width, 4)]
    names = [name for name in parts[0].baselines if all(name in r.baselines for r in parts)]
    return ScoreReport(
        rows=sum(report.rows for report in parts),
        metrics=metrics | joined({task: report.metrics for task, report in reports.items()}),
        intervals=intervals | joined({task: r.intervals for task, r in reports.items()}),
        baselines={
            name: {
                "metrics": {MEAN: mean([report.baselines[name]["metrics"] for report in parts])}
                | joined({task: r.baselines[name]["metrics"] for task, r in reports.items()})
            }
            for name in names
        },
        invalid=sum(report.invalid for report in parts),
        row_scores=[value for report in parts for value in report.row_scores],
    )
