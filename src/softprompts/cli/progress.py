"""What a person at a terminal sees of long work; nothing at all where there is no terminal."""

import math
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from types import TracebackType
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
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from ..config.products import spell
from ..tuning import Run, Watcher

REDRAWN = 0.1
"""Seconds between two looks at a run: steps may be far shorter."""


NARROW = 110
"""Columns of a terminal below which a run is told in fewer words, so that the time left stays in sight."""


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        unit = task.fields.get("unit", "steps")
        return Text(f"{task.speed:.1f} {unit}/s" if task.speed else f"- {unit}/s", style="cyan")


class _Left(ProgressColumn):
    """The time left, where a bar knows it better than by its own rate."""

    def render(self, task: Task) -> Text:
        seconds = (
            task.fields["left"] if task.fields.get("left") is not None else task.time_remaining
        )
        return Text(
            "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds))),
            style="progress.remaining",
        )


class Pace:
    """How long steps and evaluations took so far, and what is left of both will take."""

    def __init__(self) -> None:
        self.seconds, self.many = {"step": 0.0, "judge": 0.0}, {"step": 0, "judge": 0}
        self.last: float | None = None

    def took(self, what: Literal["step", "judge"]) -> None:
        """A run has taken a step or was judged; what came before the first is not counted, because compiling may be in it."""
        now = time.monotonic()
        if self.last is not None:
            self.seconds[what] += now - self.last
            self.many[what] += 1
        self.last = now

    def left(self, runs: Sequence[Run]) -> float | None:
        """Seconds; before the first evaluation, a row that is judged counts as half of one that is learned from."""
        if self.last is None or not self.many["step"]:
            return None
        step, to_go = (
            self.seconds["step"] / self.many["step"],
            [run for run in runs if run.stopped is None],
        )
        known = self.seconds["judge"] / self.many["judge"] if self.many["judge"] else None
        judging = sum(
            _evaluations_left(run)
            * (
                len(run.held_out) / run.config.tuning.batch_size * step / 2
                if known is None
                else known
            )
            for run in to_go
        )
        told = judging + step * sum(run.steps - run.step for run in to_go)
        return max(0.0, told - (time.monotonic() - self.last))


def _evaluations_left(run: Run) -> int:
    every = run.config.tuning.evaluate_every
    done = len({entry["step"] for entry in run.history if entry["step"]})
    return max(0, math.ceil(run.steps / every) - done)


class ProgressWatcher(Watcher):
    """A bar per run: steps, loss, the metric so far, rate and time left; and one more while it is evaluated."""

    def __init__(self, quiet: bool = False) -> None:
        console = Console(stderr=True)
        self.narrow = console.width < NARROW
        columns = (
            TextColumn("{task.description}"),
            BarColumn(8 if self.narrow else 40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            _Rate(),
            *(() if self.narrow else (TimeElapsedColumn(),)),
            TextColumn("left"),
            _Left(),
        )
        self.shown = console.is_terminal and not quiet
        self.pace = Pace()
        self.progress = Progress(*columns, console=console, disable=not self.shown)
        self.bars: dict[int, tuple[TaskID, TaskID]] = {}
        self.looked = 0.0

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def on_step(self, run: Run) -> None:
        self.pace.took("step")
        if self.shown and (run.finished or time.monotonic() - self.looked > REDRAWN):
            self.looked = time.monotonic()
            self.progress.update(
                self._bar(run)[0],
                completed=run.step,
                news=_news(run, self.narrow),
                left=self.pace.left([run]),
            )

    def on_rows_answered(self, run: Run, rows: int) -> None:
        if self.shown:
            self.progress.update(self._bar(run)[1], advance=rows, visible=True)

    def on_evaluation(self, run: Run) -> None:
        self.pace.took("judge")
        if self.shown:
            training, judging = self._bar(run)
            self.progress.reset(judging, visible=False)
            self.progress.update(training, news=_news(run, self.narrow), left=self.pace.left([run]))

    def _bar(self, run: Run) -> tuple[TaskID, TaskID]:
        if id(run) not in self.bars:
            name = (
                _short(run.task.name) if self.narrow else f"{run.task.name} seed {run.config.seed}"
            )
            training = self.progress.add_task(
                name, total=run.steps, completed=run.step - 1, news="", unit="steps"
            )
            judging = self.progress.add_task(
                "  evaluating", total=len(run.held_out), visible=False, news="", unit="rows"
            )
            self.bars[id(run)] = (training, judging)
        return self.bars[id(run)]


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"


def _news(run: Run, narrow: bool = False) -> str:
    if narrow and run.history:
        return f"{run.history[-1][run.metric]:.1f} (best {run.best_entry[run.metric]:.1f})"
    parts = [f"loss {loss}"] if (loss := _loss(run)) else []
    if run.history:
        parts.append(
            f"{run.metric} {run.history[-1][run.metric]:.1f} (best {run.best_entry[run.metric]:.1f})"
        )
    return "  ".join(parts)


def _loss(run: Run) -> str:
    """The last loss that is known. Another thread may be adding to it."""
    pending, history = run.pending, run.history
    return f"{pending[-1]:.3f}" if pending else f"{history[-1]['loss']:.3f}" if history else ""


class CohortWatcher(Watcher):
    """Many runs on one screen: a row for each, the unfinished first, and one bar over the steps of all.

    A thread draws it twice a second from the runs themselves, so that a step costs nothing.
    """

    def __init__(self, settings: Sequence[Mapping[str, Any]], quiet: bool = False) -> None:
        """`settings` set each run apart from the others."""
        self.console = Console(stderr=True)
        self.shown = self.console.is_terminal and not quiet
        self.settings = list(settings)
        self.runs: list[Run] = []
        self.ended = False
        self.judged: dict[int, int] = {}
        """Rows answered in the evaluation that a run is in, by the run's id."""
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            _Left(),
        )
        self.progress = Progress(
            TextColumn("{task.description}"), *columns, console=self.console, auto_refresh=False
        )
        self.pace = Pace()
        self.live = Live(console=self.console, get_renderable=self._screen, refresh_per_second=2)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended = error is None
        self.live.stop()

    def on_start(self, runs: Sequence[Run]) -> None:
        if self.shown:
            self.runs = list(runs)
            self.progress.add_task(
                f"{len(runs)} runs",
                total=sum(run.steps for run in runs),
                completed=self._done(),
                unit="run-steps",
            )
            self.live.start(refresh=True)

    def on_step(self, run: Run) -> None:
        self.pace.took("step")

    def on_rows_answered(self, run: Run, rows: int) -> None:
        self.judged[id(run)] = self.judged.get(id(run), 0) + rows

    def on_evaluation(self, run: Run) -> None:
        self.pace.took("judge")
        self.judged.pop(id(run), None)

    def _done(self) -> int:
        return sum(run.steps if run.finished else run.step for run in self.runs)

    def _screen(self) -> Group:
        for bar in self.progress.task_ids:
            self.progress.update(bar, completed=self._done(), left=self.pace.left(self.runs))
        return Group(*([] if self.ended else self._table()), self.progress)

    def _table(self) -> list[Table | Text]:
        """As many runs as the terminal is high."""
        room = max(1, self.console.height - 4)
        order = sorted(range(len(self.runs)), key=lambda place: self.runs[place].finished)
        table = Table(*self.settings[0], "step", "loss", "score", "best", box=None, pad_edge=False)
        for column in table.columns:
            column.no_wrap = True
        for place in order[:room]:
            table.add_row(*map(spell, self.settings[place].values()), *self._row(self.runs[place]))
        return [table, Text(f"... and {len(order) - room} more")] if len(order) > room else [table]

    def _row(self, run: Run) -> list[str]:
        entry = run.history[-1] if run.history else None
        score = f"{run.metric} {entry[run.metric]:.1f}" if entry else ""
        if id(run) in self.judged:
            score = f"evaluating {self.judged.get(id(run), 0)}/{len(run.held_out)}"
        best = f"{run.best_entry[run.metric]:.1f}" if entry else ""
        return [f"{run.step}/{run.steps}", "failed" if run.failed else _loss(run), score, best]


class RowProgress(Progress):
    """A bar over rows, for predicting and evaluating."""

    def __init__(self, what: str, rows: int, quiet: bool = False) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _Rate(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        super().__init__(
            *columns, console=console, disable=quiet or not console.is_terminal, transient=True
        )
        self.bar = self.add_task(what, total=rows, unit="rows")

    def tick(self, rows: int) -> None:
        self.update(self.bar, advance=rows)
