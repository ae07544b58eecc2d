"""Expectations about transfers: pairs that help, tasks that are alike, retrieval.

All but the first read the `report.json` of `study report` as `analysis`.
"""

import random
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

from ..study.claims import Expectation, Selector
from .compare import compare
from .findings import HELD, NOT_HELD, NOT_RUN, TOO_WEAK, Finding, select, weak
from .runs import Runs
from .spread import SIGNIFICANCE, grouped, holm

SHUFFLES = 2000
FEWEST_TARGETS = 5
"""Fewer say nothing about retrieval."""


def _pairs(part: Expectation, runs: Runs, analysis: Mapping[str, Any]) -> Finding:
    """At least one source `helps` (or `hurts`) a target, corrected for all pairs; with a
    percentage, as many do before the correction."""
    value = part.value if isinstance(part.value, Mapping) else {part.value: 0}
    ((effect, share),) = value.items()
    helps = effect == "helps"
    baseline = select(Selector(), runs)
    transfers = [
        run
        for run in runs.records
        if run.stage == "transfer" and run.scores and run.task in (part.tasks or (run.task,))
    ]
    tests: list[tuple[float, float]] = []
    pairs = grouped(((run.arm.get("source"), run.task), run) for run in transfers)
    for (_, task), found in pairs.items():
        strong = not all(weak(runs, arm, task) for arm in (found, baseline))
        difference = compare(runs, found, baseline, [task]) if strong else None
        # a permutation of few seeds cannot give a small p, whatever the scores
        if (
            difference is not None
            and difference["p"] is not None
            and (difference["over"] == "rows" or 0.5 ** (difference["pairs"] - 1) < SIGNIFICANCE)
        ):
            tests.append((difference["difference"], difference["p"]))
    if not tests:
        untested = "no pair above the majority class has enough seeds for a test"
        reason = untested if transfers else "not run"
        verdict = TOO_WEAK if transfers else NOT_RUN
        name = "help" if helps else "hurt"
        return Finding(verdict, f"source-target pairs that {name}: {reason}")
    corrected = holm([p for _, p in tests])
    clear = sum(
        p < SIGNIFICANCE and (d > 0) == helps for (d, _), p in zip(tests, corrected, strict=True)
    )
    raw = sum(p < SIGNIFICANCE and (d > 0) == helps for d, p in tests)
    verdict = TOO_WEAK if raw > SIGNIFICANCE / 2 * len(tests) else NOT_HELD
    if clear and 100 * raw >= share * len(tests):
        verdict = HELD
    sentence = (
        f"{clear} of {len(tests)} source-target pairs are significantly "
        f"{'better' if helps else 'worse'} than no transfer ({raw} before correction): {verdict}"
    )
    return Finding(verdict, sentence, float(clear), pairs=len(tests))


def _alike(part: Expectation, runs: Runs, analysis: Mapping[str, Any]) -> Finding:
    """Task embeddings are more similar inside groups of tasks than across them."""
    similarities = analysis.get("similarities") or {}
    if not similarities:
        return Finding(NOT_RUN, "similarity inside groups of tasks: no report with task embeddings")
    name, values = next(iter(similarities.items()))
    index = {task: i for i, task in enumerate(values["tasks"])}
    groups = {t: group for group, tasks in dict(part.value).items() for t in tasks if t in index}
    tasks = list(groups)

    def gap(labels: Sequence[str]) -> float | None:
        inside, across = list[float](), list[float]()
        for (a, one), (b, other) in combinations(zip(tasks, labels, strict=True), 2):
            (inside if one == other else across).append(values["matrix"][index[a]][index[b]])
        return fmean(inside) - fmean(across) if inside and across else None

    labels = list(groups.values())
    observed = gap(labels)
    if observed is None:
        return Finding(TOO_WEAK, "similarity inside groups of tasks: too few of them")
    generator, larger = random.Random(0), 1
    for _ in range(SHUFFLES):
        larger += (gap(generator.sample(labels, len(labels))) or 0.0) >= observed
    p = larger / (SHUFFLES + 1)
    verdict = HELD if p < SIGNIFICANCE else NOT_HELD if observed <= 0 else TOO_WEAK
    shown = f"p = {p:.3f}" if p >= 0.001 else "p < 0.001"
    sentence = (
        f"{name.replace('_', ' ')} inside groups minus across them {observed:+.3f} over "
        f"{len(tasks)} tasks (permutation test, {shown}): {verdict}"
    )
    return Finding(verdict, sentence, observed, p=p, pairs=len(tasks))


def _closer(part: Expectation, runs: Runs, analysis: Mapping[str, Any]) -> Finding:
    """A task's embedding is more similar to those of some tasks than to those of others."""
    similarities = analysis.get("similarities") or {}
    task, to, than = (part.value[name] for name in ("task", "to", "than"))
    name = f"{task} closer to {', '.join(to)} than to {', '.join(than)}"
    if not similarities:
        return Finding(NOT_RUN, f"{name}: no report with task embeddings")
    measure, values = next(iter(similarities.items()))
    index = {known: i for i, known in enumerate(values["tasks"])}
    sides = [
        [values["matrix"][index[task]][index[other]] for other in others if other in index]
        for others in (to, than)
        if task in index
    ]
    if len(sides) < 2 or not all(sides):
        return Finding(TOO_WEAK, f"{name}: it was not embedded with them")
    near, far = map(fmean, sides)
    verdict = HELD if near > far else NOT_HELD
    sentence = f"{name}: {measure.replace('_', ' ')} {near:.3f} against {far:.3f}: {verdict}"
    return Finding(verdict, sentence, near - far)


def _correlates(part: Expectation, runs: Runs, analysis: Mapping[str, Any]) -> Finding:
    """Similarity and error reduction correlate over the sources' means, on that many targets."""
    tables = analysis.get("correlations") or {}
    if not tables:
        return Finding(NOT_RUN, "similarity against transfer: no report with task embeddings")
    best, name, strong = -1, "", 0
    for similarity, rows in tables.items():
        known = [row for row in rows if not row["weak"] and row["pearson_of_sources_p"] is not None]
        clear = sum(
            row["pearson_of_sources"] > 0 and row["pearson_of_sources_p"] < SIGNIFICANCE
            for row in known
        )
        if clear > best:
            best, name, strong = clear, similarity, len(known)
    wanted = int(part.value)
    verdict = HELD if best >= wanted else TOO_WEAK if strong < wanted else NOT_HELD
    sentence = (
        f"similarity ({name.replace('_', ' ')}) predicts transfer on {best} of {strong} targets "
        f"that are not too weak, over the sources' means: {verdict}"
    )
    return Finding(verdict, sentence, float(best), pairs=strong)


def _retrieval(part: Expectation, runs: Runs, analysis: Mapping[str, Any]) -> Finding:
    """The best of the k most similar sources beats no transfer, and the best of k at random; or,
    with `oracle`, it reaches that percentage of the gain of the best of all."""
    rows = analysis.get("retrieval") or []
    known = {(row["method"], row["similarity"], row["k"]): row for row in rows}
    share = part.value["oracle"] if isinstance(part.value, Mapping) else None
    k = int(part.value if share is None else part.value["k"])
    random_k = known.get(("best of k at random", None, k))
    top = [
        row for (method, _, rank), row in known.items() if method == "best of top-k" and rank == k
    ]
    top = [row for row in top if row["change"] is not None]
    if not top or random_k is None or random_k["change"] is None:
        reason = "no target is strong enough" if analysis.get("targets") else "no report"
        verdict = TOO_WEAK if analysis.get("targets") else NOT_RUN
        return Finding(verdict, f"best of the {k} most similar sources: {reason}")
    row = max(top, key=lambda row: row["change"])
    if share is not None:
        return _share_of_oracle(row, known.get(("oracle", None, None)), share)
    p = row.get("p_paired")  # which older reports lack
    verdict = TOO_WEAK
    if row["targets"] >= FEWEST_TARGETS and row["change"] <= random_k["change"]:
        verdict = NOT_HELD
    elif row["change"] > random_k["change"] and p is not None and p < SIGNIFICANCE:
        verdict = HELD if row["change"] > 0 else NOT_HELD
    sentence = (
        f"best of the {k} most similar sources {row['change']:+.1f} points, of {k} at random "
        f"{random_k['change']:+.1f}, over {row['targets']} targets: {verdict}"
    )
    return Finding(verdict, sentence, row["change"], p=p, pairs=row["targets"])


def _share_of_oracle(
    row: Mapping[str, Any], oracle: Mapping[str, Any] | None, share: float
) -> Finding:
    """Whether a row of the retrieval table reaches a percentage of the oracle's gain."""
    best = None if oracle is None else oracle["change"]
    name = f"best of the {row['k']} most similar sources {row['change']:+.1f} points"
    if best is None or best <= 0:
        return Finding(TOO_WEAK, f"{name}: the best of all sources gains nothing")
    reached, enough = 100 * row["change"] / best, row["targets"] >= FEWEST_TARGETS
    verdict = TOO_WEAK if not enough else HELD if reached >= share else NOT_HELD
    sentence = (
        f"{name}, {reached:.0f} % of the gain of the best of all ({best:+.1f}), over "
        f"{row['targets']} targets: {verdict}"
    )
    return Finding(verdict, sentence, row["change"], pairs=row["targets"])


TRANSFER_FINDINGS = {
    "pairs": _pairs,
    "alike": _alike,
    "closer": _closer,
    "correlates": _correlates,
    "retrieval": _retrieval,
}
