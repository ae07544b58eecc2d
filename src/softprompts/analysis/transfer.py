"""The numbers of a transfer study (Vu 2022, SPoT §3) from plain records.

A record is `{"source", "target", "seed", "score", "majority", "rows"}`: a score from 0 to 100 on
the target's rows after starting from the source's prompt of that seed. Without a source (None) it
is a baseline; without a target it is the source's own run, on the source's rows. A score of None
means the run is not finished. Optional are "metric"; "split", the rows of the score ("validation"
or "test"); "selection", the score by which sources are selected, if it is another; and
"row_scores", the scores of single rows for paired tests.
An embedding is `{"task", "seed", "vectors"}`; if a task and seed occur twice (a source that is also
a target), the first counts.
A source on itself as target appears among the cells, but not in correlations and retrieval.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
from torch import Tensor

from ..library.search import SIMILARITIES, rank
from .spread import (
    PairedTest,
    Spread,
    TaskScore,
    finite,
    grouped,
    paired_scores,
    significant,
    spread,
)

StudyRecord = Mapping[str, Any]
PromptKey = tuple[str, int]  # a task and a seed: one source prompt
SeedScores = Mapping[int, float]


@dataclass(frozen=True)
class TransferCell:
    """What starting from a source did for a target. `reduction` is against the mean baseline.

    `p` is of the difference from the baseline by Welch's t test, two-sided; None for one seed.
    `paired` is the test of the means over seeds on the same rows.
    """

    source: str
    target: str
    score: Spread | None
    reduction: Spread | None
    p: float | None
    paired: PairedTest | None = None
    change: float | None = None

    @property
    def significant(self) -> bool:
        """At one seed, by the paired test."""
        return significant(self.paired.p if self.p is None and self.paired else self.p)


class Scores:
    """The scores of a study, in the order of the records.

    `targets` holds the baselines, `source_scores` the sources on their own rows.
    """

    def __init__(self, records: Iterable[StudyRecord]) -> None:
        by_key: dict[tuple[str | None, str | None, int], StudyRecord] = {
            (record["source"], record["target"], record["seed"]): record for record in records
        }
        self.sources = list(dict.fromkeys(source for source, _, _ in by_key if source is not None))
        self.seeds = sorted({seed for _, _, seed in by_key})
        self._finished = {
            key: record for key, record in by_key.items() if finite(record["score"]) is not None
        }
        targets = dict.fromkeys(target for _, target, _ in by_key if target is not None)
        self.targets = {name: self._task_score(None, name) for name in targets}
        self.source_scores = {name: self._task_score(name, None) for name in self.sources}

    def _task_score(self, source: str | None, target: str | None) -> TaskScore:
        name, score = target or source or "", spread(self.cell(source, target).values())
        for (other, evaluated, _), run in self._finished.items():
            # Every run of a target is evaluated on the same rows.
            if evaluated == target and (target is not None or other == source):
                facts = (float(run["majority"]), int(run["rows"]), run.get("metric"))
                return TaskScore(name, score, *facts, run.get("split", "validation"))
        return TaskScore(name, score)

    def _runs(self, source: str | None, target: str | None) -> dict[int, StudyRecord]:
        keys = [(source, target, seed) for seed in self.seeds]
        return {key[2]: self._finished[key] for key in keys if key in self._finished}

    def cell(self, source: str | None, target: str | None) -> SeedScores:
        """The finished scores by seed: a baseline without a source, a source's own without a
        target."""
        return {seed: float(run["score"]) for seed, run in self._runs(source, target).items()}

    def selection(self, source: str | None, target: str) -> SeedScores:
        """The scores by seed that sources are selected by."""
        runs = self._runs(source, target)
        return {seed: run.get("selection", run["score"]) for seed, run in runs.items()}

    def paired(self, source: str, target: str) -> PairedTest | None:
        """The test against the baselines of the same seeds: on their rows, or else over seeds."""
        return PairedTest.of(*paired_scores(self._runs(source, target), self._runs(None, target)))

    def _summary(self, source: str, target: str) -> TransferCell:
        task, scores = self.targets[target], self.cell(source, target)
        known = [r for score in scores.values() if (r := task.reduction(score)) is not None]
        score = spread(scores.values())
        p, paired = _welch(score, task.score), self.paired(source, target)
        change = score.mean - task.score.mean if score and task.score else None
        return TransferCell(source, target, score, spread(known), p, paired, change)

    @cached_property
    def cells(self) -> list[TransferCell]:
        """The cells of the heatmap: means over seeds."""
        return [self._summary(source, target) for source in self.sources for target in self.targets]

    def reductions(self) -> list[list[float | None]]:
        """Of the cells, sources x targets."""
        means = iter([cell.reduction.mean if cell.reduction else None for cell in self.cells])
        return [[next(means) for _ in self.targets] for _ in self.sources]

    @property
    def _pairs(self) -> list[tuple[str | None, str]]:
        """Sources (None: the baseline) and targets; a task on itself is not expected."""
        return [(s, t) for s in (None, *self.sources) for t in self.targets if s != t]

    @property
    def missing(self) -> dict[str, int]:
        """How many baselines and cells are missing, of sources x targets x seeds."""
        missing = {"baselines": 0, "cells": 0}
        for source, target in self._pairs:
            kind = "baselines" if source is None else "cells"
            missing[kind] += len(self.seeds) - len(self.cell(source, target))
        return missing

    @property
    def expected(self) -> int:
        """Baselines and cells of the complete study."""
        return len(self.seeds) * len(self._pairs)


def _welch(one: Spread | None, other: Spread | None) -> float | None:
    if one is None or other is None or one.std is None or other.std is None:
        return None
    if one.mean == other.mean:
        return 1.0
    if one.std == other.std == 0:
        return None  # without any variance, chance cannot be estimated
    from scipy import stats

    test = stats.ttest_ind_from_stats(
        one.mean, one.std, one.runs, other.mean, other.std, other.runs, equal_var=False
    )
    return float(test.pvalue)


class Similarities:
    """One similarity between all prompts' task embeddings. All K prompts of a mixture count."""

    def __init__(self, embeddings: Iterable[StudyRecord], name: str) -> None:
        vectors: dict[PromptKey, Tensor] = {}
        for embedding in embeddings:
            tokens = embedding["vectors"].detach().double().flatten(0, -2)
            vectors.setdefault((embedding["task"], embedding["seed"]), tokens)
        self.name = name
        self.tasks = list(dict.fromkeys(task for task, _ in vectors))
        self.prompts = sorted(vectors, key=lambda key: (self.tasks.index(key[0]), key[1]))
        similarity = SIMILARITIES[name]
        self._pairwise: dict[tuple[PromptKey, PromptKey], float] = {}
        for i, one in enumerate(self.prompts):
            for other in self.prompts[i:]:
                value = similarity(vectors[one], vectors[other])
                self._pairwise[one, other] = self._pairwise[other, one] = value

    def prompts_of(self, task: str) -> list[PromptKey]:
        return [prompt for prompt in self.prompts if prompt[0] == task]

    def matrix(self) -> list[list[float | None]]:
        """Tasks x tasks, the mean over all pairs of prompts (9 for three seeds, as in the paper).

        The diagonal is the mean over different seeds of one task; None if there is one seed.
        """
        return [[self._mean(one, other) for other in self.tasks] for one in self.tasks]

    def _mean(self, one: str, other: str) -> float | None:
        values = [
            self._pairwise[a, b]
            for a in self.prompts_of(one)
            for b in self.prompts_of(other)
            if a != b
        ]
        return fmean(values) if values else None

    def to_target(self, prompt: PromptKey, target: str) -> float | None:
        """A source prompt's similarity to a target, the mean over the target's prompts."""
        targets = self.prompts_of(target)
        if prompt not in self.prompts or not targets:
            return None
        return fmean(self._pairwise[prompt, key] for key in targets)

    def nearest(self, target: PromptKey, prompts: Iterable[PromptKey]) -> list[PromptKey]:
        """The source prompts that have an embedding, the most similar to `target` first."""
        if target not in self.prompts:
            return []
        return rank(
            {prompt: self._pairwise[prompt, target] for prompt in prompts if prompt in self.prompts}
        )


@dataclass(frozen=True)
class Point:
    """A source prompt in the scatter plot of a target."""

    source: str
    seed: int
    similarity: float
    reduction: float


@dataclass(frozen=True)
class Correlation:
    """Similarity against relative error reduction over all source prompts (Vu 2022, Fig. 5).

    None where it is not defined. The p values treat prompts as independent, as the paper does.
    Prompts of one source are not, so there is also the correlation over the sources' means.
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
    points = tuple(
        Point(source, seed, similarity, reduction)
        for source in scores.sources
        for seed, score in scores.cell(source, target).items()
        if source != target
        and (similarity := similarities.to_target((source, seed), target)) is not None
        and (reduction := scores.targets[target].reduction(score)) is not None
    )
    groups = grouped((point.source, point) for point in points)
    over_prompts = _correlations([[point] for point in points])
    over_sources = _correlations(list(groups.values()))[:2]
    return Correlation(target, points, *over_prompts, len(groups), *over_sources)


def _correlations(
    groups: Sequence[Sequence[Point]],
) -> tuple[float | None, float | None, float | None, float | None]:
    """Pearson's r and its p, Spearman's rho and its p, over the means of the groups."""
    x = [fmean(point.similarity for point in group) for group in groups]
    y = [fmean(point.reduction for point in group) for group in groups]
    # Two points always lie on a line, and a constant correlates with nothing.
    if len(groups) < 3 or any(np.ptp(z) <= 1e-9 * np.abs(z).max() for z in (x, y)):
        return None, None, None, None
    from scipy import stats

    pearson, spearman = stats.pearsonr(x, y), stats.spearmanr(x, y)
    return (
        float(pearson.statistic),
        float(pearson.pvalue),
        float(spearman.statistic),
        float(spearman.pvalue),
    )
