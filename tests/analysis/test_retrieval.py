"""The retrieval table of a transfer study, computed by hand."""

import itertools
import random
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given, settings

from softprompts.analysis.retrieval import best_of_top, best_source, expected_best, retrieval_table
from softprompts.analysis.transfer import Scores, Similarities

from .test_transfer import EMBEDDINGS, RTE, embedding, studies, study


def test_best_of_top_k_selects_by_similarity_then_by_score() -> None:
    similarities = Similarities(EMBEDDINGS, "per_token_average_cosine")
    scores = Scores(study(RTE | {"rte": [99.0, 99.0]}))
    assert best_of_top(scores, similarities, "rte", 1) == ({0: 72.0, 1: 66.0}, 0)
    assert best_of_top(scores, similarities, "rte", 2) == ({0: 80.0, 1: 80.0}, 0)
    gap = Scores(study(RTE | {"mnli": [72.0, None]}))
    assert best_of_top(gap, similarities, "rte", 2) == ({0: 72.0, 1: 66.0}, 2)


def test_sources_are_selected_by_validation_scores_and_scored_on_test_rows() -> None:
    """By the validation score mnli's second prompt is best, and on the test rows sst2's first."""
    validation = {None: [60.0, 60.0], "mnli": [70.0, 90.0], "sst2": [80.0, 60.0]}
    test = {None: [50.0, 52.0], "mnli": [58.0, 62.0], "sst2": [75.0, 57.0]}
    records = [
        {**on_test, "split": "test", "selection": on_validation["score"]}
        for on_test, on_validation in zip(study(test), study(validation), strict=True)
    ]
    scores, similarities = Scores(records), Similarities(EMBEDDINGS, "per_token_average_cosine")
    assert scores.targets["rte"].split == "test"
    assert best_of_top(scores, similarities, "rte", 4) == ({0: 62.0, 1: 62.0}, 0)
    assert best_source(scores, ["rte"]) == "mnli", "by +20 on the validation rows"
    table = retrieval_table(scores, [similarities], [], ["rte"], ks=(1, 4))
    means = {(row.method, row.k): row.score.mean for row in table if row.score is not None}
    assert means["best of k at random", 1] == pytest.approx(fmean([58, 62, 75, 57]))
    assert means["best of k at random", 4] == means["oracle", None] == 62.0
    assert means["baseline", None] == 51.0


def test_a_change_is_tested_over_targets_or_over_the_seeds_of_one() -> None:
    one = study(RTE)
    more = [
        record
        for number in range(8)
        for record in study({None: [50.0, 50.0], "mnli": [60.0 + number, 61.0]}, f"t{number}")
    ]
    (single,) = (r for r in retrieval_table(Scores(one), [], [], ["rte"], ()) if r.source)
    assert single.paired is not None
    assert (single.paired.over, single.paired.pairs) == ("seeds", 2)
    scores = Scores(more)
    baseline, best, oracle = retrieval_table(scores, [], [], list(scores.targets), ())
    assert baseline.paired is None
    for row in (best, oracle):
        assert row.paired is not None
        assert (row.paired.over, row.paired.pairs) == ("targets", 8)
        assert row.paired.p < 0.02, "all eight rise"


def test_expected_best_is_the_mean_over_all_draws() -> None:
    scores = [random.Random(1).uniform(0, 100) for _ in range(7)]
    for k in range(1, 8):
        assert expected_best(sorted(scores), k) == pytest.approx(
            fmean(max(drawn) for drawn in itertools.combinations(scores, k))
        )


def test_retrieval_table_by_hand() -> None:
    cb: dict[str | None, list[float | None]] = {
        None: [80.0, 80.0],
        "mnli": [90.0, 85.0],
        "sst2": [80.0, 80.0],
    }
    records = study(RTE) + study(cb, "cb")
    embeddings = [*EMBEDDINGS, embedding("cb", 0, [1.0, 0.0]), embedding("cb", 1, [1.0, 0.0])]
    tuned = [
        {
            "method": "weighted average",
            "similarity": "per_token_average_cosine",
            "k": 2,
            "target": target,
            "seed": seed,
            "score": score,
        }
        for target, scores in {"rte": [70.0, 72.0], "cb": [90.0, 84.0]}.items()
        for seed, score in enumerate(scores)
    ]
    rows = retrieval_table(
        Scores(records),
        [Similarities(embeddings, "per_token_average_cosine")],
        tuned,
        ["rte", "cb"],
        ks=(1, 2, 9),
    )
    assert [(row.method, row.k) for row in rows] == [
        ("baseline", None),
        ("best of top-k", 1),
        ("best of top-k", 2),
        ("best of k at random", 1),
        ("best of k at random", 2),
        ("weighted average", 2),
        ("best single source for all targets", None),
        ("oracle", None),
    ], "nine of four prompts cannot be tried"
    by_method = {(row.method, row.k): row for row in rows}

    def numbers(method: str, k: int | None) -> tuple[float, float, float, float | None]:
        row = by_method[method, k]
        assert row.targets == 2
        assert row.score is not None
        assert row.change is not None
        assert row.reduction is not None
        return row.score.mean, row.change.mean, row.reduction.mean, row.score.std

    assert numbers("baseline", None) == pytest.approx((72.5, 0, 0, stdev([70, 75])))
    # rte 72 and 66 (b 65), cb 90 and 90 (b 80)
    assert numbers("best of top-k", 1) == pytest.approx(
        (79.5, 7, (100 * 4 / 35 + 50) / 2, stdev([81, 78]))
    )
    assert numbers("best of k at random", 1) == pytest.approx(
        (fmean([69, 83.75]), 3.875, (100 * 4 / 35 + 18.75) / 2, None)
    )
    assert numbers("weighted average", 2) == pytest.approx(
        (79, 6.5, (100 * 6 / 35 + 35) / 2, stdev([80, 78]))
    )
    # mnli: rte 72 and 80, cb 90 and 85
    single = "best single source for all targets"
    assert by_method[single, None].source == "mnli"
    assert numbers(single, None) == pytest.approx(
        (81.75, 9.25, (100 * 11 / 35 + 37.5) / 2, stdev([81, 82.5]))
    )
    assert numbers("oracle", None) == pytest.approx((85, 12.5, (100 * 15 / 35 + 50) / 2, None))
    assert {row.missing for row in rows} == {0}


def test_the_best_single_source_is_best_over_all_other_targets() -> None:
    rte = study(RTE | {"cb": [90.0, 90.0]})  # +11 by mnli, -3 by sst2, +25 by cb
    cb = study(  # -10 by mnli, +20 by sst2
        {None: [50.0, 50.0], "mnli": [40.0, 40.0], "sst2": [70.0, 70.0], "cb": [99.0, 99.0]}, "cb"
    )
    scores = Scores(rte + cb)
    assert best_source(scores, ["rte"]) == "cb"
    assert best_source(scores, ["cb"]) == "sst2", "a task is no source for itself"
    assert best_source(scores, ["rte", "cb"]) == "cb", (
        "+25 on the only other one; sst2 has +8.5 over both"
    )
    by_target = retrieval_table(scores, [], [], ["cb"], chosen_by=["rte", "cb"])[-2]
    assert (by_target.source, by_target.targets, by_target.score) == ("cb", 0, None)
    gap = Scores(
        [
            *study(RTE | {"sst2": [None, None]}),
            *study({None: [50.0], "mnli": [51.0], "sst2": [99.0]}, "cb"),
        ]
    )
    assert best_source(gap, ["rte", "cb"]) == "mnli", "sst2 lacks a target"
    assert best_source(Scores(study({None: [50.0]})), ["rte"]) is None


def test_an_unfinished_study_compares_the_same_targets() -> None:
    """A target without scores for a method does not affect that method's change."""
    cb: dict[str | None, list[float | None]] = {None: [80.0, 80.0], "mnli": [None, None]}
    scores = Scores(study(RTE | {"sst2": [66.0, None]}) + study(cb, "cb"))
    oracle = retrieval_table(scores, [], [], ["rte", "cb"])[-1]
    assert oracle.targets == 1
    assert oracle.missing == 1 + 2 + 2
    assert oracle.change is not None
    assert oracle.change.mean == pytest.approx(15)


@settings(max_examples=30, deadline=None)
@given(studies())
def test_larger_k_is_never_worse_and_the_oracle_is_best(
    example: tuple[list[dict[str, Any]], list[dict[str, Any]], random.Random],
) -> None:
    records, embeddings, _ = example
    scores, similarities = Scores(records), Similarities(embeddings, "per_token_average_cosine")
    everything = len(scores.sources) * len(scores.seeds)
    for target in scores.targets:
        best = [best_of_top(scores, similarities, target, k)[0] for k in range(1, everything + 1)]
        for fewer, more in itertools.pairwise(best):
            assert all(more[seed] >= fewer[seed] for seed in fewer)
        cells = [
            score for source in scores.sources for score in scores.cell(source, target).values()
        ]
        assert set(best[-1].values()) == ({max(cells)} if cells else set())
