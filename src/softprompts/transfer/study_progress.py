"""What a person at a terminal sees of a study: a bar over all its cells, and one over the cohort that runs here."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..tuning import Run
from .records import pace
from .study import Cell
from .study_command import duration
from .workers import State, StudyWatcher

REDRAWN = 20
"""Steps of runs between two looks at a cohort."""


class StudyBars(StudyWatcher):
    """Cells done of all, cells a minute, time left; runs and steps of the cohort. Nothing at all where there is no terminal."""

    def __init__(self, cells: Sequence[Cell], quiet: bool = False) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            TimeElapsedColumn(),
        )
        self.cells = cells
        self.progress = Progress(*columns, console=console, disable=quiet or not console.is_terminal)
        self.all = self.progress.add_task("cells", total=len(cells), news="")
        self.cohort = self.progress.add_task("cohort", total=None, visible=False, news="")
        self.runs: Sequence[Run] = ()
        self.steps = 0

    def __enter__(self) -> "StudyBars":
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def looked(self, state: State) -> None:
        left = [cell for cell in self.cells if cell.name not in state.done]
        told = pace(left, state)
        rate = "" if told["cells_per_minute"] is None else f"{told['cells_per_minute']:.1f} cells/min  left {duration(told['eta_seconds'])}"
        failed = f"  {len(state.failed)} failed" if state.failed else ""
        self.progress.update(self.all, completed=len(self.cells) - len(left), news=rate + failed)

    def began(self, runs: Sequence[Run]) -> None:
        self.runs, self.steps = runs, 0
        self.progress.reset(self.cohort, total=sum(run.steps for run in runs), visible=True, news=f"run-steps of {len(runs)} runs")

    def stepped(self, run: Run) -> None:
        self.steps += 1
        if self.steps % REDRAWN == 0 or run.finished:
            self.progress.update(self.cohort, completed=sum(run.step for run in self.runs))
