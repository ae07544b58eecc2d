"""The retrieval table of a transfer study (Vu 2022, Table 3): what the nearest source prompts give, and what chance and hindsight do."""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from .transfer import Record, Scores, Seeds, Similarities, Spread, finite

KS = (1, 3, 6, 9, 12, 15)  # Vu 2022, Table 3


@dataclass(frozen=True)
class Method:
    """A row of the table: means over targets, with the spread over seeds of those means.

    Change and relative error reduction are against the mean baselines of the same targets. `missing` counts chosen cells that are not
    finished; the best of the others is then a lower bound.
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


def retrieval_table(
    scores: Scores,
    similarities: Sequence[Similarities],
    retrieval: Iterable[Record],
    targets: Sequence[str],
    ks: Sequence[int] = KS,
    chosen_by: Sequence[str] = (),
) -> list[Method]:
    """Baseline, best of top-k under each similarity (and of k at random), tuned methods, best single source, oracle, on these targets.

    A record of `retrieval` is `{"method", "similarity", "k", "target", "seed", "score"}`, for the methods that need runs of their own. The
    single source is chosen by its mean over these targets, or over those of `chosen_by`.
    """
    ks = sorted({k for k in ks if k <= len(scores.sources) * len(scores.seeds)})
    table = [
        _method(
            scores, "baseline", None, None, {target: scores.baseline(target) for target in targets}
        )
    ]
    for similarity in similarities:
        for k in ks:
            best = {target: best_of_top(scores, similarity, target, k) for target in targets}
            missing = sum(missing for _, missing in best.values())
            table.append(
                _method(
                    scores,
                    "best of top-k",
                    similarity.name,
                    k,
                    {name: seeds for name, (seeds, _) in best.items()},
                    missing,
                )
            )
    # What is the same for every seed of the target is told without a spread, as if of one seed.
    cells = {target: found for target in targets if (found := _others(scores, target))}
    for k in ks:
        drawn = {
            target: {0: expected_best(found, k)}
            for target, found in cells.items()
            if len(found) >= k
        }
        table.append(_method(scores, "best of k at random", None, k, drawn))
    table += [_method(scores, *key, found) for key, found in _tuned(retrieval, targets).items()]
    table += _single(scores, targets, best_source(scores, chosen_by or targets))
    oracle = {target: {0: max(found)} for target, found in cells.items()}
    missing = sum(_prompts(scores, target) - len(cells.get(target, ())) for target in targets)
    return [*table, _method(scores, "oracle", None, None, oracle, missing)]


def best_source(scores: Scores, targets: Sequence[str]) -> str | None:
    """The source that is best for all these targets: the largest mean change of their scores. One that lacks a target is not chosen."""
    known = {
        target: task.score.mean
        for target in targets
        if (task := scores.targets[target]).score is not None
    }
    means = {}
    for source in scores.sources:
        others = [target for target in known if target != source]
        cells = {target: cell for target in others if (cell := scores.cell(source, target))}
        if others and len(cells) == len(others):
            means[source] = fmean(
                fmean(cell.values()) - known[target] for target, cell in cells.items()
            )
    return max(means, key=lambda source: (means[source], source), default=None)


def _single(scores: Scores, targets: Sequence[str], source: str | None) -> list[Method]:
    if source is None:
        return []
    found = {target: scores.cell(source, target) for target in targets if target != source}
    missing = sum(len(scores.seeds) - len(seeds) for seeds in found.values())
    row = _method(scores, "best single source for all targets", None, None, found, missing)
    return [dataclasses.replace(row, source=source)]


def _tuned(
    retrieval: Iterable[Record], targets: Sequence[str]
) -> dict[tuple[str, str | None, int], dict[str, dict[int, float]]]:
    """The scores of the tuned methods by target and seed."""
    found: dict[tuple[str, str | None, int], dict[str, dict[int, float]]] = {}
    for record in retrieval:
        score = finite(record["score"])
        if score is not None and record["target"] in targets:
            group = found.setdefault((record["method"], record["similarity"], record["k"]), {})
            group.setdefault(record["target"], {})[record["seed"]] = score
    return found


def best_of_top(
    scores: Scores, similarities: Similarities, target: str, k: int
) -> tuple[Seeds, int]:
    """The best validation score among the k most similar source prompts, by seed of the target's embedding; and how many cells are missing.

    All seeds of all sources are ranked together (48 source prompts in the paper).
    """
    prompts = [
        (source, seed) for source in scores.sources if source != target for seed in scores.seeds
    ]
    found, missing = {}, 0
    for run in similarities.of(target):
        chosen = similarities.ranked(run, prompts)[:k]
        reached = [
            cell[seed] for source, seed in chosen if seed in (cell := scores.cell(source, target))
        ]
        missing += len(chosen) - len(reached)
        if reached:
            found[run[1]] = max(reached)
    return found, missing


def expected_best(scores: Sequence[float], k: int) -> float:
    """The expected best of k scores drawn without replacement: what trying k sources gives when similarity says nothing."""
    best = sum(score * math.comb(rank, k - 1) for rank, score in enumerate(sorted(scores)))
    return best / math.comb(len(scores), k)


def _others(scores: Scores, target: str) -> list[float]:
    """The finished cells of a target, those of the target on itself left out."""
    return [
        score
        for source in scores.sources
        if source != target
        for score in scores.cell(source, target).values()
    ]


def _prompts(scores: Scores, target: str) -> int:
    return len(scores.seeds) * sum(source != target for source in scores.sources)


def _method(
    scores: Scores,
    method: str,
    similarity: str | None,
    k: int | None,
    found: Mapping[str, Seeds],
    missing: int = 0,
) -> Method:
    """A row from the scores that a method reached by target and seed."""
    reached: dict[str, Seeds] = {}
    changes: dict[str, Seeds] = {}
    reductions: dict[str, Seeds] = {}
    for name, seeds in found.items():
        target = scores.targets[name]
        if seeds and target.score is not None:
            reached[name] = seeds
            changes[name] = {seed: score - target.score.mean for seed, score in seeds.items()}
            if target.score.mean < 100:
                reductions[name] = {
                    seed: target.reduction(score) or 0.0 for seed, score in seeds.items()
                }
    return Method(
        method,
        similarity,
        k,
        len(reached),
        _over(reached),
        _over(changes),
        _over(reductions),
        missing,
    )


def _over(found: Mapping[str, Seeds]) -> Spread | None:
    """The mean over targets of their means over seeds; the spread is over the seeds that all targets have."""
    if not found:
        return None
    common = set.intersection(*(set(seeds) for seeds in found.values()))
    means = [fmean(seeds[seed] for seeds in found.values()) for seed in sorted(common)]
    return Spread(
        fmean(fmean(seeds.values()) for seeds in found.values()),
        stdev(means) if len(means) > 1 else None,
        len(means),
    )
