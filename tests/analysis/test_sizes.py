"""Score against model size: the positions of the points, also with missing sizes and scores."""

import math
from typing import Any

import pytest
from matplotlib.axes import Axes

from softprompts.analysis.sizes import by_size, score_by_size, score_by_target

from .test_heatmaps import assert_legible, ticks

SIZES = {
    "google/t5-small-lm-adapt": 76_961_152,
    "google/t5-base-lm-adapt": 247_577_856,
    "google/t5-xxl-lm-adapt": 11_135_332_352,
}


def line(backbone: str, variant: str, source: str | None, mean: float | None) -> dict[str, Any]:
    return {
        "backbone": backbone,
        "variant": variant,
        "source": source,
        "mean": None if mean is None else {"mean": mean, "std": 1.5},
    }


TABLE = [
    line(
        backbone,
        variant,
        source,
        None
        if (size, variant, source) == (2, "model", "glue")
        else 60.0 + 10 * size + (source == "glue"),
    )
    for variant in ("prompt", "model")
    for size, backbone in enumerate(SIZES)
    for source in (None, "glue")
]


def drawn_lines(axes: Axes) -> list[tuple[list[float], list[float]]]:
    return [
        (
            [float(x) for x in bars.lines[0].get_xdata()],
            [float(y) for y in bars.lines[0].get_ydata()],
        )
        for bars in axes.containers
    ]


def test_a_line_for_each_variant_and_source_over_the_logarithm_of_sizes() -> None:
    figure = score_by_size(by_size([*reversed(TABLE)], SIZES))
    assert_legible(figure)
    (axes,) = figure.axes
    plotted = drawn_lines(axes)
    assert len(plotted) == 4
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    scores = dict(zip(names, (y for _, y in plotted), strict=True))
    assert scores["prompt, no transfer"] == [60, 70, 80]
    assert scores["prompt, from glue"] == [61, 71, 81]
    assert math.isnan(scores["model, from glue"][2]), "a missing mean is a gap"
    for positions, _ in plotted:
        assert positions == pytest.approx([math.log10(size) for size in SIZES.values()], abs=0.05)
    assert len({positions[0] for positions, _ in plotted}) == 4, "bars stand side by side"
    labels = [label.get_text() for label in ticks(axes.xaxis, axes.get_xlim())]
    assert labels == ["t5-small-lm-adapt\n77M", "t5-base-lm-adapt\n248M", "t5-xxl-lm-adapt\n11B"]
    bar = axes.containers[0].lines[2][0].get_segments()[0]
    assert bar[1][1] - bar[0][1] == pytest.approx(3.0), "one standard deviation to either side"


@pytest.mark.parametrize(
    "sizes",
    [{}, dict.fromkeys(SIZES, 7), {"google/t5-base-lm-adapt": 5}],
    ids=["unknown", "equal", "partly known"],
)
def test_backbones_of_unknown_or_equal_size_stand_side_by_side(sizes: dict[str, int]) -> None:
    rows = by_size(TABLE, sizes)
    assert list(dict.fromkeys(row["backbone"] for row in rows)) == list(SIZES)
    for positions, _ in drawn_lines(score_by_size(rows).axes[0]):
        assert positions == pytest.approx([0, 1, 2], abs=0.05)


def test_rows_are_sorted_by_size() -> None:
    rows = by_size([*reversed(TABLE)], SIZES)
    assert [row["parameters"] for row in rows] == [
        size for size in SIZES.values() for _ in range(4)
    ]
    assert rows[-1].keys() == {"parameters", "backbone", "variant", "source", "score", "score_std"}
    baselines = [row for row in rows if (row["variant"], row["source"]) == ("prompt", None)]
    scores = [(row["score"], row["score_std"]) for row in baselines]
    assert scores == [(60.0, 1.5), (70.0, 1.5), (80.0, 1.5)]


@pytest.mark.parametrize(("std", "title"), [(None, "Scores\n"), (2.0, "Scores, mean and standard")])
def test_scores_by_target_stand_beside_the_majority_class(std: float | None, title: str) -> None:
    names = {"glue/rte": "RTE", "spot_sources/squad": "SQuAD"}
    rows = [
        {
            "backbone": "google/t5-base",
            "variant": variant,
            "targets": {"glue/rte": {"mean": mean, "std": std}, "spot_sources/squad": None},
            "splits": dict.fromkeys(names, "test"),
        }
        for variant, mean in (("base", 60.0), ("slow", 70.0))
    ]
    figure = score_by_target(rows, {"glue/rte": 50.0}, names, "trial, t5-base, 2026-11-16")
    assert_legible(figure)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["RTE", "SQuAD"]
    assert [x for x, _ in drawn_lines(axes)] == [[60.0], [70.0]]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(labels) == ["base", "majority class", "slow"]
    assert axes.get_xlabel() == "score on the test rows"
    assert "trial, t5-base, 2026-11-16" in figure.get_suptitle()
    assert figure.get_suptitle().startswith(title), "of one seed there is no deviation"


def test_sizes_name_tasks_plainly_and_say_what_they_are_of() -> None:
    table = [line(next(iter(SIZES)), "prompt", "spot_sources/squad", 60.0)]
    figure = score_by_size(by_size(table, SIZES), {"spot_sources/squad": "SQuAD"}, "trial, 2026")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["prompt, from SQuAD"]
    assert figure.get_suptitle().endswith("trial, 2026")
