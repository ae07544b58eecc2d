"""What a person at a terminal sees of pretraining: one bar at a time."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bar:
    def __init__(self, progress: Progress, task: TaskID) -> None:
        self.progress, self.task = progress, task

    def at(self, completed: int) -> None:
        self.progress.update(self.task, completed=completed)

    def news(self, text: str) -> None:
        self.progress.update(self.task, news=text)

    def tokens(self, read: int, count: int) -> None:
        self.progress.update(self.task, completed=read, news=f"{count / 1e6:.1f}M tokens")


class Watcher:
    """Nothing is shown where there is no terminal."""

    def __init__(self, quiet: bool = False) -> None:
        self.console = Console(stderr=True)
        self.shown = self.console.is_terminal and not quiet

    @contextmanager
    def bar(self, what: str, total: float | None, completed: int = 0) -> Iterator[Bar]:
        """A bar over `total` of something, or one that only says that work goes on."""
        columns = (
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[news]}"), TimeElapsedColumn(),
            TextColumn("left"), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=self.console, disable=not self.shown) as progress:
            yield Bar(progress, progress.add_task(what, total=total, completed=completed, news=""))
