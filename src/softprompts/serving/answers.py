"""Answers as streams of pieces, whether they are generated or chosen among labels.

Closing a stream, or cancelling whoever reads it, stops the work on it.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fastapi import Request

from .async_engine import AsyncEngine
from .concurrency import cancel, merged
from .http_errors import GONE, HttpError
from .keys import ANYONE, Key
from .openai_api import Question
from .requests import BadRequest, Classified, Piece, Sampling, TokenLogprob

T = TypeVar("T")


@dataclass(frozen=True)
class Asker:
    """Asks the engine questions of one prompt, in the name of a key."""

    engine: AsyncEngine
    prompt: str
    key: Key
    timeout: float | None = None
    priority: int = 0
    """Higher ones first."""

    @property
    def _terms(self) -> dict[str, Any]:
        tenant = None if self.key is ANYONE else self.key.name
        return {"tenant": tenant, "priority": self.priority, "timeout": self.timeout}

    async def classify(self, question: Question) -> Classified:
        return await self.engine.classify(self.prompt, question, **self._terms)

    async def pieces(
        self, questions: Sequence[Question], sampling: Sampling, labels: bool
    ) -> AsyncGenerator[tuple[int, Piece]]:
        """The pieces of all answers as they come, each with the number of its question; its index
        counts the answers to all questions."""
        if labels and sampling.n > 1:
            raise BadRequest(
                "This prompt chooses a label, so every answer is the same; leave out n, or set "
                "scoring to generate."
            )
        ask = self._label if labels else self._generated
        streams = [ask(question, sampling) for question in questions]
        async with aclosing(merged(streams)) as items:
            async for number, piece in items:
                yield number, replace(piece, index=number * sampling.n + piece.index)

    async def _generated(self, question: Question, sampling: Sampling) -> AsyncIterator[Piece]:
        stream: Any = self.engine.generate(self.prompt, question, sampling, **self._terms)
        async with aclosing(stream):
            async for piece in stream:
                yield piece if sampling.stream else replace(piece, text=self._spelled(piece.text))

    def _spelled(self, text: str) -> str:
        """A label as its task spells it, where the tokenizer changes case or spaces."""
        loaded = self.engine.store.loaded(self.prompt)
        return text if loaded is None else loaded.predictor.spellings.get(text.strip(), text)

    async def _label(self, question: Question, sampling: Sampling) -> AsyncIterator[Piece]:
        """The label as one piece, and as one token with the log-probabilities of all labels."""
        chosen = await self.classify(question)
        logs = {label: math.log(max(p, 1e-45)) for label, p in chosen.probabilities.items()}
        logprobs: tuple[TokenLogprob, ...] = ()
        if sampling.logprobs is not None:
            best = sorted(logs.items(), key=lambda pair: -pair[1])[: sampling.logprobs]
            logprobs = (TokenLogprob(chosen.label, logs[chosen.label], tuple(best)),)
        yield Piece(0, chosen.label, 0, logprobs, "stop", chosen.prompt_tokens)


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """The result of some work, which is cancelled if the client goes away."""
    task, gone = asyncio.ensure_future(work), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise HttpError(GONE, "The client closed the connection.")
    finally:
        await cancel([task, gone])


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
