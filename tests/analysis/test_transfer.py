"""The numbers of a transfer study, computed by hand and with scipy."""

import math
import random
from statistics import fmean
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from softprompts.analysis.retrieval import retrieval_table
from softprompts.analysis.transfer import Scores, Similarities, correlation
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


def test_a_cell_has_a_mean_over_seeds_and_an_error_reduction() -> None:
    scores = Scores(
        study({None: [68.0, 70.0, 72.0], "mnli": [79.0, 82.0, 85.0], "sst2": [70.0, 64.0, 70.0]})
    )
    mnli, sst2 = scores.cells
    assert mnli.score is not None
    assert mnli.reduction is not None
    assert (mnli.score.mean, mnli.score.std, mnli.score.runs) == (82.0, 3.0, 3)
    assert mnli.score.standard_error == pytest.approx(3 / math.sqrt(3))
    assert mnli.reduction.mean == pytest.approx(40.0), "12 of the 30 points that the baseline left"
    assert mnli.reduction.std == pytest.approx(10.0)
    assert mnli.p == pytest.approx(
        stats.ttest_ind([68, 70, 72], [79, 82, 85], equal_var=False).pvalue
    )
    assert mnli.significant, "12 points apart, the difference's standard error is 2.1"
    assert sst2.reduction is not None
    assert sst2.reduction.mean == pytest.approx(-20 / 3)
    assert not sst2.significant


def test_few_seeds_are_uncertain() -> None:
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
    assert not two.significant, (
        "4.5 points are over two standard errors, which is common by chance with three seeds a side"
    )
    assert (same.p, one.p, one.significant) == (1.0, None, False)
    (constant,) = Scores(study({None: [70.0, 70.0], "mnli": [72.0, 72.0]})).cells
    assert (constant.p, constant.significant) == (None, False), "without variance, no p value"


def test_a_difference_is_paired_over_rows_if_their_scores_are_known_and_else_over_seeds() -> None:
    right, wrong = [100.0] * 20, [100.0] * 10 + [0.0] * 10
    records = study({None: [50.0], "mnli": [100.0]})
    rows = [{**record, "row_scores": right if record["source"] else wrong} for record in records]
    (cell,) = Scores(rows).cells
    assert cell.paired is not None
    assert (cell.paired.over, cell.paired.pairs) == ("rows", 20)
    assert cell.paired.p == pytest.approx(2 / 2**10), "the exact McNemar test: 10 of 10 rows better"
    assert cell.p is None
    assert cell.significant, "with one seed, by the rows"
    (unknown,) = Scores(records).cells
    assert unknown.paired is None, "one seed says nothing"
    (seeds,) = Scores(study({None: [50.0, 52.0, 54.0], "mnli": [60.0, 60.0, 70.0]})).cells
    assert seeds.paired is not None
    assert (seeds.paired.over, seeds.paired.pairs) == ("seeds", 3)
    assert str(cell.paired) == "p = 0.002, 20 rows"


def test_a_perfect_baseline_has_no_error_to_reduce() -> None:
    (cell,) = Scores(study({None: [100.0, 100.0], "mnli": [99.0, 100.0]})).cells
    assert cell.reduction is None
    assert cell.score is not None


@pytest.mark.parametrize(
    ("baseline", "majority", "rows", "error", "weak"),
    [
        # 9.9 above, and two errors are 10.0
        ([59.0, 61.0], 50.1, 100, math.hypot(100 * math.sqrt(0.6 * 0.4 / 100), 1.0), True),
        ([59.0, 61.0], 49.9, 100, math.hypot(100 * math.sqrt(0.6 * 0.4 / 100), 1.0), False),
        # one seed: only the error over rows is known
        ([60.0], 50.0, 10000, 100 * math.sqrt(0.6 * 0.4 / 10000), False),
        # far below the majority class
        ([30.0, 30.0], 60.0, 1000, 100 * math.sqrt(0.3 * 0.7 / 1000), True),
        # a Matthews correlation of 0.05
        ([5.0, 5.0], 0.0, 1043, 100 * (1 - 0.05**2) / math.sqrt(1043), True),
        ([10.0, 10.0], 0.0, 1043, 100 * (1 - 0.1**2) / math.sqrt(1043), False),
    ],
)
def test_a_target_near_its_majority_class_is_too_weak(
    baseline: list[float | None], majority: float, rows: int, error: float, weak: bool
) -> None:
    target = Scores(study({None: baseline}, majority=majority, rows=rows)).targets["rte"]
    assert target.standard_error == pytest.approx(error)
    assert target.weak is weak


def test_a_source_is_weak_by_its_own_runs_and_rows() -> None:
    own_runs = [
        {**record("mnli", "", seed, score, 33.0, 900), "target": None, "metric": "accuracy"}
        for seed, score in enumerate((34.0, 36.0))
    ]
    scores = Scores(
        [*study({None: [60.0, 70.0], "mnli": [72.0, 80.0], "sst2": [66.0, 58.0]}), *own_runs]
    )
    mnli = scores.source_scores["mnli"]
    assert mnli.score is not None
    assert (mnli.score.mean, mnli.majority, mnli.rows, mnli.metric) == (35.0, 33.0, 900, "accuracy")
    assert mnli.standard_error == pytest.approx(math.hypot(100 * math.sqrt(0.35 * 0.65 / 900), 1.0))
    assert mnli.weak, "2 points above, and two errors are 3.8"
    assert scores.source_scores["sst2"].score is None, "there are no records of its own runs"
    assert list(scores.targets) == ["rte"]
    assert scores.missing == {"baselines": 0, "cells": 0}


def test_unfinished_cells_are_counted() -> None:
    records = study({None: [60.0, 62.0], "mnli": [70.0, None], "rte": [61.0, math.nan]})
    scores = Scores([*records, record(None, "cb", 0, None), record("mnli", "cb", 1, None)])
    assert scores.missing == {"baselines": 2, "cells": 4 - 1 + 2}, (
        "both of cb; mnli to rte, both of mnli to cb, both of rte to cb; rte to rte none"
    )
    assert scores.expected == 2 * 2 + 3 * 2
    assert [cell.score and cell.score.runs for cell in scores.cells] == [1, None, 1, None]
    assert scores.targets["cb"].weak, "without a baseline there is no verdict"


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


def test_one_seed_has_no_diagonal_and_mixtures_count_all_tokens() -> None:
    flat = embedding("a", 0, [1.0, 0.0], [0.0, 1.0])
    mixture = {
        "task": "b",
        "seed": 0,
        "vectors": torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]),
    }  # [K, P, H]
    (aa, ab), (_, bb) = Similarities([flat, mixture], "per_token_average_cosine").matrix()
    assert (aa, bb) == (None, None)
    assert ab == pytest.approx(0.5)


ROOT = math.sqrt(0.5)
EMBEDDINGS = [
    embedding("rte", 0, [1.0, 0.0]),
    embedding("rte", 1, [0.0, 1.0]),
    embedding("mnli", 0, [1.0, 0.0]),
    embedding("mnli", 1, [ROOT, ROOT]),
    embedding("sst2", 0, [0.0, 1.0]),
    embedding("sst2", 1, [-1.0, 0.0]),
]
# Most similar to rte's seed 0: mnli 0, mnli 1, sst2 0, sst2 1; to its seed 1: sst2 0, mnli 1, and
# then mnli 0 and sst2 1, equally.
RTE: dict[str | None, list[float | None]] = {
    None: [60.0, 70.0],
    "mnli": [72.0, 80.0],
    "sst2": [66.0, 58.0],
}


@pytest.mark.parametrize("name", sorted(SIMILARITIES))
def test_correlation_over_source_prompts_matches_scipy(name: str) -> None:
    scores, similarities = Scores(study(RTE)), Similarities(EMBEDDINGS, name)
    result = correlation(scores, similarities, "rte")
    x, y = [0.5, ROOT, 0.5, -0.5], [100 * (score - 65) / 35 for score in (72, 80, 66, 58)]
    assert [point.similarity for point in result.points] == pytest.approx(x)
    assert [point.reduction for point in result.points] == pytest.approx(y)
    assert (result.pearson, result.pearson_p) == pytest.approx(tuple(stats.pearsonr(x, y)))
    rank = stats.spearmanr(x, y)
    assert (result.spearman, result.spearman_p) == pytest.approx((rank.statistic, rank.pvalue))


def test_the_means_of_the_sources_are_correlated_too() -> None:
    """Three sources are three points, however many seeds there are."""
    embeddings = [*EMBEDDINGS, embedding("qqp", 0, [0.6, 0.8]), embedding("qqp", 1, [0.8, 0.6])]
    scores, similarities = (
        Scores(study(RTE | {"qqp": [68.0, 75.0]})),
        Similarities(embeddings, "per_token_average_cosine"),
    )
    result = correlation(scores, similarities, "rte")
    x, y = [(0.5 + ROOT) / 2, 0.0, 0.7], [100 * (score - 65) / 35 for score in (76, 62, 71.5)]
    assert (len(result.points), result.sources) == (6, 3)
    assert (result.pearson_of_sources, result.pearson_of_sources_p) == pytest.approx(
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
    example: tuple[list[dict[str, Any]], list[dict[str, Any]], random.Random],
) -> None:
    records, embeddings, chance = example
    other_records = chance.sample(records, len(records))
    other_embeddings = chance.sample(embeddings, len(embeddings))
    one, other = Scores(records), Scores(other_records)
    assert {(c.source, c.target): c for c in one.cells} == {
        (c.source, c.target): c for c in other.cells
    }
    assert one.missing == other.missing
    assert one.targets == other.targets
    for name in SIMILARITIES:
        first, second = Similarities(embeddings, name), Similarities(other_embeddings, name)
        order = [first.tasks.index(task) for task in second.tasks]
        matrix = first.matrix()
        assert [value for row in second.matrix() for value in row] == pytest.approx(
            [matrix[i][j] for i in order for j in order], abs=1e-12
        )
        tables = [
            retrieval_table(s, [e], [], sorted(s.targets), ks=(1, 2))
            for s, e in ((one, first), (other, second))
        ]
        for a, b in zip(*tables, strict=True):
            assert (a.method, a.k, a.targets, a.missing) == (b.method, b.k, b.targets, b.missing)
            assert (a.score and a.score.mean) == pytest.approx(b.score and b.score.mean)
