"""Pictures of a run: its learning curve, and the confusion matrix of its answers.

They need matplotlib (`pip install 'softprompts[plots]'`).
"""

import contextlib
import datetime
import textwrap
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifacts.run_folder import RunFolder
from ..backbone import Backbone
from ..errors import UserError
from ..files.figures import new_figure, open_axes, write_figure
from ..tasks import Task
from ..tasks.metrics import in_order
from ..tasks.plain_names import plain_names
from ..tasks.score_report import BASELINE_NAMES, ScoreReport
from .phases import Phases
from .prepare import initial_prompt
from .run import Run
from .tuned import Tuned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_LABELS = 30
"""The most labels of a confusion matrix that is drawn."""
NO_LABEL = "(no label)"
FEW = 30
"""The most points of a loss curve that are marked one by one."""
CHEAP = 0.1
"""The untrained prompt is scored if that takes at most this share of the rows of training."""


def import_beside() -> None:
    """Import matplotlib in a thread; `draw_pictures` waits for it, and meets the same errors."""

    def load() -> None:
        with contextlib.suppress(Exception):
            import matplotlib.backends.backend_agg
            import matplotlib.figure  # noqa: F401

    threading.Thread(target=load, name="softprompts-plots", daemon=True).start()


def draw_pictures(
    run: Run,
    tuned: Tuned,
    reports: Mapping[str, ScoreReport],
    folder: RunFolder,
    phases: Phases,
) -> None:
    """Draw what a finished run's folder shows; nothing without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return
    card, validation = tuned.card, reports["validation"]
    title = picture_title(folder, run.task, run.backbone, f"{card.method}, seed {card.seed}")
    levels = {
        BASELINE_NAMES.get(name, name): baseline["metrics"][card.metric]
        for name, baseline in validation.baselines.items()
        if card.metric in baseline["metrics"]
    }
    with phases("evaluate"):
        history = [*untrained_entry(run, tuned), *run.history]
    test = None if card.test is None else card.test[card.metric]
    write_figure(curve_figure(history, run.losses, card.metric, title, levels, test), folder.curve)
    split, judged = list(reports.items())[-1]
    if 2 <= len(judged.classes) <= MAX_LABELS:
        title = f"{title}\n{judged.rows} {split} rows"
        write_figure(confusion_figure(judged, title), folder.confusion)


def picture_title(folder: RunFolder, task: Task, backbone: Backbone, detail: str) -> str:
    """The run's folder, task and model, and below them a detail and the date."""
    model = Path(backbone.name).name if Path(backbone.name).is_dir() else backbone.name
    subject = f"{folder.path.resolve().name}: {plain_names([task.name])[task.name]} on {model}"
    return "\n".join([*textwrap.wrap(subject, 80), f"{detail}, {datetime.date.today()}"])


def untrained_entry(run: Run, tuned: Tuned) -> list[dict[str, Any]]:
    """The history's entry of step 0; none if it would be expensive to compute."""
    tuning = run.config.tuning
    trained_rows = run.step * tuning.batch_size * tuning.accumulate
    if (
        len(run.held_out) > CHEAP * trained_rows
        or run.team.size > 1
        or "model" in run.trained
        or run.history[0]["step"] == 0
    ):
        return []
    with contextlib.suppress(UserError):  # a prompt that it started from may be gone
        prompt = initial_prompt(run.config, run.task, run.backbone).to(run.backbone.device)
        predictor = replace(tuned, prompt=prompt.eval()).predictor()
        predictor.batch_size = run.evaluation_rows
        return [{"step": 0, **run.task.score(predictor.answers(run.held_out))}]
    return []


def curve_figure(
    history: Sequence[Mapping[str, Any]],
    losses: Sequence[tuple[int, float]],
    metric: str,
    title: str,
    levels: Mapping[str, float],
    test: float | None = None,
) -> "Figure":
    """The validation score, beside the levels of baselines, above the training loss.

    An entry of `history` without a loss is that of the untrained prompt. `losses` are steps, and
    the mean losses since the steps before, drawn in the middle of each interval. Without any, as in
    runs of older versions, the mean losses between evaluations are drawn. `test` is the kept
    prompt's score on the test rows.
    """
    figure = new_figure(7, 5.5, title)
    score_axes, loss_axes = figure.subplots(2, 1, sharex=True)
    steps, scores = zip(*((entry["step"], entry[metric]) for entry in history), strict=True)
    score_axes.plot(steps, scores, color="tab:blue", marker="o", markersize=3, label="validation")
    evaluations = [entry for entry in history if "loss" in entry]
    kept = max(evaluations, key=lambda entry: entry[metric])
    score_axes.plot(kept["step"], kept[metric], "o", color="tab:red", label="kept")
    if test is not None:
        score_axes.plot(kept["step"], test, "D", color="tab:green", label="kept, test rows")
    for (name, level), style in zip(levels.items(), (":", "--", "-."), strict=False):
        score_axes.axhline(
            level, color="0.5", linestyle=style, linewidth=1.2, label=name, zorder=1.5
        )
    lowest = min(0, *scores, *levels.values())
    score_axes.set(ylabel=f"{metric.replace('_', ' ')} (%)", ylim=(lowest - 3, 103))
    score_axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1), ncols=5, fontsize="small", frameon=False
    )
    points = losses or [(entry["step"], entry["loss"]) for entry in evaluations]
    if points and points[-1][0] > 0:
        ends, values = zip(*points, strict=True)
        middles = [(begin + 1 + end) / 2 for begin, end in zip([0, *ends], ends, strict=False)]
        dots = "o" if len(points) <= FEW else None
        loss_axes.plot(middles, values, color="tab:orange", marker=dots, markersize=3)
        loss_axes.set_ylim(0, 1.05 * max(values))
    loss_axes.set(xlabel="step", ylabel="training loss\n(nats per target token)")
    last = max(1, steps[-1])
    loss_axes.set_xlim(-0.02 * last, 1.02 * last)
    for axes in (score_axes, loss_axes):
        open_axes(axes)
    return figure


def confusion_figure(report: ScoreReport, title: str) -> "Figure":
    """Targets against predictions, with counts, shaded by the share of their target."""
    labels = in_order(report.classes)
    columns = [*labels, NO_LABEL] if report.invalid else labels
    rows = []
    for target in labels:
        counts = report.confusion.get(target, {})
        row = [counts.get(label, 0) for label in labels]
        rows.append([*row, sum(counts.values()) - sum(row)][: len(columns)])
    shares = [[count / max(1, sum(row)) for count in row] for row in rows]
    size = 2.5 + 0.45 * len(columns)
    figure = new_figure(max(5.5, size + 1), max(4.0, size), title)
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    names = [name if len(name) <= 24 else f"{name[:23]}…" for name in columns]
    axes.set_xticks(range(len(columns)), names)
    axes.set_yticks(range(len(labels)), names[: len(labels)])
    if max(map(len, names)) > 6:
        axes.tick_params("x", rotation=45)
        for name in axes.get_xticklabels():
            name.set(ha="right", rotation_mode="anchor")
    for i, row in enumerate(rows):
        for j, count in enumerate(row):
            if count:
                dark = shares[i][j] > 0.5
                axes.text(j, i, str(count), ha="center", va="center", color="w" if dark else "k")
    axes.set(xlabel="prediction", ylabel="target")
    figure.colorbar(image, label="share of the target's rows")
    return figure
