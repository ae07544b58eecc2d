"""AsyncEngine: thousands of prompts on one frozen model, for many clients at once.

One thread owns the model (`worker.py`); requests come from one event loop.
"""

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..backbone import Backbone, Conversation
from ..errors import UserError
from ..tasks.questions import Question, check_question
from ..tuning.tuned import Tuned
from .example_fit import all_fits
from .garbage import short_collections
from .jobs import Job, Message, ignore, seconds_left
from .prompt_store import Key, LoadedPrompt, PromptStore
from .requests import (
    MOST_LOGPROBS,
    BadRequest,
    BrokenPrompt,
    Classified,
    DeadlineExceeded,
    Fit,
    Limits,
    NotAClassifier,
    Piece,
    PromptCounts,
    Sampling,
    ServedPrompt,
    Stats,
    TooLong,
    UnknownPrompt,
)
from .worker import Worker

T = TypeVar("T")
LOADERS = 4
"""Threads that read prompts from disk."""
NEGLIGIBLE = 1e-6
"""The weight of a prompt in a task embedding below which it is left out."""


class AsyncEngine:
    """Answers requests for any prompt, in shared batches.

    async with AsyncEngine(backbone, "library") as engine:
        answer = await engine.classify("sentiment", "I love it")
        async for piece in engine.generate("summary", "A long text ..."):
            print(piece.text, end="")
    """

    def __init__(
        self,
        backbone: Backbone,
        library: str | Path | Sequence[str | Path] = (),
        *,
        prompts: Mapping[str, Tuned] | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`library`: a folder of prompts, or several; a run's own folder is one prompt.

        `prompts` are served from memory, under their names.
        """
        folders = [library] if isinstance(library, str | Path) else library
        self.backbone, self.limits = backbone, limits or Limits()
        self.store = PromptStore(
            backbone,
            [Path(folder) for folder in folders],
            prompts or {},
            self.limits.memory_bytes,
            self._retire,
        )
        self.worker = Worker(backbone, self.limits, self._deliver)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loaders = ThreadPoolExecutor(LOADERS, "softprompts-loader")
        self._reading: dict[str, asyncio.Future[LoadedPrompt]] = {}
        self._versions: dict[str, Key] = {}
        """The version of each prompt that was asked last."""
        self._counts: dict[str, PromptCounts] = {}
        self._collections = contextlib.ExitStack()

    # -- its life ----------------------------------------------------------------------------------

    async def start(self) -> "AsyncEngine":
        """Start serving. The prompts' cards are checked meanwhile, so that listing is quick."""
        if self.worker.thread.ident is not None:
            raise UserError("An engine can be started only once; create another one.")
        self._loop = asyncio.get_running_loop()
        self._collections.enter_context(short_collections())
        self.worker.thread.start()
        self._loaders.submit(self.store.names)
        return self

    async def close(self, *, finish: bool = True) -> None:
        """Accept no more requests; finish the accepted ones, or cancel them with `Closed`."""
        self.worker.close(finish)
        try:
            if self.worker.thread.ident is not None:
                await asyncio.to_thread(self.worker.thread.join)
        finally:
            self._loaders.shutdown(wait=False, cancel_futures=True)
            self._collections.close()

    async def __aenter__(self) -> "AsyncEngine":
        return await self.start()

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def running(self) -> bool:
        return self.worker.thread.is_alive()

    def _deliver(self, messages: list[tuple[Job, Message]]) -> None:
        """Hand messages of the worker's thread to the event loop."""
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop was closed, and nobody waits
            self._loop.call_soon_threadsafe(_hand_out, messages)

    # -- prompts -----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """The names of all usable prompts, in order; quick once their cards were checked."""
        return self.store.names()

    def prompts(self) -> list[ServedPrompt]:
        """All usable prompts with their cards, by name.

        Reads the cards that are new since the last call: call it in a thread.
        """
        served = []
        for name in self.store.names():
            with contextlib.suppress(UnknownPrompt, BrokenPrompt):
                served.append(self.store.card(name))
        return served

    def prompt(self, name: str) -> ServedPrompt:
        """One prompt with its card; raises `UnknownPrompt` or `BrokenPrompt`."""
        return self.store.card(name)

    def known_prompt(self, name: str) -> ServedPrompt | None:
        """The same if its card was read before: no file is read for it."""
        return self.store.known_card(name)

    async def preload(self, names: Iterable[str], timeout: float | None = None) -> None:
        """Read prompts that are not in memory yet, so that questions for them can share a batch.

        Prompts that cannot be used are skipped; questions for them are refused.
        """
        deadline = self._deadline(timeout)
        for name in names:
            with contextlib.suppress(UnknownPrompt, BrokenPrompt):
                await _in_time(self._load(name), deadline)

    async def _load(self, name: str) -> LoadedPrompt:
        """The present version of a prompt; a disk is read in another thread."""
        prompt = self.store.loaded(name)
        while prompt is None:
            reading = self._reading.get(name)
            if reading is not None:  # by an earlier request, perhaps of an earlier version
                await asyncio.wait([reading])
                prompt = self.store.loaded(name)
                continue
            loop = asyncio.get_running_loop()
            reading = loop.run_in_executor(self._loaders, self.store.load, name)
            self._reading[name] = reading
            try:
                prompt = await asyncio.shield(reading)
            except UnknownPrompt:
                self._retire(name)
                raise
            finally:
                del self._reading[name]
        if self._versions.get(name) != prompt.key:
            self._retire(name)
            self._versions[name] = prompt.key
        return prompt

    def _retire(self, name: str) -> None:
        """Take the version of a prompt that was asked last off the device."""
        key = self._versions.pop(name, None)
        if key is not None:
            self.worker.retire(key)

    # -- answers -----------------------------------------------------------------------------------

    async def classify(
        self,
        name: str,
        row: Question,
        *,
        tenant: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> Classified:
        """The label of a text or row, and the probabilities of all labels.

        `tenant`: who asks; tenants get equal shares of the model's time (without one, prompts
        do). `priority`: higher ones first. `timeout`: seconds until it is cancelled.
        """
        job = await self._job(name, row, tenant, priority, timeout)
        if not job.prompt.predictor.labels:
            raise NotAClassifier(
                f"The prompt {name} generates its answers and has no labels to choose among."
            )
        messages = self._submit(job)
        counts = self._count(name)
        classified = await self._only(job, messages)
        assert isinstance(classified, Classified)
        counts.classified += 1
        counts.prompt_tokens += classified.prompt_tokens
        return classified

    async def answer(
        self,
        name: str,
        row: Question,
        *,
        tenant: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> str:
        """What `predict` answers: a label, or generated text."""
        deadline = self._deadline(timeout)
        predictor = (await _in_time(self._load(name), deadline)).predictor
        asked: Any = {"tenant": tenant, "priority": priority, "timeout": seconds_left(deadline)}
        if predictor.scoring == "labels":
            return (await self.classify(name, row, **asked)).label
        pieces = self.generate(name, row, Sampling(stream=False), **asked)
        text = "".join([piece.text async for piece in pieces])
        return predictor.spellings.get(text, text)

    async def generate(
        self,
        name: str,
        row: Question,
        sampling: Sampling | None = None,
        *,
        tenant: str | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> AsyncGenerator[Piece, None]:
        """The answer, or `sampling.n` of them, piece by piece. An async generator: closing it
        (`aclose`) stops the work on it. Refusals are raised by its first step."""
        sampling = self._checked(sampling or Sampling())
        job = await self._job(name, row, tenant, priority, timeout)
        if sampling.max_tokens is None:
            most = min(job.prompt.predictor.answer_length, self.limits.max_tokens)
            sampling = replace(sampling, max_tokens=most)
        job.sampling = sampling
        messages = self._submit(job)
        counts = self._count(name)
        try:
            counted = False
            while (message := await self._next(job, messages)) is not None:
                assert isinstance(message, Piece)
                counts.completion_tokens += message.tokens
                counts.prompt_tokens += 0 if counted else message.prompt_tokens
                counts.generated += message.finish_reason is not None
                counted = True
                yield message
        finally:
            self.worker.cancel(job)  # does nothing if it is finished

    def _checked(self, sampling: Sampling) -> Sampling:
        """Valid sampling settings; without a seed, they get one."""
        if not self.backbone.generates:
            raise BadRequest(f"{self.backbone.name} cannot generate text; ask for labels instead.")
        most = min(self.limits.max_choices, self.limits.slots)
        ranges: list[tuple[str, float | None, type, float, float]] = [
            ("max_tokens", sampling.max_tokens, int, 1, math.inf),
            ("temperature", sampling.temperature, Real, 0, 100),
            ("top_p", sampling.top_p, Real, 0, 1),
            ("n", sampling.n, int, 1, most),
            ("logprobs", sampling.logprobs, int, 0, MOST_LOGPROBS),
        ]
        for name, value, kind, low, high in ranges:
            if isinstance(value, bool) or not isinstance(value, kind | None):
                number = "whole number" if kind is int else "number"
                raise BadRequest(f"{name} is {value!r}; it must be a {number}.")
            if value is not None and not low <= value <= high:
                above = f"to {high:g}" if high < math.inf else "on"
                raise BadRequest(f"{name} is {value}; it must be from {low:g} {above}.")
        if (sampling.max_tokens or 0) > self.limits.max_tokens:
            raise TooLong(
                f"An answer may have at most {self.limits.max_tokens} tokens, not "
                f"{sampling.max_tokens}."
            )
        stop = (sampling.stop,) if isinstance(sampling.stop, str) else tuple(sampling.stop)
        if not all(isinstance(text, str) and text for text in stop):
            raise BadRequest(f"stop is {sampling.stop!r}; it must be texts that are not empty.")
        seed = random.getrandbits(64) if sampling.seed is None else sampling.seed
        return replace(sampling, seed=seed, stop=stop)

    async def _job(
        self,
        name: str,
        row: Question,
        tenant: str | None,
        priority: int,
        timeout: float | None,
    ) -> Job:
        """A job for a prompt, whose reply is still to be set."""
        deadline = self._deadline(timeout)
        prompt = await _in_time(self._load(name), deadline)
        conversation = row if isinstance(row, Conversation) else None
        if conversation is not None:
            if not prompt.predictor.backbone.chat_template:
                raise BadRequest(
                    f"The prompt {name} was tuned on single texts, without a chat template; send "
                    "one message with the role user, and no system message."
                )
            row = conversation.messages[-1]["content"]
        try:
            check_question(row, 1)
            inputs = prompt.tuned.inputs([row])
        except UserError as error:
            raise BadRequest(error.message) from None
        if len(inputs) != 1:
            raise BadRequest(
                f"The prompt {name} turns one row into {len(inputs)} inputs; give it rows with one "
                "question each."
            )
        text = inputs[0] if conversation is None else conversation.ending(inputs[0])
        self.limits.check_length(text, "text 1")
        flow = f"prompt {name}" if tenant is None else f"tenant {tenant}"
        return Job(prompt, text, flow, priority, deadline, ignore)

    def _deadline(self, timeout: float | None) -> float | None:
        timeout = self.limits.timeout if timeout is None else timeout
        return None if timeout is None else time.monotonic() + timeout

    async def result(self, job: Job) -> Message:
        """The only message for a job."""
        return await self._only(job, self._submit(job))

    def _submit(self, job: Job) -> asyncio.Queue[Message]:
        """The messages for a job, as they come. All jobs that are submitted in one iteration of the
        event loop go to the worker together."""
        messages: asyncio.Queue[Message] = asyncio.Queue()
        job.reply = messages.put_nowait
        self.worker.submit(job)
        asyncio.get_running_loop().call_soon(self.worker.hand_over)
        return messages

    async def _only(self, job: Job, messages: asyncio.Queue[Message]) -> Message:
        try:
            return await self._next(job, messages)
        finally:
            self.worker.cancel(job)  # does nothing if it is finished

    async def _next(self, job: Job, messages: asyncio.Queue[Message]) -> Message:
        """The next message for a job; nobody waits past its deadline, whatever the worker does."""
        message = await _in_time(messages.get(), job.deadline)
        if isinstance(message, Exception):
            raise message
        return message

    # -- which prompt fits examples ----------------------------------------------------------------

    async def search(
        self,
        rows: Sequence[Mapping[str, object]],
        k: int = 5,
        *,
        names: Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> list[Fit]:
        """The prompts that predict labelled examples best: rows as the prompts' tasks read them.

        `names`: search only these prompts.
        """
        fits = await self._fits(rows, timeout, names)
        return [fit for fit, _ in fits[: max(1, k)]]

    async def embed(
        self, rows: Sequence[Mapping[str, object]], *, timeout: float | None = None
    ) -> list[float]:
        """A task embedding of labelled examples, in the space of the prompts' own [H]: the mean of
        those of all prompts, each weighted by the probability that it gives to the examples."""
        fits = await self._fits(rows, timeout)
        weights = torch.tensor([total for _, total in fits], dtype=torch.float64).softmax(0)
        likely = [
            (fit.name, weight)
            for (fit, _), weight in zip(fits, weights.tolist(), strict=True)
            if weight > NEGLIGIBLE
        ]
        parts = await asyncio.to_thread(
            lambda: [self.store.embedding(name) * weight for name, weight in likely]
        )
        return torch.stack(parts).sum(0).tolist()

    def embedding(self, name: str) -> list[float]:
        """A prompt's own task embedding [H]: the mean of its tokens, each of length 1."""
        return self.store.embedding(name).tolist()

    async def _fits(
        self,
        rows: Sequence[Mapping[str, object]],
        timeout: float | None,
        names: Sequence[str] | None = None,
    ) -> list[tuple[Fit, float]]:
        deadline = self._deadline(timeout)
        if names is None:
            names = await asyncio.to_thread(self.names)
        return await all_fits(rows, names, self._load, self.result, deadline, self.limits)

    # -- counts ------------------------------------------------------------------------------------

    def _count(self, name: str) -> PromptCounts:
        counts = self._counts.setdefault(name, PromptCounts())
        counts.requests += 1
        return counts

    def stats(self) -> Stats:
        worker, tier, counts = self.worker, self.worker.tier, list(self._counts.values())
        prefixes = tier.prefixes
        return Stats(
            waiting=worker.waiting,
            decoding=worker.decoding,
            passes=worker.passes,
            rows=worker.rows,
            last_batch=worker.last_batch,
            requests=sum(count.requests for count in counts),
            refused=worker.refused,
            cancelled=worker.cancelled,
            expired=worker.expired,
            failed=worker.failed,
            prompt_tokens=sum(count.prompt_tokens for count in counts),
            completion_tokens=sum(count.completion_tokens for count in counts),
            known=self.store.known,
            in_memory=self.store.in_memory,
            on_device=len(tier.vectors),
            loads=self.store.loads,
            device_hits=tier.vectors.hits,
            device_misses=tier.vectors.misses,
            prefixes=0 if prefixes is None else len(prefixes),
            prefix_hits=0 if prefixes is None else prefixes.hits,
            prefix_misses=0 if prefixes is None else prefixes.misses,
            prompts=dict(self._counts),
        )


async def _in_time(work: Awaitable[T], deadline: float | None) -> T:
    """What is awaited; raises `DeadlineExceeded` if that takes too long."""
    try:
        async with asyncio.timeout(seconds_left(deadline)):
            return await work
    except TimeoutError:
        raise DeadlineExceeded("The request timed out.") from None


def _hand_out(messages: list[tuple[Job, Message]]) -> None:
    for job, message in messages:
        job.reply(message)
