"""Score against model size: where the points stand, and what is told where something is missing."""

import math
from typing import Any

import pytest
from matplotlib.axes import Axes

from softprompts.analysis.sizes import by_size, score_by_size

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
    found = drawn_lines(axes)
    assert len(found) == 4
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    scores = dict(zip(names, (y for _, y in found), strict=True))
    assert scores["prompt, no transfer"] == [60, 70, 80]
    assert scores["prompt, from glue"] == [61, 71, 81]
    assert math.isnan(scores["model, from glue"][2]), "a mean that is not there yet is a gap"
    for places, _ in found:
        assert places == pytest.approx([math.log10(size) for size in SIZES.values()], abs=0.05)
    assert len({places[0] for places, _ in found}) == 4, "bars stand beside each other"
    labels = [label.get_text() for label in ticks(axes.xaxis, axes.get_xlim())]
    assert labels == ["t5-small-lm-adapt\n77M", "t5-base-lm-adapt\n248M", "t5-xxl-lm-adapt\n11B"]
    bar = axes.containers[0].lines[2][0].get_segments()[0]
    assert bar[1][1] - bar[0][1] == pytest.approx(3.0), "one standard deviation to either side"


@pytest.mark.parametrize(
    "sizes",
    [{}, dict.fromkeys(SIZES, 7), {"google/t5-base-lm-adapt": 5}],
    ids=["none", "alike", "some"],
)
def test_backbones_of_unknown_or_equal_size_stand_side_by_side(sizes: dict[str, int]) -> None:
    rows = by_size(TABLE, sizes)
    assert list(dict.fromkeys(row["backbone"] for row in rows)) == list(SIZES)
    for places, _ in drawn_lines(score_by_size(rows).axes[0]):
        assert places == pytest.approx([0, 1, 2], abs=0.05)


def test_rows_are_by_size_with_their_numbers() -> None:
    rows = by_size([*reversed(TABLE)], SIZES)
    assert [row["parameters"] for row in rows] == [
        size for size in SIZES.values() for _ in range(4)
    ]
    assert rows[-1].keys() == {"parameters", "backbone", "variant", "source", "score", "score_std"}
    assert {(row["score"], row["score_std"]) for row in rows if (row["variant"], row["source"]) == ("prompt", None)} == {
        (60.0, 1.5), (70.0, 1.5), (80.0, 1.5),
    }  # fmt: skip
