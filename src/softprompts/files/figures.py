"""How figures look, and how they are written; they need matplotlib."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from .atomic import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, title: str) -> "Figure":
    """An empty figure, in inches, under its title."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def open_axes(axes: "Axes", grid: Literal["both", "y"] = "both") -> None:
    """Axes at the left and below, and a faint grid behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color="0.92", linewidth=0.8)
    axes.set_axisbelow(True)


def write_figure(figure: "Figure", path: Path) -> None:
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=150))
