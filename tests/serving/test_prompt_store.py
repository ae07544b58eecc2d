"""Prompts on disk: loaded when they are asked for, and up to date without a restart."""

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from softprompts.backbone import Backbone
from softprompts.errors import UserError
from softprompts.library.library import Library
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.prompt_store import PromptStore
from softprompts.serving.requests import BrokenPrompt, Limits, UnknownPrompt

from ..models import random_model
from .test_engine import MOODS, TEXTS, tuned


def fill(library: Path, backbone: Backbone, seeds: range, **choices: Any) -> None:
    for seed in seeds:
        tuned(backbone, seed, MOODS, scoring="labels", **choices).save(library / f"p{seed}")


def serve(
    backbone: Backbone, library: Any, ask: Callable[[AsyncEngine], Awaitable[None]], **limits: Any
) -> None:
    async def main() -> None:
        async with AsyncEngine(backbone, library, limits=Limits(**limits)) as engine:
            await ask(engine)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_prompts_come_go_and_change_without_a_restart(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backbone = random_model(kind)
    fill(tmp_path / "library", backbone, range(3), length=3)
    fill(tmp_path / "runs", backbone, range(3, 6), length=3)
    library = Library(tmp_path / "library")

    async def ask(engine: AsyncEngine) -> None:
        async def check(name: str, seed: int) -> None:
            got = await engine.classify(name, TEXTS[0])
            expected = tuned(backbone, seed, MOODS, scoring="labels", length=3)
            probabilities = expected.probabilities([TEXTS[0]])[0]
            assert got.probabilities == pytest.approx(probabilities, rel=1e-4)

        for seed in range(3):
            await check(f"p{seed}", seed)
        assert engine.names() == ["p0", "p1", "p2"]
        with pytest.raises(UnknownPrompt):
            await engine.classify("p4", TEXTS[0])
        library.add(tmp_path / "runs" / "p4")
        await check("p4", 4)
        for seed in (5, 3):
            library.add(tmp_path / "runs" / f"p{seed}", "p4", overwrite=True)
            await check("p4", seed)
        assert engine.names() == ["p0", "p1", "p2", "p4"]
        library.remove("p0")
        with pytest.raises(UnknownPrompt, match="no prompt 'p0'"):
            await engine.classify("p0", TEXTS[0])
        assert [prompt.name for prompt in engine.prompts()] == ["p1", "p2", "p4"]
        assert engine.prompt("p1").labels == MOODS
        (tmp_path / "library" / "p1" / "prompt.safetensors").write_bytes(b"broken")
        with pytest.raises(BrokenPrompt, match="p1 cannot be used"):
            await engine.classify("p1", TEXTS[0])
        (tmp_path / "library" / "p2" / "prompt.json").write_text("{}")
        assert engine.names() == ["p4"] or engine.names() == ["p2", "p4"]
        with pytest.raises(BrokenPrompt, match="p2 cannot be used"):
            await engine.classify("p2", TEXTS[0])
        assert engine.names() == ["p4"]
        await check("p4", 3)
        library.add(tmp_path / "runs" / "p5", "p1", overwrite=True)
        await check("p1", 5)

    with caplog.at_level(logging.WARNING, "softprompts.serving"):
        serve(backbone, tmp_path / "library", ask)
    named = [record.getMessage() for record in caplog.records]
    assert sum("The prompt p1 cannot be used" in text for text in named) == 1
    assert sum("The prompt p2 cannot be used" in text for text in named) == 1


def test_a_prompt_that_is_being_replaced_is_waited_for(tmp_path: Path) -> None:
    """For a moment neither version has its name."""
    backbone, library = random_model("t5"), tmp_path / "library"
    fill(library, backbone, range(2), length=3)
    fill(tmp_path / "runs", backbone, range(1, 2), length=4)
    store = PromptStore(backbone, [library], {}, 2**30)
    assert store.load("p1").tuned.prompt.config.length == 3
    (library / "p1").rename(library / ".old-p1")
    assert store.names() == ["p0", "p1"]
    swap = threading.Timer(0.1, (tmp_path / "runs" / "p1").rename, [library / "p1"])
    swap.start()
    assert store.card("p1").card.prompt.length == 4
    assert store.load("p1").tuned.prompt.config.length == 4
    swap.join()
    (library / "p0").rename(tmp_path / "removed")
    with pytest.raises(UnknownPrompt):
        store.card("p0")


def test_a_removed_prompt_leaves_the_device_though_nobody_asks_for_it(tmp_path: Path) -> None:
    backbone = random_model("t5")
    fill(tmp_path / "library", backbone, range(3), length=3)

    async def ask(engine: AsyncEngine) -> None:
        for seed in range(3):
            await engine.classify(f"p{seed}", TEXTS[0])
        assert engine.stats().on_device == 3
        Library(tmp_path / "library").remove("p1")
        assert engine.names() == ["p0", "p2"]
        for _ in range(2):  # the worker drops it after a round
            await engine.classify("p0", TEXTS[0])
        assert engine.stats().on_device == 2

    serve(backbone, tmp_path / "library", ask)


def test_a_prompt_is_known_without_reading_until_its_files_change(tmp_path: Path) -> None:
    backbone = random_model("t5")
    fill(tmp_path / "library", backbone, range(2), length=3)
    fill(tmp_path / "runs", backbone, range(2, 3), length=3)
    library = Library(tmp_path / "library")

    async def ask(engine: AsyncEngine) -> None:
        await asyncio.to_thread(engine.names)
        served = engine.prompt("p0")
        assert engine.known_prompt("p0") is served
        assert engine.known_prompt("p9") is None
        library.add(tmp_path / "runs" / "p2", "p0", overwrite=True)
        assert engine.known_prompt("p0") is None
        replaced = engine.prompt("p0")
        assert replaced is not served
        assert engine.known_prompt("p0") is replaced
        (tmp_path / "library" / "p1" / "prompt.safetensors").write_bytes(b"broken")
        with pytest.raises(BrokenPrompt):
            await engine.classify("p1", TEXTS[0])
        assert engine.known_prompt("p1") is None
        library.add(tmp_path / "runs" / "p2", "p1", overwrite=True)
        repaired = engine.prompt("p1")
        assert engine.known_prompt("p1") is repaired
        library.remove("p0")
        assert engine.known_prompt("p0") is None

    serve(backbone, tmp_path / "library", ask)


def test_a_prompt_from_memory_is_always_known() -> None:
    backbone = random_model("t5")
    engine = AsyncEngine(backbone, prompts={"mood": tuned(backbone, 1, MOODS)})
    known = engine.known_prompt("mood")
    assert known is not None
    assert known.labels == MOODS


def test_tiers_keep_their_bounds_and_the_answers(tmp_path: Path) -> None:
    backbone = random_model("t5")
    fill(tmp_path, backbone, range(12), length=4)
    expected = {
        f"p{seed}": tuned(backbone, seed, MOODS, scoring="labels", length=4).predict(TEXTS[:2])
        for seed in range(12)
    }

    async def ask(engine: AsyncEngine) -> None:
        async def check(names: list[str]) -> None:
            for name in names:
                asked = (engine.classify(name, text) for text in TEXTS[:2])
                assert [one.label for one in await asyncio.gather(*asked)] == expected[name]

        await check(["p3", "p3"])
        assert (engine.stats().loads, engine.stats().in_memory) == (1, 1)
        await check(list(expected))
        stats = engine.stats()
        assert stats.loads == 12
        assert stats.in_memory == 5
        assert stats.on_device <= 6
        await check(["p11"])
        assert engine.stats().loads == 12, "among the five that were used last"
        await check(["p7", "p0"])  # the oldest of the five, and one that takes the place of p8
        assert engine.stats().loads == 13
        await check(["p7"])
        assert engine.stats().loads == 13
        crowd = await asyncio.gather(*(engine.classify(name, TEXTS[0]) for name in expected))
        assert [one.label for one in crowd] == [labels[0] for labels in expected.values()]
        assert engine.stats().on_device <= 6, "not all prompts of a batch are on the device"

    one = 16_384 + 4 * 32 * 4
    vectors = (6 * 4 + 1) * 32 * 4
    serve(backbone, tmp_path, ask, memory_bytes=5 * one, device_bytes=vectors, batch_rows=64)


def test_a_run_is_a_prompt_and_a_prompt_of_another_model_is_not_served(tmp_path: Path) -> None:
    backbone, other = random_model("t5"), random_model("mt5")
    tuned(backbone, 1, MOODS).save(tmp_path / "run")
    tuned(backbone, 2, MOODS).save(tmp_path / "library" / "ours")
    tuned(other, 3, MOODS).save(tmp_path / "library" / "theirs")
    (tmp_path / "library" / "empty").mkdir()
    (tmp_path / "library" / ".new-hidden").mkdir()

    async def ask(engine: AsyncEngine) -> None:
        assert engine.names() == ["ours", "run"]
        assert (await engine.classify("run", "x")).label in MOODS
        with pytest.raises(BrokenPrompt, match="another model"):
            await engine.classify("theirs", "x")
        with pytest.raises(UnknownPrompt):
            await engine.classify("empty", "x")

    serve(backbone, [tmp_path / "run", tmp_path / "library"], ask)
    with pytest.raises(UserError, match="no folder"):
        AsyncEngine(backbone, tmp_path / "nowhere")
    tuned(backbone, 4, MOODS).save(tmp_path / "again" / "run")
    with pytest.raises(UserError, match="again/run have the same name"):
        AsyncEngine(backbone, [tmp_path / "run", tmp_path / "again" / "run"])


def test_a_folder_that_is_named_twice_is_served_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backbone = random_model("t5")
    fill(tmp_path / "library", backbone, range(2))
    monkeypatch.chdir(tmp_path)
    store = PromptStore(backbone, [tmp_path / "library", Path("library")], {}, 2**20)
    assert store.names() == ["p0", "p1"]
    assert len(store.folders) == 1
    assert caplog.text == ""


def test_names_of_requests_never_reach_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = random_model("t5")
    fill(tmp_path / "library", backbone, range(1))
    fill(tmp_path, backbone, range(1, 2))
    store = PromptStore(backbone, [tmp_path / "library"], {}, 2**20)
    assert store.names() == ["p0"]
    touched: list[str] = []
    stat = os.stat

    def recorded(path: Any, *args: Any, **kwargs: Any) -> Any:
        touched.append(str(path))
        return stat(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", recorded)
    hostile = [
        "../p1",
        "p0/../../p1",
        str(tmp_path / "p1"),
        "..",
        "",
        "p0\0",
        ".new-p0",
        "p" * 9999,
    ]
    for name in hostile:
        for look_up in (store.load, store.card, store.embedding):
            with pytest.raises(UnknownPrompt):
                look_up(name)
    assert touched, "the library's folder was looked at"
    assert not any("p1" in path or "\0" in path or "ppp" in path for path in touched)
