"""The retrieval table of a transfer study (Vu 2022, Table 3): similar, random and best sources."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from .spread import PairedTest, Spread, finite
from .transfer import Scores, SeedScores, Similarities, StudyRecord

KS = (1, 3, 6, 9, 12, 15)
"""Vu 2022, Table 3."""


@dataclass(frozen=True)
class MethodResult:
    """A row of the table: means over targets, with the spread of those means over seeds.

    Change and relative error reduction are against the mean baselines of the same targets.
    `missing` counts selected cells that are not finished; the best of the rest is a lower bound.
    `paired` tests the change over targets, or over the seeds of a single one.
    """

    method: str
    similarity: str | None
    k: int | None
    targets: int
    score: Spread | None
    change: Spread | None
    reduction: Spread | None
    missing: int
    source: str | None = None
    paired: PairedTest | None = None


def retrieval_table(
    scores: Scores,
    similarities: Sequence[Similarities],
    retrieval: Iterable[StudyRecord],
    targets: Sequence[str],
    ks: Sequence[int] = KS,
    chosen_by: Sequence[str] = (),
) -> list[MethodResult]:
    """Baseline, best of top-k by each similarity, best of k at random, tuned methods, best single
    source, oracle, on these targets.

    `retrieval` has a record `{"method", "similarity", "k", "target", "seed", "score"}` for each run
    of a tuned method. The single source is chosen by its mean over `chosen_by`, or these targets.
    """
    ks = sorted({k for k in ks if k <= len(scores.sources) * len(scores.seeds)})
    baselines = {target: scores.cell(None, target) for target in targets}
    table = [_result(scores, "baseline", None, None, baselines)]
    for similarity in similarities:
        for k in ks:
            best = {target: best_of_top(scores, similarity, target, k) for target in targets}
            missing = sum(missing for _, missing in best.values())
            by_target = {target: seeds for target, (seeds, _) in best.items()}
            table.append(_result(scores, "best of top-k", similarity.name, k, by_target, missing))
    # Results that do not depend on the target's seed have no spread, as if there were one seed.
    others = {target: [s for s in scores.sources if s != target] for target in targets}
    # in the order of the scores that select
    all_scores = {
        target: [
            score
            for _, score in sorted(
                (
                    (scores.selection(source, target)[seed], score)
                    for source in sources
                    for seed, score in scores.cell(source, target).items()
                ),
                key=lambda pair: pair[0],
            )
        ]
        for target, sources in others.items()
    }
    cells = {target: values for target, values in all_scores.items() if values}
    for k in ks:
        expected = {
            target: {0: expected_best(values, k)}
            for target, values in cells.items()
            if len(values) >= k
        }
        table.append(_result(scores, "best of k at random", None, k, expected))
    table += [
        _result(scores, *method, by_target)
        for method, by_target in _by_method(retrieval, targets).items()
    ]
    source = best_source(scores, chosen_by or targets)
    if source is not None:
        single = {target: scores.cell(source, target) for target in targets if target != source}
        missing = sum(len(scores.seeds) - len(seeds) for seeds in single.values())
        name = "best single source for all targets"
        table.append(_result(scores, name, None, None, single, missing, source))
    oracle = {target: {0: values[-1]} for target, values in cells.items()}
    missing = sum(
        len(others[target]) * len(scores.seeds) - len(all_scores[target]) for target in targets
    )
    return [*table, _result(scores, "oracle", None, None, oracle, missing)]


def best_source(scores: Scores, targets: Sequence[str]) -> str | None:
    """The source with the largest mean change over these targets, of those that have them all."""
    baselines = {
        target: fmean(seeds.values())
        for target in targets
        if (seeds := scores.selection(None, target))
    }
    means = {}
    for source in scores.sources:
        others = [target for target in baselines if target != source]
        cells = {target: cell for target in others if (cell := scores.selection(source, target))}
        if others and len(cells) == len(others):
            means[source] = fmean(
                fmean(cell.values()) - baselines[target] for target, cell in cells.items()
            )
    return max(means, key=lambda source: (means[source], source), default=None)


def _by_method(
    retrieval: Iterable[StudyRecord], targets: Sequence[str]
) -> dict[tuple[str, str | None, int], dict[str, dict[int, float]]]:
    scores: dict[tuple[str, str | None, int], dict[str, dict[int, float]]] = {}
    for record in retrieval:
        score = finite(record["score"])
        if score is not None and record["target"] in targets:
            method = scores.setdefault((record["method"], record["similarity"], record["k"]), {})
            method.setdefault(record["target"], {})[record["seed"]] = score
    return scores


def best_of_top(
    scores: Scores, similarities: Similarities, target: str, k: int
) -> tuple[SeedScores, int]:
    """The score of the run that was best on the validation rows among the k most similar source
    prompts, by the seed of the target's embedding; and how many of these cells are missing.

    All seeds of all sources are ranked together (48 source prompts in the paper).
    """
    prompts = [
        (source, seed) for source in scores.sources if source != target for seed in scores.seeds
    ]
    best, missing = {}, 0
    for key in similarities.prompts_of(target):
        nearest = similarities.nearest(key, prompts)[:k]
        finished = {
            (source, seed): scores.selection(source, target)[seed]
            for source, seed in nearest
            if seed in scores.cell(source, target)
        }
        missing += len(nearest) - len(finished)
        if finished:
            source, seed = max(finished, key=finished.__getitem__)
            best[key[1]] = scores.cell(source, target)[seed]
    return best, missing


def expected_best(scores: Sequence[float], k: int) -> float:
    """The expected last of k scores drawn without replacement: trying k sources at random.

    The scores are in the order by which the best is selected.
    """
    best = sum(score * math.comb(rank, k - 1) for rank, score in enumerate(scores))
    return best / math.comb(len(scores), k)


def _result(
    scores: Scores,
    method: str,
    similarity: str | None,
    k: int | None,
    by_target: Mapping[str, SeedScores],
    missing: int = 0,
    source: str | None = None,
) -> MethodResult:
    known, changes, reductions = {}, {}, {}
    for name, seeds in by_target.items():
        target = scores.targets[name]
        if seeds and target.score is not None:
            known[name] = seeds
            changes[name] = {seed: score - target.score.mean for seed, score in seeds.items()}
            if target.score.mean < 100:
                reductions[name] = {
                    seed: target.reduction(score) or 0.0 for seed, score in seeds.items()
                }
    spreads = (_over_targets(known), _over_targets(changes), _over_targets(reductions))
    paired = None if method == "baseline" else _paired(scores, known)
    return MethodResult(method, similarity, k, len(known), *spreads, missing, source, paired)


def _paired(scores: Scores, by_target: Mapping[str, SeedScores]) -> PairedTest | None:
    """Over the means of targets, because seeds of one target are not independent."""
    baselines = {name: scores.cell(None, name) for name in by_target}
    if len(by_target) > 1:
        means = [
            (fmean(seeds.values()), fmean(baselines[name].values()))
            for name, seeds in by_target.items()
        ]
        return PairedTest.of("targets", means)
    pairs = [
        (score, baselines[name][seed])
        for name, seeds in by_target.items()
        for seed, score in seeds.items()
        if seed in baselines[name]
    ]
    return PairedTest.of("seeds", pairs)


def _over_targets(by_target: Mapping[str, SeedScores]) -> Spread | None:
    """The mean over targets of their means over seeds; the spread over seeds all targets have."""
    if not by_target:
        return None
    common = set.intersection(*(set(seeds) for seeds in by_target.values()))
    means = [fmean(seeds[seed] for seeds in by_target.values()) for seed in sorted(common)]
    return Spread(
        fmean(fmean(seeds.values()) for seeds in by_target.values()),
        stdev(means) if len(means) > 1 else None,
        len(means),
    )
