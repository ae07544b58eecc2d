"""Short garbage collections, however many prompts are loaded.

Ten thousand prompts are more than a million Python objects, and a full collection would look at all
of them for up to a second, in which nothing is answered. Objects that have survived a collection
that took long are therefore left out of later ones.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

LONG = 0.02
"""Seconds that a collection may take without consequences."""


@contextmanager
def short_collections() -> Iterator[None]:
    """Inside, what survives a full collection that took long is frozen; unfrozen at the end."""
    began, frozen = 0.0, False

    def on_collection(phase: str, info: dict[str, int]) -> None:
        nonlocal began, frozen
        if phase == "start":
            began = time.perf_counter()
        elif info["generation"] == 2 and time.perf_counter() - began > LONG:
            gc.freeze()
            frozen = True

    gc.callbacks.append(on_collection)
    try:
        yield
    finally:
        gc.callbacks.remove(on_collection)
        if frozen:
            gc.unfreeze()
