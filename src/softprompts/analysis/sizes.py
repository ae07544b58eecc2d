"""Figures of scores by target, and against model size (Vu 2022, Fig. 1).

They need matplotlib (`pip install 'softprompts[plots]'`).
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..files.figures import new_figure, open_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vPX*"
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
"""Distinguishable with colour blindness."""
SCORES = {True: "mean over seeds", False: "score"}
"""The name of the only row, with several seeds and with one."""


def by_size(
    table: Sequence[Mapping[str, Any]], parameters: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Mean scores with the size of their backbone, smallest first.

    If a size is unknown, the order of the table stays.
    """
    names = list(dict.fromkeys(line["backbone"] for line in table))
    known = all(name in parameters for name in names)
    order = sorted(names, key=lambda name: parameters[name]) if known else names
    return [
        {
            "parameters": parameters.get(line["backbone"]),
            **{name: line[name] for name in ("backbone", "variant", "source")},
            "score": line["mean"] and line["mean"]["mean"],
            "score_std": line["mean"] and line["mean"]["std"],
        }
        for line in sorted(table, key=lambda line: order.index(line["backbone"]))
    ]


def score_by_target(
    rows: Sequence[Mapping[str, Any]],
    majorities: Mapping[str, float],
    names: Mapping[str, str],
    subject: str = "",
    transfers: bool = False,
) -> "Figure":
    """A point for each row and target, with standard deviations as bars, and the majority class.

    `names` are those of the targets in the figure. `transfers`: there are scores after a transfer,
    too, which the figure does not show.
    """
    splits = {target: split for row in rows for target, split in row["splits"].items()}
    several = len({row["backbone"] for row in rows}) > 1
    seeds = any(s and s["std"] is not None for row in rows for s in row["targets"].values())
    height = 0.25 + 0.12 * len(rows)
    width = 4.5 + 0.08 * max(len(names[target]) for target in splits)
    spread = ", mean and standard deviation over seeds" * seeds
    title = f"Scores{' without transfer' * transfers}{spread}\n{subject}".rstrip()
    figure = new_figure(max(6.0, width), 1.9 + height * len(splits), title)
    axes = figure.add_subplot()
    for number, row in enumerate(rows):
        shift = 0.6 * ((number + 0.5) / len(rows) - 0.5)
        known = {i: s for i, target in enumerate(splits) if (s := row["targets"].get(target))}
        backbone = short_name(row["backbone"]) if several else None
        axes.errorbar(
            [spread["mean"] for spread in known.values()],
            [index + shift for index in known],
            xerr=[spread["std"] or 0.0 for spread in known.values()],
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            capsize=3,
            linestyle="none",
            label=", ".join(filter(None, (row["variant"], backbone))) or SCORES[seeds],
        )
    known_majorities = {i: majorities[t] for i, t in enumerate(splits) if t in majorities}
    axes.scatter(
        list(known_majorities.values()),
        list(known_majorities),
        marker="|",
        s=150,
        color="0.5",
        zorder=1.5,
        label="majority class",
    )
    mixed = len(set(splits.values())) > 1
    labels = [f"{names[t]} ({split})" if mixed else names[t] for t, split in splits.items()]
    axes.set_yticks(range(len(splits)), labels, fontsize=8)
    axes.set_ylim(len(splits) - 0.4, -0.6)
    open_axes(axes, "y")
    rows_of = "" if mixed else f" on the {next(iter(splits.values()))} rows"
    axes.set_xlabel(f"score{rows_of}", fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def short_name(backbone: str) -> str:
    """A model's name without its organisation or folder."""
    return backbone.rstrip("/").rpartition("/")[2]


def score_by_size(
    rows: Sequence[Mapping[str, Any]], names: Mapping[str, str] | None = None, subject: str = ""
) -> "Figure":
    """A line for each variant and source over the backbones, with standard deviations as bars.

    Backbones stand at the logarithm of their size if all sizes are known and different, else side
    by side.
    """
    sizes = {row["backbone"]: row["parameters"] for row in rows}
    measured = all(sizes.values()) and len(set(sizes.values())) == len(sizes)
    positions = {
        name: math.log10(sizes[name]) if measured else float(index)
        for index, name in enumerate(sizes)
    }
    width = max(positions.values()) - min(positions.values())
    series = list(dict.fromkeys((row["variant"], row["source"]) for row in rows))
    variants = list(dict.fromkeys(variant for variant, _ in series))
    figure = new_figure(
        max(6.5, 1.3 * len(sizes) + 2),
        4.2 + 0.18 * math.ceil(len(series) / 2),
        f"Score by model size, mean and standard deviation over seeds\n{subject}".rstrip(),
    )
    axes = figure.add_subplot()
    for number, (variant, source) in enumerate(series):
        points = [row for row in rows if (row["variant"], row["source"]) == (variant, source)]
        start = f"from {(names or {}).get(source, source)}" if source else "no transfer"
        # so that bars do not hide each other
        shift = 0.007 * width * (number - (len(series) - 1) / 2)
        axes.errorbar(
            [positions[row["backbone"]] + shift for row in points],
            [math.nan if row["score"] is None else row["score"] for row in points],
            [row["score_std"] or 0.0 for row in points],
            color=COLOURS[number % len(COLOURS)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            capsize=3,
            linewidth=1.4,
            linestyle="-" if variant == variants[0] else "--",
            label=f"{variant}, {start}" if variant else start,
        )
    labels = [f"{short_name(name)}\n{_count(sizes[name])}".rstrip() for name in positions]
    axes.set_xticks(
        list(positions.values()),
        labels,
        rotation=30,
        ha="right",
        rotation_mode="anchor",
        fontsize=8,
    )
    axes.set(
        xlabel="parameters of the backbone (logarithmic)" if measured else "backbone",
        ylabel="mean score over targets",
    )
    axes.margins(x=0.06)
    open_axes(axes, "y")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _count(parameters: int | None) -> str:
    """A size such as 77M or 2.8B."""
    if parameters is None:
        return ""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= size:
            digits = 1 if parameters < 10 * size else 0
            return f"{parameters / size:.{digits}f}{letter}"
    return str(parameters)
