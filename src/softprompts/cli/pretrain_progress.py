"""Progress bars of `softprompts pretrain`, one stage at a time."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..pretraining.corpus import OnProgress
from ..pretraining.train import Watcher

COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    TaskProgressColumn(),
    TextColumn("{task.fields[note]}"),
    TimeElapsedColumn(),
    TextColumn("left"),
    TimeRemainingColumn(),
)


class PretrainProgress(Watcher):
    """Bars on a terminal; nothing without one."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self.shown = self.console.is_terminal and not quiet

    @contextmanager
    def stage(self, name: str, total: float | None, completed: int = 0) -> Iterator[OnProgress]:
        with Progress(*COLUMNS, console=self.console, disable=not self.shown) as progress:
            task = progress.add_task(name, total=total, completed=completed, note="")

            def update(completed: int, note: str) -> None:
                fields = {"note": note} if note else {}
                progress.update(task, completed=completed, **fields)  # type: ignore[arg-type]

            yield update
