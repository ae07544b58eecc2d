"""What a person at a terminal sees of long work; nothing at all where there is no terminal."""

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from .tuning import Run


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        unit = task.fields.get("unit", "steps")
        return Text(f"{task.speed:.1f} {unit}/s" if task.speed else f"- {unit}/s", style="cyan")


class ProgressWatcher:
    """A bar per run: steps, loss, the metric so far, rate and time left; and one more while it is evaluated."""

    def __init__(self, quiet: bool = False) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[news]}"),
            _Rate(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self.shown = console.is_terminal and not quiet
        self.progress = Progress(*columns, console=console, disable=not self.shown)
        self.bars: dict[int, tuple[TaskID, TaskID]] = {}

    def __enter__(self) -> "ProgressWatcher":
        self.progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.stop()

    def stepped(self, run: Run) -> None:
        if self.shown:
            self.progress.update(self._bar(run)[0], completed=run.step, news=_news(run))

    def evaluating(self, run: Run, rows: int) -> None:
        if self.shown:
            self.progress.update(self._bar(run)[1], advance=rows, visible=True)

    def evaluated(self, run: Run) -> None:
        if self.shown:
            training, judging = self._bar(run)
            self.progress.reset(judging, visible=False)
            self.progress.update(training, news=_news(run))

    def _bar(self, run: Run) -> tuple[TaskID, TaskID]:
        if id(run) not in self.bars:
            name = f"{run.task.name} seed {run.config.seed}"
            training = self.progress.add_task(name, total=run.steps, completed=run.step - 1, news="", unit="steps")
            judging = self.progress.add_task("  evaluating", total=len(run.held_out), visible=False, news="", unit="rows")
            self.bars[id(run)] = (training, judging)
        return self.bars[id(run)]


def _news(run: Run) -> str:
    loss = run.pending[-1] if run.pending else run.history[-1]["loss"] if run.history else None
    parts = [f"loss {loss:.3f}"] if loss is not None else []
    if run.history:
        parts.append(f"{run.metric} {run.history[-1][run.metric]:.1f} (best {run.best_entry[run.metric]:.1f})")
    return "  ".join(parts)


class RowProgress(Progress):
    """A bar over rows, for predicting and evaluating."""

    def __init__(self, what: str, rows: int, quiet: bool = False) -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TextColumn("left"), TimeRemainingColumn())
        super().__init__(*columns, console=console, disable=quiet or not console.is_terminal, transient=True)
        self.bar = self.add_task(what, total=rows, unit="rows")

    def tick(self, rows: int) -> None:
        self.update(self.bar, advance=rows)
