"""Engines that share a model."""

import asyncio
import threading
import time

import pytest

from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.requests import Limits, QueueFull
from softprompts.serving.turns import Turns, turns_of

from ..models import random_model
from .test_async_engine import some_prompts
from .test_engine import TEXTS


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_engines_that_share_a_model_answer_at_the_same_time(kind: str) -> None:
    backbone = random_model(kind)
    prompts = {name: p for name, p in some_prompts(backbone).items() if p.form.labels}
    questions = [(name, text) for text in TEXTS for name in prompts] * 3
    expected = [prompts[name].predict([text])[0] for name, text in questions]

    async def ask() -> list[list[str]]:
        async with (
            AsyncEngine(backbone, prompts=prompts) as one,
            AsyncEngine(backbone, prompts=prompts) as other,
        ):
            answers = (
                asyncio.gather(*(engine.answer(*question) for question in questions))
                for engine in (one, other)
            )
            return await asyncio.gather(*answers)

    assert asyncio.run(ask()) == [expected, expected]


def test_turns_come_in_the_order_in_which_they_were_asked_for() -> None:
    model = random_model("t5").model
    turns, order = turns_of(model), list[int]()
    assert turns_of(model) is turns

    def take(number: int) -> None:
        with turns:
            order.append(number)

    threads = [threading.Thread(target=take, args=(number,)) for number in range(5)]
    with turns as lasted:
        assert lasted == 0
        for number, thread in enumerate(threads, 2):
            thread.start()
            wait_for(turns, number)
    for thread in threads:
        thread.join()
    assert order == list(range(5))


def test_a_turn_is_told_how_long_the_one_before_took() -> None:
    turns, waited = Turns(), list[float]()

    def take() -> None:
        with turns as lasted:
            waited.append(lasted)

    thread = threading.Thread(target=take)
    with turns:
        thread.start()
        wait_for(turns, 2)
        time.sleep(0.05)
    thread.join()
    take()
    assert waited[0] >= 0.05
    assert waited[1] == 0, "it did not wait"


def test_what_extends_a_turn_does_not_count() -> None:
    turns, lasted = Turns(), list[float]()

    def take() -> None:
        with turns as before:
            lasted.append(before)
            while time.perf_counter() - turns._began < before:
                turns.extend()
                time.sleep(0.001)

    threads = [threading.Thread(target=take) for _ in range(3)]
    with turns:
        for number, thread in enumerate(threads, 2):
            thread.start()
            wait_for(turns, number)
        time.sleep(0.1)
    for thread in threads:
        thread.join()
    assert lasted[0] >= 0.1
    assert max(lasted[1:]) < 0.05, "one long turn made all others long"


def test_who_gives_up_waiting_keeps_no_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with turns:
        with monkeypatch.context() as patch:
            patch.setattr(turns._condition, "wait_for", fail)
            with pytest.raises(KeyboardInterrupt), turns:
                pass
        thread = threading.Thread(target=turns.__enter__)
        thread.start()
        wait_for(turns, 2)
    thread.join(10)
    assert not thread.is_alive()


def test_requests_that_wait_for_a_turn_are_in_the_queue_and_share_a_pass() -> None:
    backbone = random_model("t5")
    prompts = {"mood": some_prompts(backbone)["mood"]}

    async def ask() -> tuple[list[object], int]:
        async with AsyncEngine(backbone, prompts=prompts, limits=Limits(queue=3)) as engine:
            await engine.classify("mood", "hello")
            before = engine.worker.passes
            with engine.worker.turns:  # another engine's
                asked = [asyncio.create_task(engine.classify("mood", "hello"))]
                await asyncio.sleep(0.05)
                asked += [asyncio.create_task(engine.classify("mood", "hello")) for _ in range(4)]
                await asyncio.sleep(0.05)
                assert engine.worker.waiting == 3
            answers = await asyncio.gather(*asked, return_exceptions=True)
            return list(answers), engine.worker.passes - before

    answers, passes = asyncio.run(ask())
    assert [isinstance(answer, QueueFull) for answer in answers] == [False] * 3 + [True] * 2
    assert passes == 1


def wait_for(turns: Turns, asked: int) -> None:
    """Wait until this many have asked for a turn that has not ended."""
    while len(turns._queue) < asked:
        time.sleep(0.001)
