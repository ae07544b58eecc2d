"""Where the time of a command goes."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Seconds by phase: start, data, model, tokenise, compile, train, evaluate, baseline, pictures,
    finish.

    A phase inside another one is not counted as part of it.
    """

    def __init__(self, began: float | None = None) -> None:
        """`began`: when the command started, by the monotonic clock; default: now."""
        self._current, self._since = "start", time.monotonic() if began is None else began
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Inside, time is counted as this phase's."""
        before = self._current
        self._switch(name)
        try:
            yield
        finally:
            self._switch(before)

    def _switch(self, name: str) -> None:
        now = time.monotonic()
        self._seconds[self._current] += now - self._since
        self._current, self._since = name, now

    def move(self, origin: str, name: str, seconds: float) -> None:
        """Count seconds of one phase as another's."""
        self._seconds[origin] -= seconds
        self._seconds[name] += seconds

    def seconds(self) -> dict[str, float]:
        """The seconds of each phase so far, rounded."""
        self._switch(self._current)
        return {name: round(max(0.0, part), 1) for name, part in self._seconds.items()}
