"""Progress on a terminal; nothing without one."""

import math
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from ..config import spell
from ..tuning import Run, Watcher
from ..tuning.progress import Lines
from .output import is_main_process
from .row_progress import RateColumn

REFRESH_SECONDS = 0.1
"""Between two updates of a run's bar: steps may be far shorter."""
NARROW = 110
"""Columns of a terminal below which a bar has fewer details, so that the time left fits in."""
NAME_WIDTH = 22
"""Columns of a task's name on a narrow terminal."""


class TimeLeftColumn(ProgressColumn):
    """The time left: a better estimate than the bar's own rate, if there is one."""

    def render(self, task: Task) -> Text:
        estimate = task.fields.get("seconds_left")
        seconds = task.time_remaining if estimate is None else estimate
        text = "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))
        return Text(text, style="progress.remaining")


Event = Literal["step", "evaluation"]


class Pace:
    """How long steps and evaluations took so far, and how long the remaining ones will take."""

    def __init__(self) -> None:
        self.seconds: dict[Event, float] = {"step": 0.0, "evaluation": 0.0}
        self.counts: dict[Event, int] = {"step": 0, "evaluation": 0}
        self.last: float | None = None
        """When the last step or evaluation ended."""

    def record(self, event: Event) -> None:
        """A step or an evaluation has ended. The first is not timed: it may include compiling."""
        now = time.monotonic()
        if self.last is not None:
            self.seconds[event] += now - self.last
            self.counts[event] += 1
        self.last = now

    def seconds_left(self, runs: Sequence[Run]) -> float | None:
        """Before the first evaluation, a row counts half as much in evaluation as in training."""
        if self.last is None or not self.counts["step"]:
            return None
        step = self.seconds["step"] / self.counts["step"]
        seconds = 0.0
        for run in runs:
            if run.stopped is not None:
                continue
            if self.counts["evaluation"]:
                evaluation = self.seconds["evaluation"] / self.counts["evaluation"]
            else:
                evaluation = len(run.held_out) / run.config.tuning.batch_size * step / 2
            done = len({entry["step"] for entry in run.history if entry["step"]})
            due = math.ceil(run.steps / run.config.tuning.evaluate_every)
            seconds += evaluation * max(0, due - done) + step * (run.steps - run.step)
        return max(0.0, seconds - (time.monotonic() - self.last))


def rate_columns() -> tuple[ProgressColumn, ...]:
    """How much is done of how much, how fast, and the time left."""
    return (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        RateColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeLeftColumn(),
    )


class Bars(Watcher):
    """Bars on a terminal (`shown`); without one, the lines of `log`."""

    progress: Progress

    def __init__(self, quiet: bool, log: Watcher) -> None:
        self.console = Console(stderr=True)
        quiet = quiet or not is_main_process()
        self.shown = self.console.is_terminal and not quiet
        self.log = Watcher() if quiet or self.shown else log

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.log.__exit__(*error)
        self.progress.stop()

    def on_message(self, message: str) -> None:
        self.log.on_message(message)
        if self.shown:
            self.console.print(message, style="dim", highlight=False, markup=False)


class RunProgress(Bars):
    """A bar per run: steps, loss, metric, rate and time left; a second one while it evaluates."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet, Lines())
        self.narrow = self.console.width < NARROW
        columns = (
            TextColumn("{task.description}"),
            BarColumn(8 if self.narrow else 40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[info]}"),
            RateColumn(),
            *(() if self.narrow else (TimeElapsedColumn(),)),
            TextColumn("left"),
            TimeLeftColumn(),
        )
        self.pace = Pace()
        self.progress = Progress(*columns, console=self.console, disable=not self.shown)
        self.bars: dict[int, tuple[TaskID, TaskID]] = {}
        """The bars of training and of evaluation, by the run's id."""
        self.updated_at = 0.0

    def on_step(self, run: Run) -> None:
        self.pace.record("step")
        now = time.monotonic()
        if self.shown and (run.finished or now - self.updated_at > REFRESH_SECONDS):
            self.updated_at = now
            self._update(run, completed=run.step)

    def on_rows_answered(self, run: Run, rows: int) -> None:
        if self.shown:
            self.progress.update(self._bars(run)[1], advance=rows, visible=True)

    def on_evaluation(self, run: Run) -> None:
        self.log.on_evaluation(run)
        self.pace.record("evaluation")
        if self.shown:
            self.progress.reset(self._bars(run)[1], visible=False)
            self._update(run)

    def _update(self, run: Run, completed: float | None = None) -> None:
        self.progress.update(
            self._bars(run)[0],
            completed=completed,
            info=_info(run, self.narrow),
            seconds_left=self.pace.seconds_left([run]),
        )

    def _bars(self, run: Run) -> tuple[TaskID, TaskID]:
        if id(run) not in self.bars:
            name = f"{run.task.name} seed {run.config.seed}"
            if self.narrow:
                short = f"{run.task.name[: NAME_WIDTH - 1]}…"
                name = run.task.name if len(run.task.name) <= NAME_WIDTH else short
            training = self.progress.add_task(
                name, total=run.steps, completed=run.step - 1, info="", unit="steps"
            )
            evaluation = self.progress.add_task(
                "  evaluating", total=len(run.held_out), visible=False, info="", unit="rows"
            )
            self.bars[id(run)] = (training, evaluation)
        return self.bars[id(run)]


def _info(run: Run, narrow: bool = False) -> str:
    """Loss and metric; on a narrow terminal, the metric's value alone once there is one."""
    score = ""
    if run.history:
        last, best = run.history[-1][run.metric], run.best_entry[run.metric]
        score = f"{last:.1f} (best {best:.1f})"
    if narrow and score:
        return score
    loss = _loss(run)
    parts = [f"loss {loss}" if loss else "", f"{run.metric} {score}" if score else ""]
    return "  ".join(filter(None, parts))


def _loss(run: Run) -> str:
    """The last known loss. Another thread may be appending to the lists."""
    pending, history = run.pending, run.history
    if pending:
        return f"{pending[-1]:.3f}"
    return f"{history[-1]['loss']:.3f}" if history else ""


class CohortProgress(Bars):
    """Many runs on one screen: a row for each, unfinished ones first, and a bar over all steps.

    A thread draws it twice a second from the runs themselves, so that a step costs nothing.
    """

    def __init__(self, settings: Sequence[Mapping[str, Any]], quiet: bool = False) -> None:
        """`settings` are those in which the runs differ, one mapping per run."""
        super().__init__(quiet, Lines(settings))
        self.settings = list(settings)
        self.runs: list[Run] = []
        self.finished = False
        self.answered: dict[int, int] = {}
        """Rows answered in the current evaluation of a run, by the run's id."""
        self.progress = Progress(*rate_columns(), console=self.console, auto_refresh=False)
        self.pace = Pace()
        self.live = Live(console=self.console, get_renderable=self._screen, refresh_per_second=2)

    def __enter__(self) -> Self:
        return self  # `live` shows the bar, once the runs are known

    def __exit__(self, *error: Any) -> None:
        self.finished = error[1] is None
        self.log.__exit__(*error)
        self.live.stop()

    def on_start(self, runs: Sequence[Run]) -> None:
        self.log.on_start(runs)
        if self.shown:
            self.runs = list(runs)
            self.progress.add_task(
                f"{len(runs)} runs",
                total=sum(run.steps for run in runs),
                completed=self._steps_done(),
                unit="run-steps",
            )
            self.live.start(refresh=True)

    def on_step(self, run: Run) -> None:
        self.pace.record("step")

    def on_rows_answered(self, run: Run, rows: int) -> None:
        self.answered[id(run)] = self.answered.get(id(run), 0) + rows

    def on_evaluation(self, run: Run) -> None:
        self.log.on_evaluation(run)
        self.pace.record("evaluation")
        self.answered.pop(id(run), None)

    def _steps_done(self) -> int:
        return sum(run.steps if run.finished else run.step for run in self.runs)

    def _screen(self) -> Group:
        for bar in self.progress.task_ids:
            seconds_left = self.pace.seconds_left(self.runs)
            self.progress.update(bar, completed=self._steps_done(), seconds_left=seconds_left)
        return Group(*([] if self.finished else self._table()), self.progress)

    def _table(self) -> list[Table | Text]:
        """As many runs as fit on the terminal."""
        height = max(1, self.console.height - 4)
        order = sorted(range(len(self.runs)), key=lambda index: self.runs[index].finished)
        table = Table(*self.settings[0], "step", "loss", "score", "best", box=None, pad_edge=False)
        for column in table.columns:
            column.no_wrap = True
        for index in order[:height]:
            table.add_row(*map(spell, self.settings[index].values()), *self._row(self.runs[index]))
        hidden = len(order) - height
        return [table, Text(f"... and {hidden} more")] if hidden > 0 else [table]

    def _row(self, run: Run) -> list[str]:
        score = best = ""
        if run.history:
            score = f"{run.metric} {run.history[-1][run.metric]:.1f}"
            best = f"{run.best_entry[run.metric]:.1f}"
        if id(run) in self.answered:
            score = f"evaluating {self.answered.get(id(run), 0)}/{len(run.held_out)}"
        return [f"{run.step}/{run.steps}", "failed" if run.failed else _loss(run), score, best]
