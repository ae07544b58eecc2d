"""Watchers follow runs, for example to show a progress bar."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from .run import Run


class Watcher:
    """Does nothing; subclasses override what they need."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def on_message(self, message: str) -> None:
        """A stage begins (loading, compiling, resuming), or there is something to warn of."""

    def on_row_plan(self, rows: int, done: int) -> None:
        """A tournament will read this many rows in all, of which `done` are behind it."""

    def on_start(self, runs: Sequence[Run]) -> None:
        """Before the first step."""

    def on_step(self, run: Run) -> None:
        """After each step of a run."""

    def on_rows_answered(self, run: Run, rows: int) -> None:
        """After `rows` more rows of an evaluation."""

    def on_evaluation(self, run: Run) -> None:
        """After an evaluation."""
