"""A bar over rows. No torch here: a client of a server has one, too."""

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


class RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        unit = task.fields.get("unit", "steps")
        return Text(f"{task.speed:.1f} {unit}/s" if task.speed else f"- {unit}/s", style="cyan")


class RowProgress(Progress):
    """A bar over rows, for predicting and evaluating."""

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

    def advance_rows(self, rows: int) -> None:
        self.update(self.bar, advance=rows)
