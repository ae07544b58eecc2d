"""Who answers in serving.py: the engine, and PEFT in the ways that it can serve many prompts.

All of them take the same lines of JSON from a Unix socket, queue them first come, first served, and
never wait for a batch to fill.
"""

import asyncio
import json
import socket
import threading
import warnings
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from open_loop import prompt_name
from softprompts.backbone import Backbone
from softprompts.bench.learners import original_model
from softprompts.bench.measure import failure_reason, peft_library
from softprompts.config.serve import ServeSettings
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.keys import Keys
from softprompts.serving.logs import JsonLog
from softprompts.serving.requests import Sampling

Counts = dict[str, float]
BURSTS = (1, 4, 8, 16, 32, 64, 64, 128, 128, 256, 256)
"""Requests to rehearse with."""
TOGETHER = 256
"""Prompts to warm up together."""


class Host(Protocol):
    """Answers rows."""

    def prepare(self, prompts: Sequence[int]) -> None:
        """Have these prompts ready."""

    async def answer(self, kind: str, prompt: str, text: str, tokens: int) -> str: ...

    def counts(self) -> Counts:
        """Rows and passes so far, and how often a prompt was in a cache."""


class Connection(asyncio.Protocol):
    """Answers the lines of a client; what is unanswered when it goes away is cancelled."""

    def __init__(self, host: Host) -> None:
        self.host, self.rest, self.tasks = host, b"", set[asyncio.Task[None]]()

    def connection_made(self, transport: Any) -> None:
        self.transport, self.loop = transport, asyncio.get_running_loop()

    def connection_lost(self, error: Exception | None) -> None:
        for task in self.tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            task = self.loop.create_task(self._answer(json.loads(line)))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _answer(self, request: dict[str, Any]) -> None:
        number, reply = request.pop("id"), "answer"
        try:
            text = await self.host.answer(**request)
        except Exception as error:
            reply, text = "error", failure_reason(error)
        self.transport.write(json.dumps({"id": number, reply: text}).encode() + b"\n")


@asynccontextmanager
async def listening(host: Host, folder: Path) -> AsyncIterator[str]:
    """The address at which a host takes requests."""
    path = str(folder / "requests.sock")
    server = await asyncio.get_running_loop().create_unix_server(lambda: Connection(host), path)
    try:
        yield path
    finally:
        server.close()
        Path(path).unlink(missing_ok=True)


@asynccontextmanager
async def http_server(engine: AsyncEngine) -> AsyncIterator[str]:
    """The URL of the HTTP server, in this process; it starts the engine and closes it."""
    from softprompts.serving.server import create_app, make_server

    limits = engine.limits
    settings = ServeSettings(max_queue=limits.queue, max_tokens=limits.max_tokens, grace=1.0)
    server = make_server(create_app(engine, settings, Keys(), JsonLog(quiet=True)), settings)
    ready = asyncio.Event()
    server.on_ready = ready.set
    with socket.create_server(("127.0.0.1", 0)) as listener:
        running = asyncio.create_task(server.serve(sockets=[listener]))
        await ready.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


@dataclass
class Ours:
    """An engine that serves the library."""

    engine: AsyncEngine

    def prepare(self, prompts: Sequence[int]) -> None:
        """Nothing: all its prompts are loaded."""

    async def answer(self, kind: str, prompt: str, text: str, tokens: int) -> str:
        if kind == "labels":
            return (await self.engine.classify(prompt, text)).label
        sampling = Sampling(max_tokens=tokens, stream=False)
        pieces = self.engine.generate(prompt, text, sampling)
        return "".join([piece.text async for piece in pieces])

    def counts(self) -> Counts:
        stats = self.engine.stats()
        names = ("rows", "passes", "loads", "device_hits", "device_misses")
        names += ("prefix_hits", "prefix_misses")
        counts = {name: getattr(stats, name) for name in names}
        return counts | {"recorded_passes": self.engine.worker.tier.recorded_sizes}

    async def rehearse(self, kinds: Sequence[str], texts: Sequence[str], tokens: int) -> None:
        """Answer bursts of all sizes, because a GPU's passes are recorded for each."""
        by_length = sorted(texts, key=len)
        for kind in kinds:
            for size in BURSTS:
                for some in (by_length[:size], by_length[-size:]):
                    rows = [some[row % len(some)] for row in range(size)]
                    answers = (self.answer(kind, prompt_name(0), text, tokens) for text in rows)
                    await asyncio.gather(*answers)

    @torch.no_grad()
    def warm(self, count: int) -> None:
        """Bring all prompts to the device, before the first request; a decoder-only model also
        processes them."""
        store, tier = self.engine.store, self.engine.worker.tier
        for start in range(0, count, TOGETHER):
            numbers = range(start, min(start + TOGETHER, count))
            prompts = [store.load(prompt_name(number)) for number in numbers]
            with self.engine.worker.turns:
                tier.load(prompts)
                tier.read(prompts)


class Waiting:
    """A request in the queue of PEFT."""

    def __init__(self, kind: str, prompt: str, text: str, tokens: int) -> None:
        self.kind, self.prompt, self.text, self.tokens = kind, prompt, text, tokens
        self.ids: list[int] = []
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[str] = self.loop.create_future()

    def finish(self, answer: str | Exception) -> None:
        if self.future.done():
            return
        if isinstance(answer, Exception):
            self.future.set_exception(answer)
        else:
            self.future.set_result(answer)


class Peft:
    """PEFT in a thread, with the adapters that the rows of a point need.

    It sets the adapter of the request that has waited longest, and answers this one (`batched`:
    all that wait for the same prompt) before the next. To hold all adapters would slow down PEFT,
    whose `set_adapter` looks at every one.
    """

    def __init__(
        self,
        backbone: Backbone,
        vectors: Tensor,
        labels: Sequence[str],
        batch_rows: int = 1,
    ) -> None:
        self.backbone, self.vectors, self.labels = backbone, vectors, labels
        self.batch_rows, self.length = batch_rows, vectors.shape[1]
        self.causal = not backbone.model.config.is_encoder_decoder
        self.targets = backbone.tokenise_targets(labels)
        self.original = original_model(backbone.model)
        self.library = peft_library()
        self.config = self.library.PromptTuningConfig(
            task_type=backbone.peft_task_type,
            num_virtual_tokens=self.length,
            num_transformer_submodules=1,
            inference_mode=True,
        )
        self.rows = self.passes = 0
        self._queue: deque[Waiting] = deque()
        self._condition, self._closing = threading.Condition(), False
        self._in_use = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self.model: Any = None

    def prepare(self, prompts: Sequence[int]) -> None:
        numbers = list(dict.fromkeys(prompts))
        with self._in_use:
            names = [prompt_name(number) for number in numbers]
            self.model = self.library.get_peft_model(self.original, self.config, names[0])
            for number, name in zip(numbers, names, strict=True):
                if number != numbers[0]:
                    self.model.add_adapter(name, self.config)
                weight = self.model.prompt_encoder[name].embedding.weight
                weight.data.copy_(self.vectors[number])
            self.model.eval()

    async def answer(self, kind: str, prompt: str, text: str, tokens: int) -> str:
        waiting = Waiting(kind, prompt, text, tokens)
        with self._condition:
            self._queue.append(waiting)
            self._condition.notify()
        return await waiting.future

    def counts(self) -> Counts:
        return {"rows": self.rows, "passes": self.passes}

    def close(self) -> None:
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join()

    # -- the thread --------------------------------------------------------------------------------

    @torch.no_grad()
    def _run(self) -> None:
        while True:
            with self._condition:
                while not (self._queue or self._closing):
                    self._condition.wait()
                if self._closing:
                    return
                batch = self._take()
            if not batch:
                continue
            with self._in_use:
                try:
                    answers: Sequence[str | Exception] = self.answers(batch)
                except Exception as error:
                    answers = [error] * len(batch)
            self.rows, self.passes = self.rows + len(batch), self.passes + 1
            with suppress(RuntimeError):  # the loop is closed
                batch[0].loop.call_soon_threadsafe(_finish, batch, answers)

    def _take(self) -> list[Waiting]:
        """The request that has waited longest, and those that can be answered with it."""
        self._queue = deque(item for item in self._queue if not item.future.cancelled())
        batch: list[Waiting] = []
        rest: deque[Waiting] = deque()
        for item in self._queue:
            if len(batch) < self.batch_rows and (not batch or self._together(batch[0], item)):
                batch.append(item)
            else:
                rest.append(item)
        self._queue = rest
        return batch

    def _together(self, first: Waiting, item: Waiting) -> bool:
        if (item.kind, item.prompt) != (first.kind, first.prompt):
            return False
        # PEFT gives a decoder-only model no positions, so pads before a text would count
        return not (self.causal and item.kind == "generate") or self._size(item) == self._size(
            first
        )

    def _size(self, item: Waiting) -> int:
        item.ids = item.ids or self.backbone.token_ids([item.text])[0]
        return len(item.ids)

    # -- the model ---------------------------------------------------------------------------------

    @torch.no_grad()
    def answers(self, batch: Sequence[Waiting]) -> list[str]:
        """The answers to rows of one prompt."""
        self.model.set_adapter(batch[0].prompt)
        rows = [
            item.ids or ids
            for item, ids in zip(
                batch, self.backbone.token_ids([item.text for item in batch]), strict=True
            )
        ]
        if batch[0].kind == "labels":
            best = self.label_scores(rows).argmax(1).tolist()
            return [self.labels[label] for label in best]
        ids, mask = self._padded(rows)
        generated = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=batch[0].tokens,
            do_sample=False,
            num_beams=1,
            eos_token_id=sorted(self.backbone.eos_ids) or None,
            pad_token_id=self.backbone.pad_id,
        )
        return self.backbone.decode(generated[:, ids.shape[1] :] if self.causal else generated)

    def label_scores(self, rows: Sequence[Sequence[int]], **options: Any) -> Tensor:
        """Every text once with each label, in one pass: log-probabilities [B, C]."""
        targets, used = self._padded([target for _ in rows for target in self.targets])
        texts = [row for row in rows for _ in self.targets]
        if self.causal:
            pairs = zip(texts, [*self.targets] * len(rows), strict=True)
            ids, mask = self._padded([[*row, *target] for row, target in pairs])
            logits = self.model(input_ids=ids, attention_mask=mask, use_cache=False, **options)
            first = torch.tensor([self.length + len(row) - 1 for row in texts], device=ids.device)
            columns = first[:, None] + torch.arange(targets.shape[1], device=ids.device)
            columns = columns.clamp(max=logits.logits.shape[1] - 1)
            index = torch.arange(len(texts), device=ids.device)[:, None]
            logits = logits.logits[index, columns]
        else:
            ids, mask = self._padded(texts)
            labels = targets.masked_fill(used == 0, -100)
            logits = self.model(
                input_ids=ids, attention_mask=mask, labels=labels, use_cache=False, **options
            ).logits
        logs = logits.float().log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return (logs * used).sum(1).view(len(rows), len(self.labels))

    def _padded(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        ids, mask = self.backbone.collate(rows)
        return ids.to(self.backbone.device), mask.to(self.backbone.device)

    def mixed(self, text: str, tokens: int) -> dict[str, str]:
        """What PEFT makes of one batch with two adapters (`adapter_names`)."""
        self.prepare([0, 1])
        names = [prompt_name(0), prompt_name(1)]
        row = self.backbone.token_ids([text])[0]
        ids, mask = self._padded([row, row])
        outcome: dict[str, str] = {}
        with torch.no_grad():
            try:
                alone = []
                for name in names:
                    self.model.set_adapter(name)
                    alone.append(self.label_scores([row])[0])
                repeated = [name for name in names for _ in self.labels]
                mixed = self.label_scores([row, row], adapter_names=repeated)
                far = [float((mixed[0] - scores).abs().max()) for scores in alone]
                # the second adapter is active; the first row should have the first one's scores
                outcome["labels"] = "works" if far[0] < far[1] else "ignores adapter_names"
            except Exception as error:
                outcome["labels"] = failure_reason(error)
            try:
                self.model.generate(
                    input_ids=ids, attention_mask=mask, max_new_tokens=tokens, adapter_names=names
                )
                outcome["generate"] = "works"
            except Exception as error:
                outcome["generate"] = failure_reason(error)
        return outcome


def _finish(batch: Sequence[Waiting], answers: Sequence[str | Exception]) -> None:
    for item, answer in zip(batch, answers, strict=True):
        item.finish(answer)


def quiet_peft() -> None:
    """PEFT warns at every token that it sets no positions."""
    warnings.filterwarnings("ignore", "Position ids are not supported")
