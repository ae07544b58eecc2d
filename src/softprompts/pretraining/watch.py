"""Watchers follow the progress of pretraining, for example to show a progress bar."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnStage = Callable[[int, str], None]
"""Called with how much of a stage is done, and a note that says more, such as the loss, or ""."""


class Watcher:
    """A no-op; subclasses show each stage of the work, such as tokenising."""

    @contextmanager
    def stage(self, name: str, total: float | None, completed: int = 0) -> Iterator[OnStage]:
        """A stage begins, with `completed` of `total` done already; None: of unknown size."""
        yield lambda completed, note: None
