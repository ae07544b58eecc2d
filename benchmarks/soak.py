r"""A server at its limit for minutes, while prompts come, change and go every second.

    python benchmarks/soak.py --minutes 10 --output soak.json

`softprompts serve` runs with a short queue, and more clients than it can answer ask for labels and
generated texts. Every second a prompt is added to the library, another is replaced, and an older
one is removed. What must hold:

- no status but 200, 429 (too many requests) and, for a prompt that is not there, 404;
- each answer is that of `predict` with a version of the prompt that was there meanwhile;
- the server's memory does not grow;
- on SIGTERM, the server ends with exit code 0.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from open_loop import prompt_name
from serving_library import write_libraries
from softprompts.backbone import Backbone, load_backbone
from softprompts.bench.measure import environment
from softprompts.config import TaskConfig
from softprompts.errors import UserError, as_flag
from softprompts.files import write_json
from softprompts.library.library import Library
from softprompts.tasks import load_task
from softprompts.tuning.tuned import load

VERSIONS = 6
STEADY = 3
"""Prompts that stay as they are."""
LIVES = 5
"""Seconds after which an added prompt is removed."""
TEXTS = 8
TOKENS = 6
TOLERANCE = 2e-3
"""The most that a probability may differ, beside rows of other lengths."""
MOST_GROWTH = 0.03
"""Of the memory, from the second fifth of the time to the last."""
MOST_PROBLEMS = 20


@dataclass
class Life:
    """A time during which a name meant a version of a prompt."""

    version: int
    begin: float
    end: float = float("inf")


@dataclass
class Prompts:
    """The names in the library, now and before: what an answer may be."""

    library: Library
    versions: Path
    lives: dict[str, list[Life]] = field(default_factory=dict)

    def put(self, name: str, version: int) -> None:
        """Add or replace a prompt; while this lasts, both versions are right."""
        life = Life(version, time.monotonic())
        before = self.lives.setdefault(name, [])
        before.append(life)
        self.library.add(self.versions / prompt_name(version), name, overwrite=True)
        for old in before[:-1]:
            old.end = min(old.end, time.monotonic())

    def remove(self, name: str) -> None:
        life = self.lives[name][-1]
        life.end = time.monotonic()  # from now on it may be absent, and a moment longer present
        self.library.remove(name)

    def allowed(self, name: str, begin: float, end: float) -> set[int]:
        """The versions that were there at some time from `begin` to `end`, or were just going."""
        slack = 1.0  # what removing a folder may take
        return {
            life.version
            for life in self.lives.get(name, [])
            if life.begin <= end and life.end + slack >= begin
        }

    def may_be_absent(self, name: str, begin: float, end: float) -> bool:
        lives = self.lives.get(name, [])
        return not lives or lives[0].begin + 1.0 >= begin or lives[-1].end <= end


@dataclass
class Expected:
    """What `predict` says, by version and text."""

    texts: list[str]
    probabilities: list[list[dict[str, float]]]
    generated: list[list[str]]

    @classmethod
    def of(cls, versions: Path, backbone: Backbone, texts: list[str]) -> "Expected":
        tuned = [load(versions / prompt_name(n), backbone=backbone) for n in range(VERSIONS)]
        return cls(
            texts,
            [prompt.probabilities(texts, verbose=False) for prompt in tuned],
            [prompt.predict(texts, scoring="generate", verbose=False) for prompt in tuned],
        )

    def matches(self, kind: str, version: int, text: int, reply: dict[str, Any]) -> bool:
        if kind == "completions":
            return bool(reply["choices"][0]["text"].strip() == self.generated[version][text])
        row, expected = reply["data"][0], self.probabilities[version][text]
        pairs = zip(row["probs"], (expected[label] for label in row["labels"]), strict=True)
        return all(abs(one - other) <= TOLERANCE for one, other in pairs)


class Client:
    """Asks one question after another, on a connection of its own."""

    def __init__(self, soak: "Soak", number: int) -> None:
        self.soak, self.rng = soak, random.Random(number)
        self.stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, until: float) -> None:
        while time.monotonic() < until:
            try:
                await self._ask()
            except (OSError, EOFError) as error:
                self.soak.problem(f"the connection broke: {error!r}")
                self.stream = None
        if self.stream is not None:
            self.stream[1].close()

    async def _ask(self) -> None:
        soak, kind = self.soak, self.rng.choice(("classify", "classify", "completions"))
        name, text = soak.draw_name(self.rng), self.rng.randrange(TEXTS)
        question = "input" if kind == "classify" else "prompt"
        body = {"model": name, question: soak.expected.texts[text]}
        if kind == "completions":
            body["scoring"] = "generate"
        begin = time.monotonic()
        status, reply = await self._post(f"/v1/{kind}", json.dumps(body).encode())
        soak.seen(kind, name, text, begin, status, reply)
        if status == 429:
            await asyncio.sleep(self.rng.uniform(0.02, 0.1))

    async def _post(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if self.stream is None:
            self.stream = await asyncio.open_connection(*self.soak.address)
        reader, writer = self.stream
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        reply = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(reply.partition("content-length:")[2].split()[0])
        content = json.loads(await reader.readexactly(size))
        if "connection: close" in reply:
            writer.close()
            self.stream = None
        return int(reply.split()[1]), content


class Soak:
    """The clients, the changes, and what was seen."""

    def __init__(self, prompts: Prompts, expected: Expected, url: str, pid: int) -> None:
        self.prompts, self.expected, self.pid = prompts, expected, pid
        parts = urlsplit(url)
        self.address = parts.hostname, parts.port
        self.statuses: Counter[int] = Counter()
        self.checked, self.changes = 0, 0
        self.problems: list[str] = []
        self.memory: list[float] = []
        """MiB of the server, every second."""

    def problem(self, text: str) -> None:
        self.problems.append(text)
        if len(self.problems) <= MOST_PROBLEMS:
            print(f"PROBLEM: {text}", flush=True)

    def draw_name(self, rng: random.Random) -> str:
        """Mostly prompts that are there, and some that just went."""
        drawn, added = rng.random(), self.changes
        if drawn < 0.5:
            return f"steady{rng.randrange(STEADY)}"
        if drawn < 0.75 or not added:
            return "replaced"
        return f"added{rng.randrange(max(0, added - LIVES - 2), added)}"

    def seen(
        self, kind: str, name: str, text: int, begin: float, status: int, reply: dict[str, Any]
    ) -> None:
        """Check a reply."""
        self.statuses[status] += 1
        end = time.monotonic()
        if status == 404:
            if not self.prompts.may_be_absent(name, begin, end):
                self.problem(f"404 for {name}, which is there: {reply}")
        elif status == 200:
            self.checked += 1
            versions = self.prompts.allowed(name, begin, end)
            if not any(self.expected.matches(kind, v, text, reply) for v in versions):
                self.problem(f"{name} ({versions}), text {text}: {json.dumps(reply)[:300]}")
        elif status != 429:
            self.problem(f"status {status} for {name}: {reply}")

    async def change(self, until: float) -> None:
        """Add a prompt, replace one and remove one, every second; note the server's memory."""
        while (now := time.monotonic()) < until:
            await asyncio.to_thread(self._change_once, self.changes)
            self.changes += 1
            self.memory.append(resident_mib(self.pid))
            if self.changes % 10 == 0:
                print(
                    f"{self.changes} changes, {dict(self.statuses)}, {self.memory[-1]:.0f} MiB, "
                    f"{len(self.problems)} problems",
                    flush=True,
                )
            await asyncio.sleep(max(0.0, now + 1 - time.monotonic()))

    def _change_once(self, number: int) -> None:
        self.prompts.put(f"added{number}", number % VERSIONS)
        self.prompts.put("replaced", (number + 1) % VERSIONS)
        if number >= LIVES:
            self.prompts.remove(f"added{number - LIVES}")

    async def run(self, minutes: float, clients: int) -> None:
        until = time.monotonic() + 60 * minutes
        work = [Client(self, number).run(until) for number in range(clients)]
        await asyncio.gather(self.change(until), *work)

    def check_end(self, code: int) -> None:
        """What must hold of the whole run."""
        if code != 0:
            self.problem(f"the server ended with exit code {code}")
        if not self.statuses[429]:
            self.problem("the queue was never full; use more clients")
        if self.growth > MOST_GROWTH:
            self.problem(f"the server's memory grew by {self.growth:.1%}")

    @property
    def growth(self) -> float:
        fifth = max(1, len(self.memory) // 5)
        early = statistics.median(self.memory[fifth : 2 * fifth] or self.memory)
        return statistics.median(self.memory[-fifth:]) / early - 1

    def record(self, **others: Any) -> dict[str, Any]:
        settled = self.memory[len(self.memory) // 5 :]
        seconds = range(len(settled))
        slope = statistics.linear_regression(seconds, settled).slope if len(settled) > 1 else 0.0
        return {
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "answers_checked": self.checked,
            "changes": self.changes,
            "problems": self.problems[:MOST_PROBLEMS],
            "memory_growth": self.growth,
            "memory_mib_per_minute": 60 * slope,
            "memory_mib": [round(value, 1) for value in self.memory],
            **others,
        }


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) / 1024


def start_server(library: Path, queue: int, log: Path) -> tuple[subprocess.Popen[str], str]:
    """The server, and its URL once it listens."""
    command = ["serve", "--library", library, "--model", "t5-tiny", "--device", "cpu"]
    command += ["--port", 0, "--max-queue", queue, "--json", "--quiet"]
    with log.open("w") as errors:
        server = subprocess.Popen(
            [sys.executable, "-m", "softprompts", *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        raise UserError(f"The server did not start: {log.read_text().strip()}")
    return server, json.loads(line)["url"]


def main(argv: Sequence[str] | None = None) -> int:
    settings = arguments(argv)
    backbone = load_backbone("t5-tiny", "fp32", "cpu")
    task = load_task(TaskConfig(task="helpdesk/intent"))
    texts = [example.input[:60].strip() for example in task.validation[:TEXTS]]
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_libraries(backbone, folder, [VERSIONS], length=20, seed=0)
        prompts = Prompts(Library(folder / "library"), folder / str(VERSIONS))
        for number in range(STEADY):
            prompts.put(f"steady{number}", number)
        prompts.put("replaced", 0)
        expected = Expected.of(prompts.versions, backbone, texts)
        log = folder / "server.log"
        server, url = start_server(folder / "library", settings.queue, log)
        load_before = os.getloadavg()[0]
        with server:
            try:
                soak = Soak(prompts, expected, url, server.pid)
                asyncio.run(soak.run(settings.minutes, settings.clients))
            finally:
                server.send_signal(signal.SIGTERM)
                code = server.wait(60)
        soak.check_end(code)
        warnings = Counter(json.loads(line)["event"] for line in log.read_text().splitlines())
    record = soak.record(
        **environment(backbone.device, backbone.dtype),
        minutes=settings.minutes,
        clients=settings.clients,
        queue=settings.queue,
        load_average=[load_before, os.getloadavg()[0]],
        logged=dict(warnings),
    )
    if settings.output:
        write_json(settings.output, record)
    print(json.dumps({**record, "memory_mib": [soak.memory[0], soak.memory[-1]]}))
    return 1 if soak.problems else 0


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--clients", type=int, default=48)
    parser.add_argument("--queue", type=int, default=16, help="the server's --max-queue")
    parser.add_argument("--output", type=Path, help="a JSON file")
    return parser.parse_args(argv)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(error.spelled(as_flag), file=sys.stderr)
        sys.exit(2)
