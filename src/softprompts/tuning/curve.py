"""Learning curves. They need matplotlib (`pip install 'softprompts[plots]'`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import write_atomically


def learning_curve(
    history: Sequence[Mapping[str, Any]], metric: str, majority: float, title: str, path: Path
) -> bool:
    """Draw validation score, training loss and the majority class's score over steps.

    False, and no picture, without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(7, 4), layout="constrained")
    scores = figure.add_subplot()
    steps = [entry["step"] for entry in history]
    (score,) = scores.plot(
        steps,
        [entry[metric] for entry in history],
        color="tab:blue",
        marker="o",
        markersize=3,
        label=f"validation {metric} (%)",
    )
    line = scores.axhline(majority, color="tab:gray", linestyle=":", label="majority class")
    scores.set(xlabel="step", ylabel=f"{metric} (%)", ylim=(0, 100), title=title)
    losses = scores.twinx()
    (loss,) = losses.plot(
        steps, [entry["loss"] for entry in history], color="tab:orange", label="training loss"
    )
    losses.set_ylabel("loss (nats per target token)")
    losses.set_ylim(bottom=0)
    figure.legend(
        handles=[score, line, loss], loc="outside lower center", ncols=3, fontsize="small"
    )
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=150))
    return True
