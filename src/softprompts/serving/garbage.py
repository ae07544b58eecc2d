"""Short garbage collections, however many prompts are loaded.

Ten thousand prompts are more than a million Python objects, and a full collection would scan all of
them for up to a second, during which nothing is answered. Objects that survive a long collection
are therefore excluded from later ones.
"""

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LONG = 0.02
"""Seconds of processor time after which a full collection counts as long."""

_lock = threading.Lock()
_users = 0
_began, _frozen = 0.0, False


@contextmanager
def short_collections() -> Iterator[None]:
    """Inside, what survives a long full collection is frozen; it is unfrozen when the last of those
    who use this, in any thread, leaves."""
    global _users, _frozen
    with _lock:
        _users += 1
        if _users == 1:
            gc.callbacks.append(_on_collection)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                gc.callbacks.remove(_on_collection)
                if _frozen:
                    gc.unfreeze()
                _frozen = False


def _on_collection(phase: str, info: dict[str, int]) -> None:
    global _began, _frozen
    if phase == "start":
        _began = time.thread_time()
    elif info["generation"] == 2 and time.thread_time() - _began > LONG:
        gc.freeze()
        _frozen = True
