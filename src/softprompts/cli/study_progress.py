"""Progress bars of a study: one over all its cells, one over the cohort of this process."""

import time
from collections.abc import Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..study.plan import Cell
from ..study.state import Pace, StudyLines, StudyState, StudyWatcher, pace, relative_work
from ..tuning import Run
from .output import duration
from .progress import Bars

STEPS_PER_UPDATE = 20
"""Steps of runs between two updates of the bars."""


class StudyBars(Bars, StudyWatcher):
    """Finished cells, cells per minute and time left; runs and steps of the cohort.

    Without a terminal, a line whenever cells have finished.
    """

    def __init__(self, cells: Sequence[Cell], quiet: bool = False) -> None:
        super().__init__(quiet, StudyLines(cells))
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[info]}"),
            TimeElapsedColumn(),
        )
        self.cells = cells
        self.progress = Progress(*columns, console=self.console, disable=not self.shown)
        self.all = self.progress.add_task("cells", total=len(cells), info="")
        self.cohort = self.progress.add_task("cohort", total=None, visible=False, info="")
        self.runs: Sequence[Run] = ()
        self.steps = 0
        self.remaining: list[Cell] = []
        """Cells that may still run, those of the cohort among them."""
        self.pace: Pace = {"cells_per_minute": None, "eta_seconds": None}
        self.failed = ""
        self.updated_at = self.started_at = time.monotonic()
        self.steps_at_start = 0
        """Run-steps of the cohort before it started here."""

    def on_update(self, state: StudyState) -> None:
        if isinstance(self.log, StudyLines):
            self.log.on_update(state)
        missing = [cell for cell in self.cells if cell.name not in state.done]
        self.pace, self.updated_at = pace(missing, state), time.monotonic()
        self.remaining = [cell for cell in missing if cell.name not in state.blocked]
        self.failed = f"  {len(state.failed)} failed" if state.failed else ""
        self.runs = ()
        self.progress.update(self.all, completed=len(self.cells) - len(missing), info=self.info())

    def info(self) -> str:
        """Pace and time left, by finished cells; during the first cohort, by its steps so far."""
        rate, seconds = self.pace["cells_per_minute"], self.seconds_left()
        parts = [
            *([f"{rate:.1f} cells/min"] if rate is not None else []),
            *([f"left {duration(seconds)}"] if seconds is not None else []),
        ]
        return "  ".join(parts) + self.failed

    def seconds_left(self) -> float | None:
        now, eta = time.monotonic(), self.pace["eta_seconds"]
        done, steps = sum(run.step for run in self.runs), sum(run.steps for run in self.runs)
        new = done - self.steps_at_start
        seconds_per_step = (now - self.started_at) / new if new > 0 else None
        cohort = seconds_per_step * (steps - done) if seconds_per_step is not None else 0.0
        if eta is not None:
            return max(cohort, eta - (now - self.updated_at))
        if seconds_per_step is None:
            return None
        all_steps = steps * relative_work(self.remaining, steps, len(self.runs))
        return max(cohort, seconds_per_step * (all_steps - done))

    def on_start(self, runs: Sequence[Run]) -> None:
        self.runs, self.steps = runs, 0
        self.started_at, self.steps_at_start = time.monotonic(), sum(run.step for run in runs)
        self.progress.reset(
            self.cohort,
            total=sum(run.steps for run in runs),
            visible=True,
            info=f"run-steps of {len(runs)} runs",
        )

    def on_step(self, run: Run) -> None:
        self.steps += 1
        if self.steps % STEPS_PER_UPDATE == 0 or run.finished:
            self.progress.update(self.cohort, completed=sum(run.step for run in self.runs))
            self.progress.update(self.all, info=self.info())
