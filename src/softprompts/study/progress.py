"""How far a study is and how long it will take; lines about it in a log."""

import sys
import time
from collections.abc import Sequence
from datetime import timedelta

from ..tuning import Run
from .plan import Cell
from .state import Pace, StudyState, StudyWatcher, pace, relative_work

FIRST_LINE = 30.0
"""Seconds after which a log has the first line about a cohort; later ones are farther apart."""


class StudyProgress(StudyWatcher):
    """The cells of a study, and the cohort of this process."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.cells = cells
        self.done = self.failed = 0
        self.remaining: list[Cell] = []
        """Cells that may still run, those of the cohort among them."""
        self.pace: Pace = {"cells_per_minute": None, "eta_seconds": None}
        self.runs: Sequence[Run] = ()
        self.updated_at = self.started_at = time.monotonic()
        self.steps_at_start = 0
        """Run-steps of the cohort before it started here."""

    def on_update(self, state: StudyState) -> None:
        missing = [cell for cell in self.cells if cell.name not in state.done]
        self.done, self.failed = len(self.cells) - len(missing), len(state.failed)
        self.pace, self.updated_at = pace(missing, state), time.monotonic()
        self.remaining = [cell for cell in missing if cell.name not in state.blocked]
        self.runs = ()

    def on_start(self, runs: Sequence[Run]) -> None:
        self.runs, self.started_at = runs, time.monotonic()
        self.steps_at_start = self.steps_done

    @property
    def steps_done(self) -> int:
        """Run-steps of the cohort."""
        return sum(run.step for run in self.runs)

    @property
    def steps(self) -> int:
        """Run-steps of the cohort, and those to come."""
        return sum(run.steps for run in self.runs)

    def seconds_left(self) -> float | None:
        """By finished cells; during the first cohort, by its steps so far."""
        now, eta = time.monotonic(), self.pace["eta_seconds"]
        new = self.steps_done - self.steps_at_start
        seconds_per_step = (now - self.started_at) / new if new > 0 else None
        to_come = self.steps - self.steps_done
        cohort = seconds_per_step * to_come if seconds_per_step is not None else 0.0
        if eta is not None:
            return max(cohort, eta - (now - self.updated_at))
        if seconds_per_step is None:
            return None
        all_steps = self.steps * relative_work(self.remaining, self.steps, len(self.runs))
        return max(cohort, seconds_per_step * (all_steps - self.steps_done))


class StudyLines(StudyProgress):
    """A line on standard error whenever cells have finished, and now and then in between."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        super().__init__(cells)
        self.line, self.line_due = "", self.started_at + FIRST_LINE

    def on_update(self, state: StudyState) -> None:
        super().on_update(state)
        failed = f", {self.failed} failed" if self.failed else ""
        line = f"{self.done} of {len(self.cells)} cells are done{failed}"
        if line != self.line:
            self.line = line
            self._write(line)

    def on_start(self, runs: Sequence[Run]) -> None:
        super().on_start(runs)
        self.line_due = self.started_at + FIRST_LINE

    def on_step(self, run: Run) -> None:
        now = time.monotonic()
        if now < self.line_due:
            return
        self.line_due = now + max(FIRST_LINE, (now - self.started_at) / 4)
        left = self.seconds_left()
        about = "" if left is None else f", about {timedelta(seconds=round(left))} left in all"
        self._write(f"{self.steps_done:,} of {self.steps:,} run-steps of this cohort{about}")

    def _write(self, line: str) -> None:
        print(f"softprompts: {line}", file=sys.stderr, flush=True)
