"""Engines that share a model take turns: a pass changes the model's modules while it runs."""

import threading
from weakref import WeakKeyDictionary

from torch import nn


class Turns:
    """A fair lock: threads acquire it in the order in which they asked for it."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._next = self._current = 0

    def __enter__(self) -> None:
        with self._condition:
            number, self._next = self._next, self._next + 1
            while number != self._current:
                self._condition.wait()

    def __exit__(self, *error: object) -> None:
        with self._condition:
            self._current += 1
            self._condition.notify_all()


_of_models: WeakKeyDictionary[nn.Module, Turns] = WeakKeyDictionary()
_lock = threading.Lock()


def turns_of(model: nn.Module) -> Turns:
    with _lock:
        return _of_models.setdefault(model, Turns())
