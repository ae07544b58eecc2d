"""Learning curves. They need matplotlib (`pip install 'softprompts[plots]'`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def learning_curve(
    history: Sequence[Mapping[str, Any]],
    losses: Sequence[tuple[int, float]],
    metric: str,
    majority: float,
    title: str,
    path: Path,
) -> bool:
    """Draw the validation score, next to that of the majority class, and the training loss.

    False, and no picture, without matplotlib.
    """
    try:
        figure = curve_figure(history, losses, metric, majority, title)
    except ImportError:
        return False
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=150))
    return True


def curve_figure(
    history: Sequence[Mapping[str, Any]],
    losses: Sequence[tuple[int, float]],
    metric: str,
    majority: float,
    title: str,
) -> "Figure":
    """Two panels over the steps from 0 on.

    `losses` are steps and the mean losses up to them; without any, as in runs of older versions,
    the mean losses between evaluations are drawn.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 5), layout="constrained")
    score_axes, loss_axes = figure.subplots(2, 1, sharex=True)
    steps, scores = zip(*((entry["step"], entry[metric]) for entry in history), strict=True)
    score_axes.plot(steps, scores, color="tab:blue", marker="o", markersize=3, label="validation")
    score_axes.axhline(majority, color="tab:gray", linestyle=":", label="majority class")
    best = scores.index(max(scores))
    score_axes.plot(steps[best], scores[best], "o", color="tab:red", label="best, kept")
    score_axes.set(ylabel=f"{metric.replace('_', ' ')} (%)", ylim=(0, 102))
    score_axes.legend(loc="best", fontsize="small", frameon=False)
    points = losses or [(entry["step"], entry["loss"]) for entry in history]
    loss_axes.plot(*zip(*points, strict=True), color="tab:orange", linewidth=1.2)
    loss_axes.set(xlabel="step", ylabel="training loss\n(nats per target token)")
    loss_axes.set_xlim(0, max(1, steps[-1], points[-1][0]) * 1.02)
    loss_axes.set_ylim(bottom=0)
    for axes in (score_axes, loss_axes):
        axes.grid(color="0.92", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title, fontsize=10)
    return figure
