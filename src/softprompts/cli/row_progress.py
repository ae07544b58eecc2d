"""A bar over rows, or lines in logs. No torch here: a client of a server has one, too."""

import sys
import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

LINE_SECONDS = 10.0
"""Seconds between lines where there is no terminal."""


class RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        unit = task.fields.get("unit", "steps")
        return Text(f"{task.speed:.1f} {unit}/s" if task.speed else f"- {unit}/s", style="cyan")


class RowProgress(Progress):
    """A bar over rows, for predicting and evaluating; without a terminal, a line now and then."""

    def __init__(self, description: str, rows: int, quiet: bool = False) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            RateColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        super().__init__(
            *columns, console=console, disable=quiet or not console.is_terminal, transient=True
        )
        self.bar = self.add_task(description, total=rows, unit="rows")
        self.lines = not quiet and not console.is_terminal
        self.started_at = time.monotonic()
        self.line_due = self.started_at + LINE_SECONDS

    def advance_rows(self, rows: int) -> None:
        self.update(self.bar, advance=rows)
        now, task = time.monotonic(), self.tasks[0]
        if self.lines and now >= self.line_due and not task.finished:
            self.line_due = now + LINE_SECONDS
            seconds = now - self.started_at
            left = seconds * (task.remaining or 0) / task.completed
            print(
                f"softprompts: {task.description}: {task.completed:,.0f} of {task.total:,.0f}, "
                f"{seconds:.0f} s, about {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )
