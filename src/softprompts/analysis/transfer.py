"""The numbers of a transfer study (Vu 2022, SPoT §3) from plain records.

A record is a cell, `{"source", "target", "seed", "score", "majority", "rows"}`, which may tell its "metric" too: a score of 0 to 100 on the
target's validation rows after starting from the source's prompt of that seed. Without a source (None) it is a baseline; without a target it
is the source's own run, on the source's rows. A score of None is a cell that is not finished.
An embedding is `{"task", "seed", "vectors"}`; where a task and seed come twice (a source that is a target too) the first is taken.
A source that is the target itself is shown among the cells and left out of correlations and retrieval.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import UserError
from ..library.search import SIMILARITIES

Record = Mapping[str, Any]
Run = tuple[str, int]  # a task and a seed: one source prompt
Seeds = Mapping[int, float]  # scores by seed
SURE = 0.05  # a p value below it is told as more than chance


@dataclass(frozen=True)
class Spread:
    """A mean over runs, with its standard deviation (None for one run)."""

    mean: float
    std: float | None
    runs: int

    @property
    def error(self) -> float | None:
        """The standard error of the mean."""
        return None if self.std is None else self.std / math.sqrt(self.runs)


def spread(values: Iterable[float]) -> Spread | None:
    """Mean and spread of the values; None where there are none."""
    found = list(values)
    if not found:
        return None
    return Spread(fmean(found), stdev(found) if len(found) > 1 else None, len(found))


@dataclass(frozen=True)
class Task:
    """A task: its score without transfer (a target's baseline, a source's own runs), and whether it is solved at all."""

    name: str
    score: Spread | None
    majority: float | None = None
    rows: int | None = None
    metric: str | None = None

    @property
    def error(self) -> float | None:
        """The standard error of the score: over seeds and over validation rows, added in quadrature.

        All seeds are judged on the same rows, so a mean over seeds does not take away the chance of having drawn these rows. That part
        is binomial, sqrt(p (1 - p) / rows); where the majority class scores 0 the metric is a correlation (Matthews, Pearson), whose
        error at r is about (1 - r^2) / sqrt(rows), and the larger of the two is taken.
        """
        if self.score is None or self.majority is None or not self.rows:
            return None
        p = min(max(self.score.mean / 100, 0.0), 1.0)
        rows = math.sqrt(p * (1 - p) / self.rows)
        if self.majority <= 0:
            rows = max(rows, (1 - p * p) / math.sqrt(self.rows))
        return math.hypot(100 * rows, self.score.error or 0.0)

    @property
    def weak(self) -> bool:
        """Whether the score is not over the majority class by more than two standard errors: no verdict can rest on it then."""
        if self.score is None or self.majority is None or self.error is None:
            return True
        return self.score.mean <= self.majority + 2 * self.error

    def reduction(self, score: float) -> float | None:
        """Relative error reduction in percent, (s - b) / (100 - b); None without a baseline or with nothing left to reduce."""
        if self.score is None or self.score.mean >= 100:
            return None
        return 100 * (score - self.score.mean) / (100 - self.score.mean)


@dataclass(frozen=True)
class Cell:
    """A source, a target, and what starting from the one did to the other. `reduction` takes the baseline's mean as given."""

    source: str
    target: str
    score: Spread | None
    reduction: Spread | None
    p: (
        float | None
    )  # of as large a difference from the baseline by chance (Welch's t, two-sided); None with one seed

    @property
    def clear(self) -> bool:
        return self.p is not None and self.p < SURE


class Scores:
    """The scores of a study: baselines, cells, and in `own` the sources on their own rows. Names keep the order of the records."""

    def __init__(self, records: Iterable[Record]) -> None:
        told: dict[tuple[str | None, str | None, int], float | None] = {}
        facts: dict[tuple[str | None, str | None], tuple[float, int, str | None]] = {}
        for record in records:
            key = (record["source"], record["target"], record["seed"])
            if key in told:
                raise UserError(
                    f"The cell of source {key[0]}, target {key[1]}, seed {key[2]} is told twice; keep one record of it."
                )
            told[key] = finite(record["score"])
            if told[key] is not None:
                judged = (
                    key[0] if key[1] is None else None,
                    key[1],
                )  # every run of a target is judged on the same rows
                facts.setdefault(
                    judged, (float(record["majority"]), int(record["rows"]), record.get("metric"))
                )
        self.sources = list(dict.fromkeys(source for source, _, _ in told if source is not None))
        self.seeds = sorted({seed for _, _, seed in told})
        self._scores = {key: score for key, score in told.items() if score is not None}
        targets = dict.fromkeys(target for _, target, _ in told if target is not None)
        self.targets = {
            name: Task(name, spread(self.baseline(name).values()), *facts.get((None, name), ()))
            for name in targets
        }
        self.own = {
            name: Task(name, spread(self._seeds(name, None).values()), *facts.get((name, None), ()))
            for name in self.sources
        }

    def baseline(self, target: str) -> Seeds:
        return self._seeds(None, target)

    def cell(self, source: str, target: str) -> Seeds:
        return self._seeds(source, target)

    def _seeds(self, source: str | None, target: str | None) -> Seeds:
        return {
            seed: self._scores[source, target, seed]
            for seed in self.seeds
            if (source, target, seed) in self._scores
        }

    def summary(self, source: str, target: str) -> Cell:
        """One cell of the heatmap: means over seeds."""
        task, scores = self.targets[target], self.cell(source, target)
        reductions = [
            reduction
            for score in scores.values()
            if (reduction := task.reduction(score)) is not None
        ]
        score = spread(scores.values())
        return Cell(source, target, score, spread(reductions), _welch(score, task.score))

    @cached_property
    def cells(self) -> list[Cell]:
        return [self.summary(source, target) for source in self.sources for target in self.targets]

    @property
    def missing(self) -> dict[str, int]:
        """How many baselines and cells the study still lacks, of sources x targets x seeds; a task on itself is not expected."""
        baselines = sum(len(self.seeds) - len(self.baseline(target)) for target in self.targets)
        pairs = [
            (source, target)
            for source in self.sources
            for target in self.targets
            if source != target
        ]
        return {
            "baselines": baselines,
            "cells": sum(len(self.seeds) - len(self.cell(*pair)) for pair in pairs),
        }

    @property
    def expected(self) -> int:
        """Baselines and cells of the whole study."""
        others = sum(source != target for source in self.sources for target in self.targets)
        return len(self.seeds) * (len(self.targets) + others)


def finite(score: float | None) -> float | None:
    return None if score is None or not math.isfinite(score) else float(score)


def _welch(one: Spread | None, other: Spread | None) -> float | None:
    """The p value of two means' difference; few runs are let be as uncertain as they are."""
    if one is None or other is None or one.std is None or other.std is None:
        return None
    if one.mean == other.mean:
        return 1.0
    if one.std == other.std == 0:
        return None  # where no seed differs, nothing tells how much chance would
    return float(
        _stats()
        .ttest_ind_from_stats(
            one.mean, one.std, one.runs, other.mean, other.std, other.runs, equal_var=False
        )
        .pvalue
    )


def _stats() -> Any:
    try:
        from scipy import stats
    except ImportError:
        raise UserError(
            "Correlations and p values need scipy; install it with pip install 'softprompts[plots]'."
        ) from None
    return stats


class Similarities:
    """One similarity between all task embeddings, run by run. A mixture's tokens count together."""

    def __init__(self, embeddings: Iterable[Record], name: str) -> None:
        if name not in SIMILARITIES:
            raise UserError(
                f"There is no similarity {name}; choose one of {', '.join(SIMILARITIES)}."
            )
        vectors: dict[Run, Tensor] = {}
        for embedding in embeddings:
            vectors.setdefault(
                (embedding["task"], embedding["seed"]),
                embedding["vectors"].detach().double().flatten(0, -2),
            )
        if len({tokens.shape[1] for tokens in vectors.values()}) > 1:
            raise UserError(
                "Task embeddings of different widths cannot be compared; report on one backbone at a time."
            )
        self.name = name
        self.tasks = list(dict.fromkeys(task for task, _ in vectors))
        self.runs = sorted(vectors, key=lambda run: (self.tasks.index(run[0]), run[1]))
        similarity = SIMILARITIES[name]
        self._between: dict[tuple[Run, Run], float] = {}
        for i, one in enumerate(self.runs):
            for other in self.runs[i:]:
                self._between[one, other] = self._between[other, one] = similarity(
                    vectors[one], vectors[other]
                )

    def of(self, task: str) -> list[Run]:
        return [run for run in self.runs if run[0] == task]

    def matrix(self) -> list[list[float | None]]:
        """Tasks x tasks, the mean over all pairs of runs (9 of three seeds, as in the paper).

        On the diagonal a run is not compared with itself: it is the mean over different seeds of one task, None where there is one seed.
        """
        return [[self._mean(one, other) for other in self.tasks] for one in self.tasks]

    def _mean(self, one: str, other: str) -> float | None:
        pairs = [self._between[a, b] for a in self.of(one) for b in self.of(other) if a != b]
        return fmean(pairs) if pairs else None

    def to_target(self, prompt: Run, target: str) -> float | None:
        """A source prompt's similarity to a target, the mean over the target's runs."""
        if prompt not in self.runs or not self.of(target):
            return None
        return fmean(self._between[prompt, run] for run in self.of(target))

    def ranked(self, target: Run, prompts: Iterable[Run]) -> list[Run]:
        """The source prompts that have an embedding, the most similar to this run of the target first."""
        if target not in self.runs:
            return []
        return sorted(
            (prompt for prompt in prompts if prompt in self.runs),
            key=lambda prompt: (-self._between[prompt, target], prompt),
        )


@dataclass(frozen=True)
class Point:
    """A source prompt in the scatter of a target."""

    source: str
    seed: int
    similarity: float
    reduction: float


@dataclass(frozen=True)
class Correlation:
    """Similarity against relative error reduction over all source prompts (Vu 2022, Fig. 5); None where it is not defined.

    The p values take the prompts as independent, as the paper does. Prompts of one source are not, so there is also the correlation over
    the sources' means, a point for each.
    """

    target: str
    points: tuple[Point, ...]
    pearson: float | None
    pearson_p: float | None
    spearman: float | None
    spearman_p: float | None
    sources: int = 0
    pearson_of_sources: float | None = None
    pearson_of_sources_p: float | None = None


def correlation(scores: Scores, similarities: Similarities, target: str) -> Correlation:
    points = []
    for source in scores.sources:
        for seed, score in scores.cell(source, target).items():
            similarity, reduction = (
                similarities.to_target((source, seed), target),
                scores.targets[target].reduction(score),
            )
            if source != target and similarity is not None and reduction is not None:
                points.append(Point(source, seed, similarity, reduction))
    every = _correlated(
        [point.similarity for point in points], [point.reduction for point in points]
    )
    groups = [
        [point for point in points if point.source == source]
        for source in dict.fromkeys(point.source for point in points)
    ]
    means = [
        (fmean(point.similarity for point in group), fmean(point.reduction for point in group))
        for group in groups
    ]
    of_sources = _correlated(
        [similarity for similarity, _ in means], [reduction for _, reduction in means]
    )
    return Correlation(target, tuple(points), *every, len(means), *of_sources[:2])


def _correlated(
    x: Sequence[float], y: Sequence[float]
) -> tuple[float | None, float | None, float | None, float | None]:
    # Two points always lie on a line, and a constant correlates with nothing.
    if len(x) < 3 or _constant(x) or _constant(y):
        return None, None, None, None
    pearson, spearman = _stats().pearsonr(x, y), _stats().spearmanr(x, y)
    return (
        float(pearson.statistic),
        float(pearson.pvalue),
        float(spearman.statistic),
        float(spearman.pvalue),
    )


def _constant(values: Sequence[float]) -> bool:
    return bool(np.ptp(values) <= 1e-9 * np.abs(values).max())
