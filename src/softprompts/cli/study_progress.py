"""Progress bars of a study: one over all its cells, one over the cohort of this process."""

from collections.abc import Sequence

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..study.plan import Cell
from ..study.progress import StudyLines, StudyProgress
from ..study.state import StudyState, StudyWatcher
from ..tuning import Run
from .output import duration
from .progress import Bars

STEPS_PER_UPDATE = 20
"""Steps of runs between two updates of the bars."""


class StudyBars(Bars, StudyWatcher):
    """Finished cells, cells per minute and time left; runs and steps of the cohort.

    Without a terminal, lines.
    """

    def __init__(self, cells: Sequence[Cell], quiet: bool = False) -> None:
        lines = StudyLines(cells)
        super().__init__(quiet, lines)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[info]}"),
            TimeElapsedColumn(),
        )
        self.study = lines if self.log is lines else StudyProgress(cells)
        self.progress = Progress(*columns, console=self.console, disable=not self.shown)
        self.all = self.progress.add_task("cells", total=len(cells), info="")
        self.cohort = self.progress.add_task("cohort", total=None, visible=False, info="")
        self.steps = 0

    def on_update(self, state: StudyState) -> None:
        self.study.on_update(state)
        self.progress.update(self.all, completed=self.study.done, info=self.info())

    def info(self) -> str:
        """Pace, time left and failures."""
        rate, seconds = self.study.pace["cells_per_minute"], self.study.seconds_left()
        parts = [
            *([f"{rate:.1f} cells/min"] if rate is not None else []),
            *([f"left {duration(seconds)}"] if seconds is not None else []),
            *([f"{self.study.failed} failed"] if self.study.failed else []),
        ]
        return "  ".join(parts)

    def on_start(self, runs: Sequence[Run]) -> None:
        self.study.on_start(runs)
        self.steps = 0
        self.progress.reset(
            self.cohort,
            total=self.study.steps,
            visible=True,
            info=f"run-steps of {len(runs)} runs",
        )

    def on_step(self, run: Run) -> None:
        self.study.on_step(run)
        self.steps += 1
        if self.steps % STEPS_PER_UPDATE == 0 or run.finished:
            self.progress.update(self.cohort, completed=self.study.steps_done)
            self.progress.update(self.all, info=self.info())
