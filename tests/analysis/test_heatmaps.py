"""The figures of a transfer study are legible and show the right numbers."""

import random
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from scipy.cluster.hierarchy import cophenet, linkage
from scipy.spatial.distance import squareform

from softprompts.analysis.heatmaps import clusters, error_reductions, save, scatters
from softprompts.analysis.transfer import Correlation, Point

LONG = [f"some-benchmark/a-rather-long-task-{i}" for i in range(26)]
SHORT = [f"t{i}" for i in range(26)]


def render(figure: Figure) -> FigureCanvasAgg:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas


def ticks(axis: Any, limits: tuple[float, float]) -> list[Any]:
    """The visible tick labels."""
    low, high = sorted(limits)
    labels = [
        label
        for tick in axis.get_major_ticks()
        if low <= tick.get_loc() <= high
        for label in (tick.label1, tick.label2)
    ]
    return [label for label in labels if label.get_visible() and label.get_text()]


def assert_legible(figure: Figure, numbers: bool = False) -> None:
    """No text is tiny or cut off, no names of an axis and no titles overlap; `numbers` fit into
    their cells."""
    renderer = render(figure).get_renderer()
    edges = figure.bbox
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        names = [ticks(axes.xaxis, axes.get_xlim()), ticks(axes.yaxis, axes.get_ylim())]
        titles = [axes.title] if axes.get_title() else []
        for text in [*axes.texts, *names[0], *names[1], *titles]:
            box = text.get_window_extent(renderer)
            assert text.get_fontsize() >= 6
            assert edges.x0 <= box.x0 <= box.x1 <= edges.x1, text.get_text()
            assert edges.y0 <= box.y0 <= box.y1 <= edges.y1, text.get_text()
        for labels in names:
            boxes = [label.get_window_extent(renderer) for label in labels]
            assert not any(one.overlaps(other) for one, other in pairwise(boxes))
    boxes = [
        axes.title.get_window_extent(renderer)
        for axes in figure.axes
        if axes.get_visible() and axes.get_title()
    ]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    if numbers:
        assert_numbers_fit(figure, renderer)


def assert_numbers_fit(figure: Figure, renderer: Any) -> None:
    (axes,) = [axes for axes in figure.axes if axes.texts]
    (left, top), (right, bottom) = axes.transData.transform([(0, 0), (1, 1)])
    for text in axes.texts:
        box = text.get_window_extent(renderer)
        assert box.width < 0.95 * (right - left)
        assert box.height < 0.95 * (top - bottom)


def blocks(count: int) -> list[list[float | None]]:
    """Similarities of tasks of which every third is similar."""
    return [
        [
            0.9 - 0.001 * abs(i - j) if i % 3 == j % 3 else 0.1 + 0.001 * (i + j)
            for j in range(count)
        ]
        for i in range(count)
    ]


@pytest.mark.parametrize("names", [LONG, SHORT], ids=["long", "short"])
def test_26_by_26_error_reductions_are_legible_and_centred(names: list[str]) -> None:
    chance = random.Random(0)
    values: list[list[float | None]] = [[chance.gauss(0, 30) for _ in names] for _ in names]
    values[3][4], values[0][0] = None, -999.4
    figure = error_reductions(values, names, names, weak=names[5:6])
    assert_legible(figure, numbers=True)
    mesh = figure.axes[0].collections[0]
    assert mesh.norm.vmin == -mesh.norm.vmax, "no change has the neutral colour"
    assert mesh.norm.vmax < 100, "one outlier does not take the colour from the others"
    assert len(figure.axes[0].texts) == 26 * 26 - 1


def luminance(colour: Any) -> float:
    """Relative luminance (WCAG 2) of red, green and blue from 0 to 1."""
    parts = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour
    ]
    return float(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2])


def test_weak_targets_are_faded_and_their_numbers_legible() -> None:
    values: list[list[float | None]] = [[30.0] * 2, [-30.0] * 2, [3.0] * 2, [0.0] * 2]
    figure = error_reductions(values, SHORT[:4], ["strong", "weak"], weak=["weak"])
    axes = figure.axes[0]
    pixels = np.asarray(render(figure).buffer_rgba())[..., :3] / 255
    numbers = {text.get_position(): text for text in axes.texts}
    for row in range(3):
        backgrounds = []
        for column in range(2):
            x, y = axes.transData.transform((column + 0.5, row + 0.12))  # above the number
            backgrounds.append(luminance(pixels[len(pixels) - 1 - round(y), round(x)]))
            number = luminance(to_rgb(numbers[column + 0.5, row + 0.5].get_color()))
            light, dark = max(backgrounds[-1], number), min(backgrounds[-1], number)
            assert (light + 0.05) / (dark + 0.05) > 4.5, "WCAG 2's contrast of legible text"
        assert backgrounds[1] > backgrounds[0], "the weak one is paler"
    assert [label.get_text() for label in ticks(axes.xaxis, axes.get_xlim())] == ["strong", "weak†"]


def test_a_figure_is_saved_with_its_names_and_numbers(tmp_path: Path) -> None:
    names = LONG[:6]
    values: list[list[float | None]] = [
        [10.0 * row - column for column in range(6)] for row in range(6)
    ]
    values[0][0] = -999.4
    figure = error_reductions(values, names, names, weak=names[5:])
    save(figure, tmp_path, "heat")
    text = (tmp_path / "heat.svg").read_text()
    assert all(name in text for name in names)
    assert "-999" in text
    assert names[5] + "†" in text
    assert (tmp_path / "heat.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heat.png", "heat.svg"]


@pytest.mark.parametrize("names", [LONG, SHORT], ids=["long", "short"])
def test_26_clusters_are_legible_and_similar_tasks_are_adjacent(names: list[str]) -> None:
    values = blocks(26)
    for i in range(26):
        values[i][i] = None
    figure, order = clusters(values, names, "Similarity")
    assert_legible(figure, numbers=True)
    clustered = [names.index(task) % 3 for task in order]
    assert sum(one != other for one, other in pairwise(clustered)) == 2
    assert sorted(order) == sorted(names)
    labels = [label.get_text() for label in ticks(figure.axes[1].yaxis, (0, 26))]
    assert labels == order, "rows are in the order of the tree"


def test_the_tree_matches_scipy_and_its_branches_meet_their_rows() -> None:
    values: list[list[float | None]] = [[None, 0.2, 0.8], [0.2, None, 0.3], [0.8, 0.3, None]]
    figure, order = clusters(values, ["a", "b", "c"], "Similarity")
    assert order in (["a", "c", "b"], ["c", "a", "b"], ["b", "a", "c"], ["b", "c", "a"])
    start = min(figure.axes[0].get_xlim())
    depths = sorted({round(float(x), 9) for line in figure.axes[0].lines for x in line.get_xdata()})
    expected = cophenet(
        linkage(squareform([[0, 0.8, 0.2], [0.8, 0, 0.7], [0.2, 0.7, 0]]), "average")
    )
    assert depths == pytest.approx(sorted({start, *expected})), (
        "a and c join at 0.2, b joins them at the mean of 0.8 and 0.7"
    )
    ends = [
        end
        for line in figure.axes[0].lines
        for end in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]
    assert sorted(float(y) for x, y in ends if x == start) == pytest.approx([0.5, 1.5, 2.5])


@pytest.mark.parametrize(
    ("near", "far"),
    [(0.13, 0.02), (0.9, 0.1), (0.999, 0.998), (0.05, 0.05), (1.0, 1.0), (1.0, 0.2), (-0.1, -0.8)],
    ids=str,
)
def test_the_tree_fills_its_axis_for_any_range_of_similarities(near: float, far: float) -> None:
    """Similarities of 0.02 to 0.13 join at 0.87 to 0.98: one bar on an axis from 0."""
    values = [
        [None if i == j else near + (far - near) * max(i, j) / 11 for j in range(12)]
        for i in range(12)
    ]
    figure, _ = clusters(values, SHORT[:12], "Similarity")
    assert_legible(figure)
    axes = figure.axes[0]
    right, left = axes.get_xlim()
    depths = sorted({float(x) for line in axes.lines for x in line.get_xdata()})
    merges = sorted({1 - (near + (far - near) * distance / 11) for distance in range(1, 12)})
    assert left <= depths[0] <= depths[-1] <= right, "nothing is cut off"
    assert depths[-1] == pytest.approx(merges[-1], abs=1e-9)
    assert left >= 0, "no similarity is above 1"
    assert merges[-1] - merges[0] >= 0.8 * (right - left) or near == far, "the merges fill the axis"
    assert len(ticks(axes.xaxis, axes.get_xlim())) >= 1


def test_the_points_that_matter_are_named() -> None:
    """The best, the worst and the most similar source; each once."""
    spots = [("best", 0.3, 9.0), ("worst", 0.2, -5.0), ("near", 0.9, 2.0), ("other", 0.5, 1.0)]
    shown = tuple(Point(name, 0, x, y) for name, x, y in spots)
    (axes,) = scatters([Correlation("t", shown, 0.1, 0.9, 0.1, 0.9)], "Similarity").axes
    assert sorted(text.get_text() for text in axes.texts) == ["best", "near", "worst"]
    both = tuple(Point(name, 0, x, y) for name, x, y in spots if name != "near")
    named = {"other": "SQuAD"}
    (axes,) = scatters([Correlation("t", both, 0.1, 0.9, 0.1, 0.9)], "", names=named).axes
    assert sorted(text.get_text() for text in axes.texts) == ["SQuAD", "best", "worst"]


def points(count: int, source: str = "a-rather-long-source-name") -> tuple[Point, ...]:
    return tuple(Point(source, seed, seed / count, float((7 * seed) % 11)) for seed in range(count))


def test_26_scatters_are_legible_and_show_r_and_p() -> None:
    correlations = [Correlation(name, points(48), 0.314, 0.0299, 0.2, 0.1) for name in LONG[:24]]
    correlations += [
        Correlation(LONG[24], points(48), -0.9, 1e-9, -0.9, 1e-9),
        Correlation(LONG[25], (), None, None, None, None),
    ]
    figure = scatters(correlations, "Similarity against transfer", weak=LONG[1:2])
    assert_legible(figure)
    titles = [axes.get_title() for axes in figure.axes if axes.get_visible()]
    assert titles[0] == f"{LONG[0]}\nr = 0.31, p = 0.030"
    assert "too weak" in titles[1]
    assert titles[24:] == [f"{LONG[24]}\nr = -0.90, p < 0.001", f"{LONG[25]}\ntoo few points"]
