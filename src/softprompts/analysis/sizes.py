"""Score against model size, as a picture (Vu 2022, Fig. 1). It needs matplotlib (`pip install 'softprompts[plots]'`)."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
)  # told apart by the colour-blind too


def by_size(
    table: Sequence[Mapping[str, Any]], parameters: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The mean scores of a study's lines with the size of their backbone, smallest first; without its size a backbone keeps its place."""
    names = list(dict.fromkeys(line["backbone"] for line in table))
    known = all(name in parameters for name in names)
    order = sorted(names, key=lambda name: parameters[name]) if known else names
    rows = [{"parameters": parameters.get(line["backbone"]), **_plain(line)} for line in table]
    return sorted(rows, key=lambda row: order.index(row["backbone"]))


def _plain(line: Mapping[str, Any]) -> dict[str, Any]:
    mean = line["mean"] or {"mean": None, "std": None}
    return {
        **{name: line[name] for name in ("backbone", "variant", "source")},
        "score": mean["mean"],
        "score_std": mean["std"],
    }


def score_by_size(rows: Sequence[Mapping[str, Any]]) -> "Figure":
    """A line for each variant and source over the backbones, with the standard deviation over seeds as bars.

    The places are the backbones' parameters on a logarithmic scale where all are known and different, else side by side.
    """
    from matplotlib.figure import Figure

    sizes = {row["backbone"]: row["parameters"] for row in rows}
    measured = all(sizes.values()) and len(set(sizes.values())) == len(sizes)
    places = {
        name: math.log10(sizes[name]) if measured else float(place)
        for place, name in enumerate(sizes)
    }
    width = max(places.values()) - min(places.values())
    series = list(dict.fromkeys((row["variant"], row["source"]) for row in rows))
    variants = list(dict.fromkeys(variant for variant, _ in series))
    figure = Figure(
        figsize=(max(6.5, 1.3 * len(sizes) + 2), 4.2 + 0.18 * math.ceil(len(series) / 2)),
        layout="constrained",
    )
    axes = figure.add_subplot()
    for number, (variant, source) in enumerate(series):
        own = [row for row in rows if (row["variant"], row["source"]) == (variant, source)]
        aside = (
            0.007 * width * (number - (len(series) - 1) / 2)
        )  # so that bars do not hide each other
        axes.errorbar(
            [places[row["backbone"]] + aside for row in own],
            [math.nan if row["score"] is None else row["score"] for row in own],
            [row["score_std"] or 0.0 for row in own],
            color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)], markersize=5, capsize=3, linewidth=1.4,
            linestyle="-" if variant == variants[0] else "--", label=_named(variant, source),
        )  # fmt: skip
    labels = [
        f"{name.rstrip('/').rpartition('/')[2]}\n{_count(sizes[name])}".rstrip() for name in places
    ]
    axes.set_xticks(
        list(places.values()), labels, rotation=30, ha="right", rotation_mode="anchor", fontsize=8
    )
    axes.set(
        xlabel="parameters of the backbone (logarithmic)" if measured else "backbone",
        ylabel="mean score over targets",
    )
    axes.margins(x=0.06)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    figure.suptitle("Score by model size, mean and standard deviation over seeds", fontsize=10)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _named(variant: str | None, source: str | None) -> str:
    start = "no transfer" if source is None else f"from {source}"
    return start if variant is None else f"{variant}, {start}"


def _count(parameters: int | None) -> str:
    """77M, 2.8B: as the field writes sizes."""
    if parameters is None:
        return ""
    for size, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= size:
            return (
                f"{parameters / size:.1f}{letter}"
                if parameters < 10 * size
                else f"{parameters / size:.0f}{letter}"
            )
    return str(parameters)
