"""Watchers follow the progress of pretraining, for example to show a progress bar."""

from collections.abc import Iterator
from contextlib import contextmanager


class Stage:
    """One stage of the work, such as tokenising. A no-op; subclasses show it."""

    def update(self, completed: int, note: str = "") -> None:
        """`completed` of the stage's total is done; the note says more, such as the loss."""


class Watcher:
    """A no-op; subclasses show each stage."""

    @contextmanager
    def stage(self, name: str, total: float | None, completed: int = 0) -> Iterator[Stage]:
        """A stage begins, with `completed` of `total` done already; None: of unknown size."""
        yield Stage()
