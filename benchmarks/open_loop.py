r"""Load from a process of its own: requests arrive at random times, however slow the answers are.

    python benchmarks/open_loop.py < COMMANDS   # started by serving.py

The arrival times of a Poisson process are drawn in advance, and latencies count from them, not from
when a request was sent: a server that stalls is charged for all requests that it keeps waiting
(no coordinated omission). The first line of input is a list of texts, every other one a `Load`, and
each `Load` is answered by a line with what was measured. No torch here.
"""

import asyncio
import dataclasses
import itertools
import json
import math
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

GRACE = 2.0
"""Seconds to wait for the last answers, beside the latency that is allowed."""


@dataclasses.dataclass(frozen=True)
class Load:
    """What one point of a measurement sends."""

    address: str
    """A Unix socket that takes lines of JSON, or the URL of a server of `softprompts serve`."""
    kind: str
    """`labels` or `generate`."""
    prompts: int
    popularity: str
    """How often each prompt is asked: `uniform`, or `zipf` (the k-th 1/k as often as the first)."""
    seconds: float
    target: float
    """Seconds that 99 % of the answers may take."""
    rate: float | None = None
    """Requests per second; None: a closed loop, which always has `concurrency` in flight."""
    concurrency: int = 256
    most_rows: int = 20_000
    """Of a closed loop."""
    tokens: int = 32
    """Of a generated answer."""
    seed: int = 0

    def rows(self, texts: int) -> "list[Row]":
        """All requests, the next first."""
        rng = random.Random(f"{self.seed}/{self.rate}")
        weights = [1 / (k if self.popularity == "zipf" else 1) for k in range(1, self.prompts + 1)]
        totals = list(itertools.accumulate(weights))
        arrivals = self._arrivals(rng)
        prompts = rng.choices(range(self.prompts), cum_weights=totals, k=len(arrivals))
        return [
            Row(arrival, prompt, rng.randrange(texts))
            for arrival, prompt in zip(arrivals, prompts, strict=True)
        ]

    def _arrivals(self, rng: random.Random) -> list[float]:
        """The times of a Poisson process, given how many there are: exactly the rate's."""
        if self.rate is None:
            return [0.0] * self.most_rows
        count = max(1, round(self.rate * self.seconds))
        return sorted(rng.uniform(0, self.seconds) for _ in range(count))


class Row(NamedTuple):
    """A request: when it arrives, and the numbers of its prompt and text."""

    arrival: float
    prompt: int
    text: int


def prompt_name(number: int) -> str:
    return f"task{number}"


OnReply = Callable[[int, str | None], None]
"""Called with the number of a row, and why it was not answered."""


class Channel(Protocol):
    def send(self, numbers: Sequence[int]) -> None:
        """Send rows by their numbers."""

    def close(self) -> None: ...


class Lines(asyncio.Protocol):
    """One connection for all requests; replies come in any order."""

    def __init__(self, load: Load, rows: Sequence[Row], texts: Sequence[str], on_reply: OnReply):
        self.load, self.rows, self.texts, self.on_reply = load, rows, texts, on_reply
        self.rest = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            reply = json.loads(line)
            self.on_reply(reply["id"], reply.get("error"))

    def send(self, numbers: Sequence[int]) -> None:
        lines = [
            json.dumps(
                {
                    "id": number,
                    "kind": self.load.kind,
                    "prompt": prompt_name(self.rows[number].prompt),
                    "text": self.texts[self.rows[number].text],
                    "tokens": self.load.tokens,
                }
            )
            for number in numbers
        ]
        self.transport.write(("\n".join(lines) + "\n").encode())

    def close(self) -> None:
        self.transport.close()


class Http:
    """As many connections as there are requests in flight."""

    def __init__(self, load: Load, rows: Sequence[Row], texts: Sequence[str], on_reply: OnReply):
        self.load, self.rows, self.texts, self.on_reply = load, rows, texts, on_reply
        url = urlsplit(load.address)
        self.host, self.port = url.hostname, url.port
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.tasks: set[asyncio.Task[None]] = set()

    def send(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            task = asyncio.get_running_loop().create_task(self._ask(number))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def _request(self, row: Row) -> bytes:
        asked: dict[str, Any] = {"model": prompt_name(row.prompt)}
        path, text = "/v1/classify", self.texts[row.text]
        if self.load.kind == "generate":
            path, asked["prompt"] = "/v1/completions", text
            asked |= {"max_tokens": self.load.tokens, "scoring": "generate"}
        else:
            asked["input"] = text
        body = json.dumps(asked).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {self.host}\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def _ask(self, number: int) -> None:
        try:
            status = await self._status(self._request(self.rows[number]))
        except (OSError, EOFError) as error:
            self.on_reply(number, type(error).__name__)
        else:
            self.on_reply(number, None if status == "200" else f"HTTP {status}")

    async def _status(self, request: bytes) -> str:
        if self.idle:
            reader, writer = self.idle.pop()
        else:
            reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
        self.idle.append((reader, writer))
        return head.split()[1]

    def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        for _, writer in self.idle:
            writer.close()


class Measurement:
    """One load, and what became of each request."""

    def __init__(self, load: Load, texts: Sequence[str]) -> None:
        self.load, self.texts, self.rows = load, texts, load.rows(len(texts))
        self.sent: dict[int, float] = {}
        """When each unanswered request arrived, in order."""
        self.latencies: list[tuple[float, float]] = []
        """When each answered request arrived, and how long it took."""
        self.errors: Counter[str] = Counter()
        self.late = 0
        self.channel: Channel
        self.next = 0

    async def run(self) -> dict[str, Any]:
        parts = self.load, self.rows, self.texts, self._reply
        loop = asyncio.get_running_loop()
        if self.load.address.startswith("http"):
            self.channel = Http(*parts)
        else:
            _, self.channel = await loop.create_unix_connection(
                lambda: Lines(*parts), self.load.address
            )
        self.began = time.perf_counter()
        try:
            await (self._closed_loop() if self.load.rate is None else self._open_loop())
        finally:
            self.channel.close()
        return self._result()

    @property
    def now(self) -> float:
        return time.perf_counter() - self.began

    def _reply(self, number: int, error: str | None) -> None:
        arrival = self.sent.pop(number)
        if error is not None:
            self.errors[error] += 1
            return
        latency = self.now - arrival
        self.latencies.append((arrival, latency))
        self.late += latency > self.load.target
        if self.load.rate is None and self.next < len(self.rows):
            self._send(1, arrival=self.now)

    def _send(self, count: int, arrival: float | None = None) -> None:
        numbers = range(self.next, min(self.next + count, len(self.rows)))
        for number in numbers:
            self.sent[number] = self.rows[number].arrival if arrival is None else arrival
        self.next = numbers.stop
        self.channel.send(numbers)

    async def _open_loop(self) -> None:
        while self.next < len(self.rows) and not self._is_hopeless():
            due, now = self.next, self.now
            while due < len(self.rows) and self.rows[due].arrival <= now:
                due += 1
            if due > self.next:
                self._send(due - self.next)
                await asyncio.sleep(0)
            else:
                await asyncio.sleep(self.rows[self.next].arrival - now)
        until = self.load.seconds + self.load.target + GRACE
        while self.sent and self.now < until and not self._is_hopeless():
            await asyncio.sleep(0.005)

    async def _closed_loop(self) -> None:
        """Until the time is over and as many rows as are in flight were answered."""
        self._send(self.load.concurrency, arrival=0.0)
        until, enough = self.load.seconds, self.load.concurrency
        while self.sent and (
            self.now < until or (len(self.latencies) < enough and self.now < 3 * until)
        ):
            await asyncio.sleep(0.005)

    def _is_hopeless(self) -> bool:
        """Whether over 1 % of all rows took too long already."""
        allowed, late, oldest = 0.01 * len(self.rows), self.late, self.now - self.load.target
        for arrival in self.sent.values():
            if arrival >= oldest or late > allowed:
                break
            late += 1
        return late > allowed

    def _result(self) -> dict[str, Any]:
        """Rates and latencies; those of unanswered requests are at least their age."""
        now, answered = self.now, len(self.latencies)
        record: dict[str, Any] = {"rows": self.next, "answered": answered, "seconds": now}
        latencies = [latency for _, latency in self.latencies]
        if self.load.rate is None:
            record["rows_per_s"] = answered / now
        else:
            latencies += [now - arrival for arrival in self.sent.values()]
            record["offered_per_s"] = len(self.rows) / self.load.seconds
        latencies.sort()
        for name, share in (("p50_s", 0.5), ("p99_s", 0.99)):
            place = max(0, math.ceil(share * len(latencies)) - 1)
            record[name] = latencies[place] if latencies else None
        record["errors"] = dict(self.errors)
        if self.load.rate is not None:
            record["passed"] = bool(
                answered
                and not (self.sent or self.errors or self._falls_behind())
                and self.next == len(self.rows)
                and record["p99_s"] <= self.load.target
            )
        return record

    def _falls_behind(self) -> bool:
        """Whether, in the second half, fewer requests were answered than came.

        A short overload may still meet the latency. Allows for the noise of a Poisson process.
        """
        middle, end = self.load.seconds / 2, self.load.seconds
        came = sum(row.arrival > middle for row in self.rows)
        answered = sum(middle < arrival + took <= end for arrival, took in self.latencies)
        return answered < 0.95 * came - 2 * math.sqrt(came)


def main() -> None:
    texts = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        measurement = Measurement(Load(**json.loads(line)), texts)
        print(json.dumps(asyncio.run(measurement.run())), flush=True)


if __name__ == "__main__":
    main()
