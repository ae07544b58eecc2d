"""Progress where there is no command line: a bar in notebooks, lines on standard error elsewhere.

The command line has its own bars on a terminal (`cli/progress.py`), and these lines in logs.
"""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from tqdm.auto import tqdm

from ..config import spell
from .run import Run
from .watch import Watcher

Settings = Mapping[str, Any]
QUIET_SECONDS = 5.0
"""Answers that take less time than this need no progress."""
HOLD_SECONDS = 0.5
"""Stages are announced once one takes this long, or all succeed: an error at once stands alone."""


def make_watcher(
    verbose: bool = True, varied: Sequence[Settings] = (), auto: bool = False
) -> Watcher:
    """The watcher of a call from Python; `varied` are the settings in which its runs differ.

    `auto`: its runs compete.
    """
    if not _prints(verbose):
        return Watcher()
    if auto:
        return RowLines()
    return Bars(varied) if _in_notebook() else Lines(varied)


def _prints(verbose: bool) -> bool:
    """Of several processes, the first one prints."""
    return verbose and os.environ.get("RANK", "0") == "0"


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


class Lines(Watcher):
    """A line for each stage and each evaluation."""

    def __init__(self, varied: Sequence[Settings] = ()) -> None:
        self.varied = list(varied)
        self.names: dict[int, str] = {}  # by the run's id
        self.started_at = time.monotonic()
        self.held: list[str] = []
        """Messages that wait for HOLD_SECONDS to pass, or for the start."""
        self.timer = threading.Timer(0, self.release)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.held.clear()
        self.release()

    def on_message(self, message: str) -> None:
        self.timer.cancel()
        self.held.append(message)
        self.timer = threading.Timer(HOLD_SECONDS, self.release)
        self.timer.daemon = True
        self.timer.start()

    def release(self) -> None:
        self.timer.cancel()
        with contextlib.suppress(IndexError):  # no more, or the other thread was faster
            while True:
                self.write(self.held.pop(0))

    def on_start(self, runs: Sequence[Run]) -> None:
        self.release()
        self.names = {
            id(run): ", ".join(f"{name} {spell(value)}" for name, value in settings.items())
            for run, settings in zip(runs, self.varied, strict=False)
        }

    def on_evaluation(self, run: Run) -> None:
        self.release()
        seconds = time.monotonic() - self.started_at
        name = self.names.get(id(run)) or run.task.name
        step = f"step {run.step} of {run.steps}, " if run.steps else ""
        self.write(f"{name}: {step}{scores(run)}, {seconds:.0f} s")
        if run.stopped is not None:
            self.write(f"{name}: stopped at step {run.step}: {run.stopped}")

    def write(self, line: str) -> None:
        print(f"softprompts: {line}", file=sys.stderr, flush=True)


class RowCount:
    """The rows that a tournament and its winner read: how many there are, how fast, time left."""

    def __init__(self) -> None:
        self.rows = self.done = self.before = 0
        self.started_at = time.monotonic()

    def plan(self, rows: int, done: int) -> None:
        """Rows that an earlier command read count as done, but not for the rate."""
        if not self.rows:
            self.before, self.started_at = done, time.monotonic()
        self.rows, self.done = rows, done

    def add_steps(self, run: Run, steps: int = 1) -> None:
        self.done += steps * run.config.tuning.batch_size * run.config.tuning.accumulate

    def add_resumed(self, runs: Sequence[Run]) -> None:
        """The steps that an earlier command took."""
        done = self.done
        for run in runs:
            self.add_steps(run, run.step)
        self.before += self.done - done

    @property
    def rate(self) -> float:
        """Rows per second."""
        return (self.done - self.before) / max(1e-9, time.monotonic() - self.started_at)

    @property
    def seconds_left(self) -> float | None:
        return (self.rows - self.done) / self.rate if self.done > self.before else None


class RowLines(Lines):
    """Lines for a tournament: its rungs, how far it is, and the winner's evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.count = RowCount()
        self.line_due = self.started_at + QUIET_SECONDS

    def on_row_plan(self, rows: int, done: int) -> None:
        self.count.plan(rows, done)

    def on_start(self, runs: Sequence[Run]) -> None:
        super().on_start(runs)
        self.count.add_resumed(runs)

    def on_step(self, run: Run) -> None:
        self.count.add_steps(run)
        self._progress()

    def on_rows_answered(self, run: Run, rows: int) -> None:
        self.count.done += rows
        self._progress()

    def on_evaluation(self, run: Run) -> None:
        if run.step >= run.steps:  # candidates are summed up by rung
            super().on_evaluation(run)

    def _progress(self) -> None:
        now, left = time.monotonic(), self.count.seconds_left
        if now < self.line_due or left is None:
            return
        self.line_due = now + max(QUIET_SECONDS, (now - self.started_at) / 10)
        self.release()
        self.write(
            f"{self.count.done:,} of {self.count.rows:,} row passes, {self.count.rate:,.0f} rows/s,"
            f" about {left:.0f} s left"
        )


class Bars(Lines):
    """One tqdm bar over the steps of all runs, with the last score beside it."""

    def __init__(self, varied: Sequence[Settings] = ()) -> None:
        super().__init__(varied)
        self.bar: Any = None
        self.done: dict[int, int] = {}
        """Steps that the bar has counted, by the run's id."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.close()

    def on_message(self, message: str) -> None:
        tqdm.write(message, file=sys.stderr)

    def on_start(self, runs: Sequence[Run]) -> None:
        super().on_start(runs)
        self.done = {id(run): run.step for run in runs}
        total, first = sum(run.steps for run in runs), sum(run.step for run in runs)
        name = runs[0].task.name if len(runs) == 1 else f"{len(runs)} runs"
        self.bar = tqdm(total=total, initial=first, desc=name, unit="step", file=sys.stderr)

    def on_step(self, run: Run) -> None:
        steps = run.steps if run.finished else run.step
        self.bar.update(steps - self.done[id(run)])
        self.done[id(run)] = steps

    def on_evaluation(self, run: Run) -> None:
        name = self.names.get(id(run))
        self.bar.set_postfix_str(f"{name}: {scores(run)}" if name else scores(run))


def scores(run: Run) -> str:
    """The loss and the metric of the last evaluation: `loss 0.412, accuracy 81.2 (best 84.0)`; of
    a run without training, the metric."""
    last, best = run.history[-1], run.best_entry
    metric = run.metric
    if not run.steps:
        return f"{metric} {last[metric]:.1f}"
    return f"loss {last['loss']:.3f}, {metric} {last[metric]:.1f} (best {best[metric]:.1f})"


class RowProgress:
    """Called with the rows that have just been answered: once it takes long, a bar in notebooks,
    lines elsewhere."""

    def __init__(self, rows: int, verbose: bool = True) -> None:
        self.rows, self.shown = rows, _prints(verbose)
        self.answered, self.started_at = 0, time.monotonic()
        self.line_due = self.started_at + QUIET_SECONDS
        self.bar: Any = None
        if self.shown and _in_notebook():
            self.bar = tqdm(
                total=rows, desc="answering", unit="row", delay=QUIET_SECONDS, file=sys.stderr
            )

    def __call__(self, rows: int) -> None:
        self.answered += rows
        now = time.monotonic()
        if self.bar is not None:
            self.bar.update(rows)
            if self.answered >= self.rows:
                self.bar.close()
        elif self.shown and self.line_due <= now and self.answered < self.rows:
            seconds = now - self.started_at
            left = seconds * (self.rows / self.answered - 1)
            self.line_due = now + max(QUIET_SECONDS, seconds / 10)
            print(
                f"softprompts: {self.answered:,} of {self.rows:,} rows answered, "
                f"{seconds:.0f} s, about {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
