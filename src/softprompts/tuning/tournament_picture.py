"""A picture of a tournament: the held-out score of each candidate, from rung to rung."""

from typing import TYPE_CHECKING

from ..artifacts.run_folder import RunFolder
from ..artifacts.tournament import TournamentRecord
from ..backbone import Backbone
from ..files.figures import new_figure, open_axes, write_figure
from ..tasks import Task
from .auto import in_words
from .pictures import picture_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_tournament(
    record: TournamentRecord, folder: RunFolder, task: Task, backbone: Backbone
) -> None:
    """Draw tournament.png; nothing without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    title = picture_title(folder, task, backbone, "tournament, 95 % intervals of the winner")
    write_figure(tournament_figure(record, title), folder.tournament_plot)


def tournament_figure(record: TournamentRecord, title: str) -> "Figure":
    """A line for each candidate, which ends with a cross where it was eliminated."""
    rungs = record["rungs"]
    figure = new_figure(10, 5, title)
    axes = figure.add_subplot()
    order = [place["candidate"] for rung in reversed(rungs) for place in rung["standings"]]
    # side by side, so that equal scores do not hide each other
    shift = max(1.1, record["steps"] / rungs[0]["step"]) ** 0.01
    for number, candidate in enumerate(dict.fromkeys(order)):
        places = [
            (rung["step"], place["score"], place["interval"])
            for rung in rungs
            for place in rung["standings"]
            if place["candidate"] == candidate and place["score"] is not None
        ]
        won = candidate == record.get("winner")
        colour, style = ("k", "-") if won else (f"C{number % 10}", ("-", "--")[number // 10 % 2])
        label = f"{number + 1}. {in_words(record['candidates'][candidate])}"
        steps = [step * shift**number for step, *_ in places]
        scores = [score for _, score, _ in places]
        axes.plot(
            steps,
            scores,
            color=colour,
            linestyle=style,
            linewidth=2.5 if won else 1.2,
            marker="o",
            markersize=4,
            label=f"{label} (winner)" if won else label if places else f"{label} (failed)",
            zorder=5 if won else 2,
        )
        if places and not won:
            axes.plot(steps[-1], scores[-1], "x", color=colour, markersize=9, zorder=4)
        for step, _, interval in places if won else ():
            if interval is not None:
                axes.vlines(step, *interval, color=colour, linewidth=1, alpha=0.6)
    if (result := record.get("result")) is not None and result["score"] is not None:
        last = record["steps"]
        label = f"the winner at its end, on {result['rows']} {result['split']} rows"
        axes.plot(last, result["score"], "D", color="k", markerfacecolor="w", label=label, zorder=4)
        if result["interval"] is not None:
            axes.vlines(last, *result["interval"], color="k", linewidth=1, alpha=0.6)
    metric = record["metric"].replace("_", " ")
    axes.set(xlabel="step", ylabel=f"{metric} (%) on {record['held_out']} held-out rows")
    axes.set_xscale("log")
    ticks = list(dict.fromkeys([*(rung["step"] for rung in rungs), record["steps"]]))
    axes.set_xticks(ticks, map(str, ticks))
    axes.minorticks_off()
    axes.margins(x=0.06)
    open_axes(axes)
    figure.legend(loc="outside right upper", fontsize="small", frameon=False, title="× eliminated")
    return figure
