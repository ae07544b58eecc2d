"""Engines that share a model."""

import asyncio
import threading
import time

import pytest

from softprompts.serving.async_engine import AsyncEngine
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
    with turns:
        for number, thread in enumerate(threads, 2):
            thread.start()
            wait_for(turns, number)
    for thread in threads:
        thread.join()
    assert order == list(range(5))


def wait_for(turns: Turns, asked: int) -> None:
    """Wait until this many turns were asked for."""
    while turns._next < asked:
        time.sleep(0.001)
