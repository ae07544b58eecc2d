"""The numbers of a transfer study, by hand and against scipy."""

import itertools
import math
import random
from statistics import fmean, stdev
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from softprompts.analysis.retrieval import best_of_top, best_source, expected_best, retrieval_table
from softprompts.analysis.transfer import Scores, Similarities, correlation
from softprompts.errors import UserError
from softprompts.library.search import SIMILARITIES

from ..conftest import golden


def record(
    source: str | None,
    target: str,
    seed: int,
    score: float | None,
    majority: float = 50.0,
    rows: int = 400,
) -> dict[str, Any]:
    return {
        "source": source,
        "target": target,
        "seed": seed,
        "score": score,
        "majority": majority,
        "rows": rows,
    }


def study(
    names: dict[str | None, list[float | None]],
    target: str = "rte",
    majority: float = 50.0,
    rows: int = 400,
) -> list[dict[str, Any]]:
    """Records of one target: scores by source, seed after seed."""
    return [
        record(source, target, seed, score, majority, rows)
        for source, scores in names.items()
        for seed, score in enumerate(scores)
    ]


def embedding(task: str, seed: int, *tokens: list[float]) -> dict[str, Any]:
    return {"task": task, "seed": seed, "vectors": torch.tensor(tokens)}


def test_a_cell_is_a_mean_over_seeds_and_an_error_reduction() -> None:
    scores = Scores(
        study({None: [68.0, 70.0, 72.0], "mnli": [79.0, 82.0, 85.0], "sst2": [70.0, 64.0, 70.0]})
    )
    mnli, sst2 = scores.cells
    assert mnli.score is not None
    assert mnli.reduction is not None
    assert (mnli.score.mean, mnli.score.std, mnli.score.runs) == (82.0, 3.0, 3)
    assert mnli.score.error == pytest.approx(3 / math.sqrt(3))
    assert mnli.reduction.mean == pytest.approx(40.0), "12 of the 30 points that the baseline left"
    assert mnli.reduction.std == pytest.approx(10.0)
    assert mnli.p == pytest.approx(
        stats.ttest_ind([68, 70, 72], [79, 82, 85], equal_var=False).pvalue
    )
    assert mnli.clear, "12 points apart, the difference's standard error is 2.1"
    assert sst2.reduction is not None
    assert sst2.reduction.mean == pytest.approx(-20 / 3)
    assert not sst2.clear


def test_few_seeds_are_let_be_uncertain() -> None:
    scores = Scores(
        study(
            {
                None: [68.0, 70.0, 72.0],
                "two errors": [71.5, 74.5, 77.5],
                "same": [70.0, 70.0, 70.0],
                "one": [90.0],
            }
        )
    )
    two, same, one = scores.cells
    assert two.p == pytest.approx(
        stats.ttest_ind([68, 70, 72], [71.5, 74.5, 77.5], equal_var=False).pvalue
    )
    assert not two.clear, (
        "4.5 points apart is over two standard errors of the difference, which three seeds a side often are by chance"
    )
    assert (same.p, one.p, one.clear) == (1.0, None, False)
    (constant,) = Scores(study({None: [70.0, 70.0], "mnli": [72.0, 72.0]})).cells
    assert (constant.p, constant.clear) == (None, False), (
        "where seeds do not differ at all, nothing tells what chance would give"
    )


def test_nothing_is_left_to_reduce_over_a_perfect_baseline() -> None:
    (cell,) = Scores(study({None: [100.0, 100.0], "mnli": [99.0, 100.0]})).cells
    assert cell.reduction is None
    assert cell.score is not None


@pytest.mark.parametrize(
    ("baseline", "majority", "rows", "error", "weak"),
    [
        (
            [59.0, 61.0],
            50.1,
            100,
            math.hypot(100 * math.sqrt(0.6 * 0.4 / 100), 1.0),
            True,
        ),  # 9.9 over, two errors are 10.0
        ([59.0, 61.0], 49.9, 100, math.hypot(100 * math.sqrt(0.6 * 0.4 / 100), 1.0), False),
        (
            [60.0],
            50.0,
            10000,
            100 * math.sqrt(0.6 * 0.4 / 10000),
            False,
        ),  # one seed: only the rows' part is known
        (
            [30.0, 30.0],
            60.0,
            1000,
            100 * math.sqrt(0.3 * 0.7 / 1000),
            True,
        ),  # far below the majority class is not solved either
        (
            [5.0, 5.0],
            0.0,
            1043,
            100 * (1 - 0.05**2) / math.sqrt(1043),
            True,
        ),  # a Matthews correlation of 0.05, as likely chance as not
        ([10.0, 10.0], 0.0, 1043, 100 * (1 - 0.1**2) / math.sqrt(1043), False),
    ],
)
def test_a_target_near_its_majority_class_is_too_weak(
    baseline: list[float | None], majority: float, rows: int, error: float, weak: bool
) -> None:
    target = Scores(study({None: baseline}, majority=majority, rows=rows)).targets["rte"]
    assert target.error == pytest.approx(error)
    assert target.weak is weak


def test_a_source_is_judged_by_its_own_runs_and_rows_by_the_same_rule() -> None:
    own = [
        {**record("mnli", "", seed, score, 33.0, 900), "target": None, "metric": "accuracy"}
        for seed, score in enumerate((34.0, 36.0))
    ]
    scores = Scores(
        [*study({None: [60.0, 70.0], "mnli": [72.0, 80.0], "sst2": [66.0, 58.0]}), *own]
    )
    mnli = scores.own["mnli"]
    assert mnli.score is not None
    assert (mnli.score.mean, mnli.majority, mnli.rows, mnli.metric) == (35.0, 33.0, 900, "accuracy")
    assert mnli.error == pytest.approx(math.hypot(100 * math.sqrt(0.35 * 0.65 / 900), 1.0))
    assert mnli.weak, "2 points over, two errors are 3.8"
    assert scores.own["sst2"].score is None, "its own runs were not told"
    assert list(scores.targets) == ["rte"]
    assert scores.missing == {"baselines": 0, "cells": 0}


def test_unfinished_cells_are_counted_and_none_is_told_twice() -> None:
    records = study({None: [60.0, 62.0], "mnli": [70.0, None], "rte": [61.0, math.nan]})
    scores = Scores([*records, record(None, "cb", 0, None), record("mnli", "cb", 1, None)])
    assert scores.missing == {"baselines": 2, "cells": 4 - 1 + 2}, (
        "both of cb; mnli to rte, both of mnli to cb, both of rte to cb; rte to rte none"
    )
    assert scores.expected == 2 * 2 + 3 * 2
    assert [cell.score and cell.score.runs for cell in scores.cells] == [1, None, 1, None]
    assert scores.targets["cb"].weak, "without a baseline there is no verdict"
    with pytest.raises(UserError, match="source mnli, target rte, seed 0 is told twice"):
        Scores([*records, record("mnli", "rte", 0, 71.0)])


@pytest.mark.parametrize("name", sorted(SIMILARITIES))
def test_similarities_are_means_over_all_pairs_of_runs(name: str) -> None:
    spot = golden("spot_similarity")
    prompts = [torch.tensor(prompt, dtype=torch.float64) for prompt in spot["prompts"]]
    runs = [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    similarities = Similarities(
        [
            {"task": task, "seed": seed, "vectors": p}
            for (task, seed), p in zip(runs, prompts, strict=True)
        ],
        name,
    )
    pairs = spot[name]
    across = fmean([pairs[0][2], pairs[0][3], pairs[1][2], pairs[1][3]])
    (aa, ab), (ba, bb) = similarities.matrix()
    assert [aa, ab, ba, bb] == pytest.approx(
        [pairs[0][1], across, across, pairs[2][3]], abs=1e-12
    ), "a run is not compared with itself"
    assert similarities.to_target(("a", 1), "b") == pytest.approx(fmean(pairs[1][2:4]), abs=1e-12)


def test_one_seed_says_nothing_of_its_own_task_and_mixtures_count_all_tokens() -> None:
    flat = embedding("a", 0, [1.0, 0.0], [0.0, 1.0])
    mixture = {
        "task": "b",
        "seed": 0,
        "vectors": torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]),
    }  # [K, P, H]
    (aa, ab), (_, bb) = Similarities([flat, mixture], "per_token_average_cosine").matrix()
    assert (aa, bb) == (None, None)
    assert ab == pytest.approx(0.5)
    with pytest.raises(UserError, match="no similarity euclid; choose one of"):
        Similarities([flat], "euclid")


ROOT = math.sqrt(0.5)
EMBEDDINGS = [
    embedding("rte", 0, [1.0, 0.0]),
    embedding("rte", 1, [0.0, 1.0]),
    embedding("mnli", 0, [1.0, 0.0]),
    embedding("mnli", 1, [ROOT, ROOT]),
    embedding("sst2", 0, [0.0, 1.0]),
    embedding("sst2", 1, [-1.0, 0.0]),
]
# Similar to rte's seed 0: mnli 0, mnli 1, sst2 0, sst2 1; to its seed 1: sst2 0, mnli 1, then mnli 0 and sst2 1 alike.
RTE: dict[str | None, list[float | None]] = {
    None: [60.0, 70.0],
    "mnli": [72.0, 80.0],
    "sst2": [66.0, 58.0],
}


@pytest.mark.parametrize("name", sorted(SIMILARITIES))
def test_correlation_is_scipys_over_source_prompts(name: str) -> None:
    scores, similarities = Scores(study(RTE)), Similarities(EMBEDDINGS, name)
    found = correlation(scores, similarities, "rte")
    x, y = [0.5, ROOT, 0.5, -0.5], [100 * (score - 65) / 35 for score in (72, 80, 66, 58)]
    assert [point.similarity for point in found.points] == pytest.approx(x)
    assert [point.reduction for point in found.points] == pytest.approx(y)
    assert (found.pearson, found.pearson_p) == pytest.approx(tuple(stats.pearsonr(x, y)))
    rank = stats.spearmanr(x, y)
    assert (found.spearman, found.spearman_p) == pytest.approx((rank.statistic, rank.pvalue))


def test_the_sources_means_are_correlated_beside_their_prompts() -> None:
    """Many prompts of three sources are three points, however many seeds there are."""
    embeddings = [*EMBEDDINGS, embedding("qqp", 0, [0.6, 0.8]), embedding("qqp", 1, [0.8, 0.6])]
    scores, similarities = (
        Scores(study(RTE | {"qqp": [68.0, 75.0]})),
        Similarities(embeddings, "per_token_average_cosine"),
    )
    found = correlation(scores, similarities, "rte")
    x, y = [(0.5 + ROOT) / 2, 0.0, 0.7], [100 * (score - 65) / 35 for score in (76, 62, 71.5)]
    assert (len(found.points), found.sources) == (6, 3)
    assert (found.pearson_of_sources, found.pearson_of_sources_p) == pytest.approx(
        tuple(stats.pearsonr(x, y))
    )
    assert correlation(Scores(study(RTE)), similarities, "rte").pearson_of_sources is None, (
        "two points always lie on a line"
    )


def test_correlation_is_undefined_for_two_points_or_a_constant_or_the_task_itself() -> None:
    similarities = Similarities(EMBEDDINGS, "cosine_of_average_tokens")
    assert (
        correlation(
            Scores(study({None: [60.0, 70.0], "mnli": [72.0, 80.0]})), similarities, "rte"
        ).pearson
        is None
    )
    constant: dict[str | None, list[float | None]] = {
        None: [60.0, 70.0],
        "mnli": [70.0, 70.0],
        "sst2": [70.0, 70.0],
    }
    assert correlation(Scores(study(constant)), similarities, "rte").pearson is None
    assert (
        len(correlation(Scores(study(RTE | {"rte": [90.0, 90.0]})), similarities, "rte").points)
        == 4
    )


def test_best_of_top_k_chooses_by_similarity_then_by_score() -> None:
    similarities = Similarities(EMBEDDINGS, "per_token_average_cosine")
    scores = Scores(study(RTE | {"rte": [99.0, 99.0]}))
    assert best_of_top(scores, similarities, "rte", 1) == ({0: 72.0, 1: 66.0}, 0)
    assert best_of_top(scores, similarities, "rte", 2) == ({0: 80.0, 1: 80.0}, 0)
    gap = Scores(study(RTE | {"mnli": [72.0, None]}))
    assert best_of_top(gap, similarities, "rte", 2) == ({0: 72.0, 1: 66.0}, 2)


def test_expected_best_is_the_mean_over_all_draws() -> None:
    scores = [random.Random(1).uniform(0, 100) for _ in range(7)]
    for k in range(1, 8):
        assert expected_best(scores, k) == pytest.approx(
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
    found = {(row.method, row.k): row for row in rows}

    def told(method: str, k: int | None) -> tuple[float, float, float, float | None]:
        row = found[method, k]
        assert row.targets == 2
        assert row.score is not None
        assert row.change is not None
        assert row.reduction is not None
        return row.score.mean, row.change.mean, row.reduction.mean, row.score.std

    assert told("baseline", None) == pytest.approx((72.5, 0, 0, stdev([70, 75])))
    # rte 72 and 66 (b 65), cb 90 and 90 (b 80)
    assert told("best of top-k", 1) == pytest.approx(
        (79.5, 7, (100 * 4 / 35 + 50) / 2, stdev([81, 78]))
    )
    assert told("best of k at random", 1) == pytest.approx(
        (fmean([69, 83.75]), 3.875, (100 * 4 / 35 + 18.75) / 2, None)
    )
    assert told("weighted average", 2) == pytest.approx(
        (79, 6.5, (100 * 6 / 35 + 35) / 2, stdev([80, 78]))
    )
    # mnli: rte 72 and 80, cb 90 and 85
    single = "best single source for all targets"
    assert found[single, None].source == "mnli"
    assert told(single, None) == pytest.approx(
        (81.75, 9.25, (100 * 11 / 35 + 37.5) / 2, stdev([81, 82.5]))
    )
    assert told("oracle", None) == pytest.approx((85, 12.5, (100 * 15 / 35 + 50) / 2, None))
    assert {row.missing for row in rows} == {0}


def test_the_best_single_source_is_best_over_all_targets_and_not_its_own() -> None:
    rte = study(RTE | {"cb": [90.0, 90.0]})  # +11 by mnli, -3 by sst2, +25 by cb
    cb = study(
        {None: [50.0, 50.0], "mnli": [40.0, 40.0], "sst2": [70.0, 70.0], "cb": [99.0, 99.0]}, "cb"
    )  # -10, +20
    scores = Scores(rte + cb)
    assert best_source(scores, ["rte"]) == "cb"
    assert best_source(scores, ["cb"]) == "sst2", "a task does not teach itself"
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


def test_retrieval_of_an_unfinished_study_compares_like_with_like() -> None:
    """A target without scores for a method does not move that method's change."""
    cb: dict[str | None, list[float | None]] = {None: [80.0, 80.0], "mnli": [None, None]}
    scores = Scores(study(RTE | {"sst2": [66.0, None]}) + study(cb, "cb"))
    oracle = retrieval_table(scores, [], [], ["rte", "cb"])[-1]
    assert oracle.targets == 1
    assert oracle.missing == 1 + 2 + 2
    assert oracle.change is not None
    assert oracle.change.mean == pytest.approx(15)


@st.composite
def studies(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]], random.Random]:
    sources, targets = (
        [f"s{i}" for i in range(draw(st.integers(2, 4)))],
        [f"t{i}" for i in range(draw(st.integers(1, 3)))],
    )
    seeds = range(draw(st.integers(1, 3)))
    chance = draw(st.randoms(use_true_random=False))
    score = st.none() | st.floats(0, 99)
    records = [
        record(source, target, seed, draw(score))
        for source in [None, *sources]
        for target in targets
        for seed in seeds
    ]
    vectors = torch.Generator().manual_seed(chance.randrange(1000))
    embeddings = [
        {"task": t, "seed": s, "vectors": torch.randn(3, 4, generator=vectors)}
        for t in sources + targets
        for s in seeds
    ]
    return records, embeddings, chance


@settings(max_examples=30, deadline=None)
@given(studies())
def test_the_order_of_tasks_changes_no_number(
    made: tuple[list[dict[str, Any]], list[dict[str, Any]], random.Random],
) -> None:
    records, embeddings, chance = made
    other_records, other_embeddings = (
        chance.sample(records, len(records)),
        chance.sample(embeddings, len(embeddings)),
    )
    one, other = Scores(records), Scores(other_records)
    assert {(c.source, c.target): c for c in one.cells} == {
        (c.source, c.target): c for c in other.cells
    }
    assert one.missing == other.missing
    assert one.targets == other.targets
    for name in SIMILARITIES:
        here, there = Similarities(embeddings, name), Similarities(other_embeddings, name)
        order = [here.tasks.index(task) for task in there.tasks]
        matrix = here.matrix()
        assert [value for row in there.matrix() for value in row] == pytest.approx(
            [matrix[i][j] for i in order for j in order], abs=1e-12
        )
        tables = [
            retrieval_table(s, [e], [], sorted(s.targets), ks=(1, 2))
            for s, e in ((one, here), (other, there))
        ]
        for a, b in zip(*tables, strict=True):
            assert (a.method, a.k, a.targets, a.missing) == (b.method, b.k, b.targets, b.missing)
            assert (a.score and a.score.mean) == pytest.approx(b.score and b.score.mean)


@settings(max_examples=30, deadline=None)
@given(studies())
def test_more_tries_are_never_worse_and_the_oracle_is_best(
    made: tuple[list[dict[str, Any]], list[dict[str, Any]], random.Random],
) -> None:
    records, embeddings, _ = made
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
