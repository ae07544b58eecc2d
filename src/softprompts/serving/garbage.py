"""Keeps garbage collections short, however many prompts are loaded.

Ten thousand prompts are more than a million Python objects. A full collection would scan all of
them, for up to a second, during which no request is answered. Objects that survive a long
collection are therefore excluded from later ones.
"""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

LONG = 0.02
"""Seconds; a full collection that takes longer has its survivors frozen."""


@contextmanager
def short_collections() -> Iterator[None]:
    """Within, objects that survive a long full collection are frozen; at the end, unfrozen."""
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
