"""What a person at a terminal sees of a study: a bar over all its cells, and one over the cohort that runs here."""

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..study.plan import Cell
from ..study.records import pace, to_go
from ..study.workers import State, StudyWatcher
from ..tuning import Run
from .study import duration

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
        self.progress = Progress(
            *columns, console=console, disable=quiet or not console.is_terminal
        )
        self.all = self.progress.add_task("cells", total=len(cells), news="")
        self.cohort = self.progress.add_task("cohort", total=None, visible=False, news="")
        self.runs: Sequence[Run] = ()
        self.steps = 0
        self.left: list[Cell] = []
        """Cells that may still be run, the cohort's own among them."""
        self.pace: dict[str, float | None] = {}
        self.failed = ""
        self.looked_at = self.began_at = time.monotonic()
        self.begun_with = 0
        """Run-steps that the cohort had behind it when it began here."""

    def __enter__(self) -> "StudyBars":
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    def looked(self, state: State) -> None:
        left = [cell for cell in self.cells if cell.name not in state.done]
        self.pace, self.looked_at = pace(left, state), time.monotonic()
        self.left = [cell for cell in left if cell.name not in state.blocked]
        self.failed = f"  {len(state.failed)} failed" if state.failed else ""
        self.runs = ()
        self.progress.update(self.all, completed=len(self.cells) - len(left), news=self.news())

    def news(self) -> str:
        """How fast it goes and how long it will take, by what is done; of the first cohort, by its own steps so far."""
        rate, seconds = self.pace.get("cells_per_minute"), self.seconds_left()
        told = [
            *([f"{rate:.1f} cells/min"] if rate is not None else []),
            *([f"left {duration(seconds)}"] if seconds is not None else []),
        ]
        return "  ".join(told) + self.failed

    def seconds_left(self) -> float | None:
        now, known = time.monotonic(), self.pace.get("eta_seconds")
        done, steps = sum(run.step for run in self.runs), sum(run.steps for run in self.runs)
        a_step = (
            (now - self.began_at) / (done - self.begun_with) if done > self.begun_with else None
        )
        cohort = a_step * (steps - done) if a_step is not None else 0.0
        if known is not None:
            return max(cohort, known - (now - self.looked_at))
        if a_step is None:
            return None
        return max(cohort, a_step * (steps * to_go(self.left, steps, len(self.runs)) - done))

    def began(self, runs: Sequence[Run]) -> None:
        self.runs, self.steps = runs, 0
        self.began_at, self.begun_with = time.monotonic(), sum(run.step for run in runs)
        self.progress.reset(
            self.cohort,
            total=sum(run.steps for run in runs),
            visible=True,
            news=f"run-steps of {len(runs)} runs",
        )

    def stepped(self, run: Run) -> None:
        self.steps += 1
        if self.steps % REDRAWN == 0 or run.finished:
            self.progress.update(self.cohort, completed=sum(run.step for run in self.runs))
            self.progress.update(self.all, news=self.news())
