"""Garbage collections of a process that serves many prompts."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from softprompts.serving import garbage
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.garbage import short_collections

from ..models import random_model


@pytest.fixture(autouse=True)
def no_other_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The studio's tests leave a server running, whose collections are short, too."""
    others = [callback for callback in gc.callbacks if callback is garbage._on_collection]
    for callback in others:
        gc.callbacks.remove(callback)
    monkeypatch.setattr(garbage, "_users", 0)
    monkeypatch.setattr(garbage, "_frozen", False)
    yield
    gc.callbacks.extend(others)


class Node:
    """An object that can refer to itself."""

    other: "Node"


def cycle() -> Node:
    node = Node()
    node.other = node
    return node


def test_what_survives_a_long_collection_is_left_out_of_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "LONG", 0.0)
    garbage_before, alive = weakref.ref(cycle()), cycle()
    with short_collections():
        gc.collect()
        assert garbage_before() is None
        assert not any(seen is alive for seen in gc.get_objects())
        later = weakref.ref(cycle())
        gc.collect()
        assert later() is None
    assert any(seen is alive for seen in gc.get_objects())


def test_short_collections_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LONG", 60.0)
    alive = cycle()
    with short_collections():
        gc.collect()
        assert any(seen is alive for seen in gc.get_objects())


def test_who_leaves_first_unfreezes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LONG", 0.0)
    alive, callbacks = cycle(), len(gc.callbacks)
    with short_collections():
        with short_collections():
            gc.collect()
            assert len(gc.callbacks) == callbacks + 1
        assert not any(seen is alive for seen in gc.get_objects())
    assert any(seen is alive for seen in gc.get_objects())
    assert len(gc.callbacks) == callbacks


def test_engines_have_short_collections_while_they_run() -> None:
    callbacks = len(gc.callbacks)

    async def serve() -> None:
        engine = await AsyncEngine(random_model("t5")).start()
        assert len(gc.callbacks) == callbacks + 1
        await engine.close()
        await engine.close()

    asyncio.run(serve())
    assert len(gc.callbacks) == callbacks
