"""Figures of a transfer study (Vu 2022, Fig. 3, 4, 5).

They need matplotlib and scipy (`pip install 'softprompts[plots]'`).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import UserError
from ..files import write_atomically
from ..files.figures import new_figure
from .markup import WEAK
from .transfer import Correlation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = Sequence[Sequence[float | None]]
CELL = 0.38
"""Inches across: five characters of 7.5 points, and some space."""


def check() -> None:
    """Report missing plot libraries before long work."""
    try:
        import matplotlib.figure  # noqa: F401
        import scipy.cluster.hierarchy  # noqa: F401
    except ImportError:
        raise UserError(
            "The report's figures need matplotlib and scipy; install them with "
            "pip install 'softprompts[plots]'."
        ) from None


def save(figure: "Figure", folder: Path, name: str) -> list[str]:
    """Write the figure as PNG and SVG; the names of the files."""
    from matplotlib import rc_context

    options: dict[str, dict[str, Any]] = {"png": {"dpi": 150}, "svg": {"metadata": {"Date": None}}}
    # text stays text, and the same numbers give the same file
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        for form, option in options.items():
            write = partial(figure.savefig, format=form, **option)
            write_atomically(folder / f"{name}.{form}", write)
    return [f"{name}.{form}" for form in options]


def error_reductions(
    values: Values,
    sources: Sequence[str],
    targets: Sequence[str],
    weak: Collection[str] = (),
    title: str = "Relative error reduction (%) against the target's baseline",
    names: Mapping[str, str] | None = None,
) -> "Figure":
    """Relative error reduction in percent, sources x targets.

    Blue is better than the baseline, red is worse, empty is not finished. Columns of weak targets
    are faded, because no verdict is based on them. `names` are those of tasks in the figure.
    """
    known = np.array([abs(value) for row in values for value in row if value is not None])
    # A percentile, so that one outlier does not take the colour from all other cells.
    limit = max(float(np.percentile(known, 90)), 1.0) if known.size else 1.0
    rows, columns = (
        {task: (names or {}).get(task, task) for task in x} for x in (sources, targets)
    )
    width, height = _inches(list(rows.values()), list(columns.values()))
    figure = new_figure(max(width + 1.2, 5.5), height + (0.7 if weak else 0.4), title)
    axes = figure.add_subplot()
    labels = [f"{name}{WEAK if target in weak else ''}" for target, name in columns.items()]
    _cells(
        axes,
        values,
        list(rows.values()),
        labels,
        ("RdBu", -limit, limit),
        "{:z.0f}" if limit >= 10 else "{:z.1f}",
        "relative error reduction (%)",
        [column for column, name in enumerate(targets) if name in weak],
    )
    axes.set_xlabel("target", fontsize=9)
    axes.set_ylabel("source", fontsize=9)
    if weak:
        figure.supxlabel(
            f"{WEAK} faded: baseline not above the majority class by two standard errors",
            fontsize=8,
            color="0.35",
            x=0.01,
            ha="left",
        )
    return figure


def clusters(
    values: Values, tasks: Sequence[str], title: str, names: Mapping[str, str] | None = None
) -> "tuple[Figure, list[str]]":
    """Similarities of task embeddings with their tree (average linkage of 1 - similarity); and the
    tasks in the tree's order. `names` are those of tasks in the figure."""
    from scipy.cluster.hierarchy import dendrogram, linkage
    from scipy.spatial.distance import squareform

    distances = np.array(
        [
            [1 - value if value is not None and i != j else 0.0 for j, value in enumerate(row)]
            for i, row in enumerate(values)
        ]
    )
    tree = linkage(
        squareform((distances + distances.T) / 2, checks=False), "average", optimal_ordering=True
    )
    leaves = dendrogram(tree, no_plot=True)
    order = leaves["leaves"]
    labels = [(names or {}).get(tasks[i], tasks[i]) for i in order]
    width, height = _inches(labels, labels)
    figure = new_figure(max(width + 2.2, 5.5), height + 0.4, title)
    branches, axes = figure.subplots(1, 2, width_ratios=[1.3, width], sharey=True)
    _tree(branches, leaves["dcoord"], leaves["icoord"], tree[:, 2])
    off_diagonal = [
        value
        for i, row in enumerate(values)
        for j, value in enumerate(row)
        if value is not None and i != j
    ]
    low, high = min(off_diagonal), max(off_diagonal)
    _cells(
        axes,
        [[values[i][j] for j in order] for i in order],
        labels,
        labels,
        ("cividis", low, max(high, low + 0.01)),  # two tasks have one similarity
        "{:z.2f}" if high - low >= 0.05 else "{:z.3f}",
        "similarity",
    )
    axes.yaxis.set_label_position("right")
    axes.tick_params(axis="y", labelleft=False, labelright=True)
    return figure, [tasks[i] for i in order]


def _tree(
    axes: "Axes",
    depths: Sequence[Sequence[float]],
    rows: Sequence[Sequence[float]],
    merges: "np.ndarray[Any, Any]",
) -> None:
    """The branches, on an axis from just below the smallest merge to the largest.

    An axis from 0 would press merges of similar depth into one bar.
    """
    low, high = float(merges.min()), float(merges.max())
    margin = 0.1 * (high - low or high or 1.0)
    leaf = max(0.0, low - margin)
    for depth, row in zip(depths, rows, strict=True):
        axes.plot(np.maximum(depth, leaf), np.array(row) / 10, color="0.3", linewidth=1)
    axes.set_xlim(high + 0.3 * margin, leaf)
    axes.locator_params(axis="x", nbins=2)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.tick_params(axis="x", labelsize=7)
    axes.set_xlabel("1 - similarity", fontsize=8)


def scatters(
    correlations: Sequence[Correlation],
    title: str,
    weak: Collection[str] = (),
    names: Mapping[str, str] | None = None,
) -> "Figure":
    """A plot per target: each source prompt's similarity against its error reduction, r and p.

    The best, the worst and the most similar prompt are named. `names` are those of tasks.
    """
    columns = min(
        6, max(1, math.ceil(math.sqrt(len(correlations) * 2.5))), max(1, len(correlations))
    )
    rows = max(1, math.ceil(len(correlations) / columns))
    columns = max(1, math.ceil(len(correlations) / rows))  # as full as the others
    width = max(2.7 * columns + 0.4, 5.5)  # of the title
    figure = new_figure(width, 2.5 * rows + 0.6, title)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, result in zip(grid, correlations, strict=False):
        _scatter(axes, result, result.target in weak, names or {})
    for axes in grid[len(correlations) :]:
        axes.remove()
    figure.supxlabel("similarity of source prompt and target", fontsize=9)
    figure.supylabel("relative error reduction (%)", fontsize=9)
    return figure


def _scatter(axes: "Axes", result: Correlation, weak: bool, names: Mapping[str, str]) -> None:
    from matplotlib.patheffects import withStroke

    x = np.array([point.similarity for point in result.points])
    y = np.array([point.reduction for point in result.points])
    colour = "0.55" if weak else "#0072B2"
    axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    axes.scatter(x, y, s=12, color=colour, alpha=0.75, linewidths=0)
    statistics = "too few points"
    if result.pearson is not None and result.pearson_p is not None:
        slope, offset = np.polyfit(x, y, 1)
        ends = np.array([x.min(), x.max()])
        axes.plot(ends, slope * ends + offset, color="#D55E00", linewidth=1.2)
        p = f"p = {result.pearson_p:.3f}" if result.pearson_p >= 0.001 else "p < 0.001"
        statistics = f"r = {result.pearson:.2f}, {p}"
    target = names.get(result.target, result.target) + (f"{WEAK} (too weak)" if weak else "")
    axes.set_title(f"{target}\n{statistics}", fontsize=8)
    named = dict.fromkeys((int(y.argmax()), int(x.argmax()), int(y.argmin())) if len(y) else ())
    axes.scatter(x[[*named]], y[[*named]], s=22, facecolors="none", edgecolors="0.25", linewidths=1)
    for index in named:
        axes.annotate(
            names.get(source := result.points[index].source, source),
            (x[index], y[index]),
            (0, -11 if index == int(y.argmin()) else 5),
            textcoords="offset points",
            fontsize=7,
            ha="right" if x[index] > (x.min() + x.max()) / 2 else "left",
            color="0.2",
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )
    axes.tick_params(labelsize=7)
    axes.locator_params(nbins=4)
    axes.margins(0.1, 0.2)
    axes.spines[["top", "right"]].set_visible(False)


def _inches(rows: Sequence[str], columns: Sequence[str]) -> tuple[float, float]:
    """Width and height of the cells, with the longest names beside and below them."""
    left, below = (
        max((len(name) for name in names), default=0) * 0.075 for names in (rows, columns)
    )
    width, height = max(CELL * len(columns), 2.0), max(CELL * 0.8 * len(rows), 1.5)
    return width + left + 0.5, height + below + 0.5


def _cells(
    axes: "Axes",
    values: Values,
    rows: Sequence[str],
    columns: Sequence[str],
    colours: tuple[str, float, float],
    number_format: str,
    label: str,
    faded: Collection[int] = (),
) -> None:
    """A coloured table with its numbers; missing ones leave their cells empty."""
    name, low, high = colours
    numbers = np.array(
        [[math.nan if value is None else value for value in row] for row in values], dtype=float
    ).reshape(len(rows), len(columns))
    extend = ("neither", "min", "max", "both")[
        int(np.nanmin(numbers, initial=low) < low)
        + 2 * int(np.nanmax(numbers, initial=high) > high)
    ]
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(numbers),
        cmap=name,
        vmin=low,
        vmax=max(high, low + 1e-6),
        edgecolors="white",
        linewidth=0.6,
    )
    dark = mesh.to_rgba(numbers)[..., :3] @ (0.299, 0.587, 0.114) < 0.5
    for (row, column), value in np.ndenumerate(numbers):
        if not math.isnan(value):
            axes.text(
                column + 0.5,
                row + 0.5,
                number_format.format(value),
                ha="center",
                va="center",
                fontsize=7.5,
                color="0.25" if column in faded else "w" if dark[row, column] else "k",
            )
    for column in faded:
        # over the colours, under the numbers
        axes.axvspan(column, column + 1, color="white", alpha=0.7, linewidth=0)
    # visible through the empty cells, which are not a 0
    axes.patch.set(facecolor="0.97", edgecolor="0.8", hatch="////", linewidth=0)
    axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=90, fontsize=8)
    axes.set_yticks(np.arange(len(rows)) + 0.5, rows, fontsize=8)
    axes.tick_params(length=0)
    axes.set_ylim(len(rows), 0)
    bar = axes.figure.colorbar(mesh, ax=axes, extend=extend, fraction=0.04, pad=0.02, aspect=30)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)
