"""Engines that share a model take turns: a pass changes the model's modules while it runs."""

import threading
import time
from collections import deque
from weakref import WeakKeyDictionary

from torch import nn


class Turns:
    """A fair lock: threads acquire it in the order in which they asked for it.

    with turns as lasted:  # the seconds of the turn that this one waited for; 0 if it did not wait
        ...
        turns.extend()  # what follows does not count
    """

    def __init__(self) -> None:
        self._condition, self._queue = threading.Condition(), deque[object]()
        self._began = self._lasted = 0.0
        self._extended: float | None = None
        """When the turn went on only to be as long as the one before."""

    def __enter__(self) -> float:
        ticket = object()
        with self._condition:
            waits = bool(self._queue)
            self._queue.append(ticket)
            try:
                self._condition.wait_for(lambda: self._queue[0] is ticket)
            except BaseException:  # the others must not wait for this ticket
                self._queue.remove(ticket)
                self._condition.notify_all()
                raise
            self._began, self._extended = time.perf_counter(), None
            return self._lasted if waits else 0.0

    def extend(self) -> None:
        """The turn goes on only to be as long as the one before. What it takes from now on does not
        count, or the next would be as long in turn, and one long turn would make all others so."""
        self._extended = self._extended or time.perf_counter()

    def __exit__(self, *error: object) -> None:
        with self._condition:
            self._lasted = (self._extended or time.perf_counter()) - self._began
            self._queue.popleft()
            self._condition.notify_all()


_of_models: WeakKeyDictionary[nn.Module, Turns] = WeakKeyDictionary()
_lock = threading.Lock()


def turns_of(model: nn.Module) -> Turns:
    with _lock:
        return _of_models.setdefault(model, Turns())
