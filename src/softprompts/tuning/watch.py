"""Watchers: who hears how runs get on, such as a progress bar or a tracker."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from .run import Run


class Watcher:
    """A no-op; subclasses override what they want to hear of."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def began(self, runs: Sequence[Run]) -> None:
        """Before the first step."""

    def stepped(self, run: Run) -> None:
        """After each step of a run."""

    def evaluating(self, run: Run, rows: int) -> None:
        """`rows` more rows were answered in an evaluation."""

    def evaluated(self, run: Run) -> None:
        """After an evaluation."""
