r"""Serving 1 to 10,000 prompts, beside PEFT: the highest rate at which p99 stays under a target.

    python benchmarks/serving.py --threads 2 --http --output serving-t5-tiny-cpu.json
    python benchmarks/serving.py --model t5-base --dtype bf16 --budget 360 --output t5-base.json

A library of random prompts lies on disk. Requests for them come from a second process
(open_loop.py), at the times of a Poisson process, as lines of JSON through a Unix socket; latencies
count from these times. For each number of prompts, popularity of prompts, and kind of answer (the
best of the labels, or 32 generated tokens), a closed loop finds what a host can do at most, and a
few rates around it show the highest one it sustains. Hosts, on the same model with the same rows:

    ours       AsyncEngine
    http       the same behind its HTTP server (--http; needs uvicorn)
    switching  PEFT: set_adapter for each request
    batched    PEFT: set_adapter for each prompt, all requests that wait for it in one batch

PEFT's mixed batches (`adapter_names`) are tried, and what comes of it is recorded. Every point is
printed and written at once, the most important first: an interrupted run keeps what it has.
"""

import argparse
import asyncio
import dataclasses
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import open_loop
from open_loop import Load, prompt_name
from serving_cells import KINDS, PEERS, Cell, cells, prompt_counts
from serving_hosts import Host, Ours, Peft, Waiting, http_server, listening, quiet_peft
from serving_library import LABELS, write_libraries
from serving_table import ratios, table
from softprompts.bench.measure import DisagreementError, environment
from softprompts.bench.models import load_model
from softprompts.config import TaskConfig
from softprompts.errors import UserError, as_flag
from softprompts.files import write_json
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.requests import Limits
from softprompts.tasks import load_task

MIN_AGREEMENT = {"labels": {"fp32": 1.0, "bf16": 0.75}, "generate": {"fp32": 1.0, "bf16": 0.0}}
"""The least share of equal answers. In bf16 a near tie can flip, and with it all later tokens."""
CLOSED_ROWS = 20_000
PEFT_ADAPTERS = 300
"""The most adapters that PEFT gets for a closed loop."""
PEFT_IN_FLIGHT = {"switching": 4}
"""Requests in flight in a closed loop, for a host that answers one at a time."""
MIN_ROWS = 30
"""Rows that a point should have; it lasts up to three times as long for them."""
START, UP, DOWN = 0.85, 1.12, 0.6
"""The first rate as a part of what the closed loop reached; and how far to go from there."""


def main() -> int:
    settings = arguments()
    quiet_peft()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(Benchmark(settings).run())
    return 0


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The event loop that the server uses."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="t5-tiny", help="a known shape, or any model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=0, help="of torch on a CPU")
    parser.add_argument("--prompts", default="1,100,1000,10000", help="numbers of prompts")
    parser.add_argument("--kinds", default="labels,generate")
    parser.add_argument("--length", type=int, default=20, help="tokens of a prompt")
    parser.add_argument("--characters", type=int, default=400, help="of a text, at most")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--p99-labels", type=float, default=0.25, metavar="SECONDS")
    parser.add_argument("--p99-generate", type=float, default=1.5, metavar="SECONDS")
    parser.add_argument("--points", type=int, default=3, help="rates to try")
    parser.add_argument(
        "--attempts", type=int, default=1, help="of each rate, where others use the machine"
    )
    parser.add_argument("--seconds-per-point", type=float, default=2.5)
    parser.add_argument(
        "--pairs", type=int, default=3, help="closed loops with most and with fewest prompts"
    )
    parser.add_argument("--budget", type=float, default=math.inf, metavar="SECONDS")
    parser.add_argument("--concurrency", type=int, default=256, help="of the closed loop")
    parser.add_argument("--slots", type=int, default=256, help="answers generated at a time")
    parser.add_argument("--peft-batch", type=int, default=256, help="rows of PEFT's batches")
    parser.add_argument("--memory", type=int, default=8, help="GiB of each tier of prompts")
    parser.add_argument("--http", action="store_true", help="also measure the HTTP server")
    parser.add_argument("--no-peft", action="store_true", help="leave out PEFT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="a JSON file")
    return parser.parse_args()


# -- measuring -------------------------------------------------------------------------------------


class Benchmark:
    """Hosts, the process that asks them, and what was measured so far."""

    def __init__(self, settings: argparse.Namespace) -> None:
        self.began = time.perf_counter()
        self.settings, self.counts = settings, prompt_counts(settings.prompts)
        self.kinds = settings.kinds.split(",")
        if not set(self.kinds) <= set(KINDS):
            raise UserError(f"--kinds is {settings.kinds!r}; choose from {', '.join(KINDS)}.")
        self.cells = cells(self.counts, self.kinds, settings.http, not settings.no_peft)
        self.backbone = load_model(
            settings.model, settings.dtype, settings.device, settings.seed, settings.threads
        )
        if not self.backbone.generates:
            raise UserError("This benchmark is for models that generate, such as t5-tiny.")
        if self.backbone.model.config.is_encoder_decoder:  # no token ends an answer
            self.backbone.model.generation_config.eos_token_id = None
        examples = load_task(TaskConfig(task="helpdesk/intent")).validation
        self.texts = [example.input[: settings.characters].strip() for example in examples]
        self.targets = {"labels": settings.p99_labels, "generate": settings.p99_generate}
        budget = None if math.isinf(settings.budget) else settings.budget
        shown = {**vars(settings), "output": None, "budget": budget}
        self.result: dict[str, Any] = {
            **environment(self.backbone.device, self.backbone.dtype),
            "settings": shown,
            "measurements": [],
            "left_out": [],
        }
        self.hosts: dict[tuple[str, int], Host] = {}
        self.urls: dict[int, str] = {}

    async def run(self) -> None:
        settings = self.settings
        with TemporaryDirectory() as name:
            self.folder = Path(name)
            began = time.perf_counter()
            self.vectors, size = write_libraries(
                self.backbone, self.folder, self.counts, settings.length, settings.seed
            )
            if self.backbone.model.config.is_encoder_decoder:
                self.backbone.tokenizer.eos_token = None
            seconds = time.perf_counter() - began
            self.result["library"] = {"prompts": self.counts[-1], "disk_mib": size / 2**20}
            self.say(f"{self.counts[-1]} prompts, {size / 2**20:.0f} MiB, in {seconds:.0f} s")
            async with AsyncExitStack() as stack:
                self.stack = stack
                await self._start_load()
                if not settings.no_peft:
                    await self._compare_answers()
                for kind in self.kinds if settings.pairs and len(self.counts) > 1 else ():
                    await self._compare_counts(kind)
                for cell in self.cells:
                    await self._measure_if_there_is_time(cell)
                self._summarise()

    def say(self, line: str) -> None:
        print(f"[{time.perf_counter() - self.began:4.0f} s] {line}", flush=True)

    def _save(self) -> None:
        self.result["seconds"] = time.perf_counter() - self.began
        if self.settings.output:
            write_json(self.settings.output, self.result)

    async def _start_load(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self.load = await asyncio.create_subprocess_exec(
            sys.executable, "-u", open_loop.__file__, stdin=pipe, stdout=pipe
        )
        assert self.load.stdin is not None
        self.load.stdin.write(json.dumps(self.texts).encode() + b"\n")

        async def stop() -> None:
            assert self.load.stdin is not None
            self.load.stdin.close()
            await self.load.wait()

        self.stack.push_async_callback(stop)

    # -- hosts -------------------------------------------------------------------------------------

    async def _host(self, name: str, count: int) -> Host:
        """A host; the HTTP server has the engine that is also measured without it."""
        key = (name, 0) if name in PEERS else ("ours", count)
        if key not in self.hosts:
            self.hosts[key] = self._peft(name) if name in PEERS else await self._ours(count)
        return self.hosts[key]

    def _peft(self, name: str) -> Peft:
        rows = self.settings.peft_batch if name == "batched" else 1
        peft = Peft(self.backbone, self.vectors, LABELS, rows)
        self.stack.callback(peft.close)
        return peft

    def _limits(self) -> Limits:
        tier = self.settings.memory * 2**30
        return Limits(
            queue=10**6,
            latency=self.settings.p99_labels / 3,
            slots=self.settings.slots,
            timeout=None,
            device_bytes=tier,
            memory_bytes=tier,
            prefix_bytes=tier,
        )

    async def _ours(self, count: int) -> Ours:
        engine = AsyncEngine(self.backbone, self.folder / str(count), limits=self._limits())
        if any(cell.host == "http" and cell.prompts == count for cell in self.cells):
            self.urls[count] = await self.stack.enter_async_context(http_server(engine))
        else:
            await self.stack.enter_async_context(engine)
        began = time.perf_counter()
        await asyncio.to_thread(engine.names)
        listed = time.perf_counter()
        for number in range(count):
            await asyncio.to_thread(engine.store.load, prompt_name(number))
        loaded, host = time.perf_counter(), Ours(engine)
        await asyncio.to_thread(host.warm, count)
        warm = time.perf_counter()
        if self.backbone.device.type == "cuda":
            await host.rehearse(self.kinds, self.texts, self.settings.new_tokens)
        tier = engine.worker.tier
        record = {
            "prompts": count,
            "list_s": listed - began,
            "loads_per_s": count / (loaded - listed),
            "first_use_s": warm - loaded,
            "rehearsal_s": time.perf_counter() - warm,
            "recorded_passes": engine.worker.tier.recorded_sizes,
            "memory_mib": self.vectors[:count].nbytes / 2**20,
            "device_mib": tier.vectors.table.nbytes / 2**20,
            "prefix_mib": 0 if tier.prefixes is None else tier.prefixes.table.nbytes / 2**20,
        }
        self.result.setdefault("engines", []).append(record)
        self.say("engine: " + compact(record))
        return host

    async def _compare_answers(self) -> None:
        """PEFT must give our answers, or the rates could not be compared."""
        count, tokens = self.counts[-1], self.settings.new_tokens
        ours = await self._host("ours", count)
        peer = await self._host("batched", count)
        assert isinstance(peer, Peft)
        prompts = [0, count // 2, count - 1]
        peer.prepare(prompts)
        self.result["same_answers"], self.result["same_until"] = {}, {}
        for kind in self.kinds:
            rows = [(prompt_name(number), text) for number in prompts for text in self.texts[:4]]
            expected = [await ours.answer(kind, *row, tokens) for row in rows]
            answers = [await peer.answer(kind, *row, tokens) for row in rows]
            answers += peer.answers([Waiting(kind, *row, tokens) for row in rows[:4]])
            pairs = list(zip(answers, expected + expected[:4], strict=True))
            if kind == "generate" and peer.causal:  # of several lengths
                pairs = pairs[: len(rows)]
            same = sum(one == other for one, other in pairs) / len(pairs)
            if same < MIN_AGREEMENT[kind][self.backbone.dtype]:
                raise DisagreementError(f"PEFT gives {same:.0%} of our answers ({kind}).")
            self.result["same_answers"][kind] = same
            self.result["same_until"][kind] = statistics.fmean(same_part(*pair) for pair in pairs)
        if count > 1:
            self.result["mixed"] = peer.mixed(self.texts[0], tokens)
            self.say("PEFT's mixed batches: " + json.dumps(self.result["mixed"]))
        self.say("the same answers as PEFT: " + compact(self.result["same_answers"]))
        self.say("the part of them that is the same: " + compact(self.result["same_until"]))

    # -- points ------------------------------------------------------------------------------------

    def _seconds(self, kind: str) -> float:
        return max(float(self.settings.seconds_per_point), 2 * self.targets[kind])

    async def _measure_if_there_is_time(self, cell: Cell) -> None:
        seconds = self._seconds(cell.kind) + self.targets[cell.kind]
        needed = seconds * (self.settings.points + 1) + 2
        if time.perf_counter() - self.began + needed > self.settings.budget:
            self.result["left_out"].append(str(cell))
            self.say(f"{cell}: left out, for want of time")
        else:
            await self._measure(cell)
        self._save()

    async def _compare_counts(self, kind: str) -> None:
        """Closed loops with most and with fewest prompts in turn, so that what else the machine
        does affects both."""
        counts, seconds = (self.counts[-1], self.counts[0]), self._seconds(kind)
        rates: dict[int, list[float]] = {count: [] for count in counts}
        for number in range(self.settings.pairs):
            for count in counts if number % 2 else counts[::-1]:
                host = await self._host("ours", count)
                cell = Cell(kind, count, "uniform", "ours")
                point = await self._point(host, cell, None, seconds)
                rates[count].append(point["rows_per_s"])
        ratios = [many / one for many, one in zip(*rates.values(), strict=True)]
        record = {"kind": kind, "rows_per_s": rates, "ratio": statistics.median(ratios)}
        self.result.setdefault("pairs", []).append(record)
        self.say(f"{kind}: {counts[0]} prompts / {counts[1]}, in turn: {record['ratio']:.2f}")

    async def _measure(self, cell: Cell) -> None:
        host = await self._host(cell.host, cell.prompts)
        record: dict[str, Any] = {
            **asdict(cell),
            "p99_target_s": self.targets[cell.kind],
            "load_average": os.getloadavg()[0],
        }
        self.result["measurements"].append(record)
        few = cell.host in PEERS and cell.prompts > PEFT_ADAPTERS
        seconds = self._seconds(cell.kind)
        host.prepare([0])
        await host.answer(cell.kind, prompt_name(0), self.texts[0], self.settings.new_tokens)
        if cell.host == "http":  # the first requests take longest
            await self._point(host, cell, None, 1.0)
        most_rows = PEFT_ADAPTERS if few else CLOSED_ROWS
        closed = await self._point(host, cell, None, seconds, most_rows)
        record |= {"closed": closed, "points": [], "best": None}
        self._save()
        low, high, rate = 0.0, math.inf, START * max(closed["rows_per_s"], 1 / seconds)
        tried = 0
        while tried < self.settings.points + 2 * (not low):
            tried += 1
            lasts = min(max(seconds, MIN_ROWS / rate), 3 * seconds)
            for _ in range(self.settings.attempts):
                point = await self._point(host, cell, rate, lasts)
                record["points"].append(point)
                if point["passed"]:
                    break
            if point["passed"]:
                low, record["best"] = rate, point
            else:
                high = rate
            rate = low * UP if math.isinf(high) else math.sqrt(low * high) if low else high * DOWN
            self._save()

    async def _point(
        self,
        host: Host,
        cell: Cell,
        rate: float | None,
        seconds: float,
        most_rows: int = CLOSED_ROWS,
    ) -> dict[str, Any]:
        load = Load(
            address="",
            kind=cell.kind,
            prompts=cell.prompts,
            popularity=cell.popularity,
            seconds=seconds,
            target=self.targets[cell.kind],
            rate=rate,
            concurrency=PEFT_IN_FLIGHT.get(cell.host, self.settings.concurrency),
            most_rows=most_rows,
            tokens=self.settings.new_tokens,
            seed=self.settings.seed,
        )
        host.prepare([row.prompt for row in load.rows(len(self.texts))])
        if cell.host == "http":
            return await self._ask(host, cell, load, self.urls[cell.prompts])
        async with listening(host, self.folder) as address:
            return await self._ask(host, cell, load, address)

    async def _ask(self, host: Host, cell: Cell, load: Load, address: str) -> dict[str, Any]:
        assert self.load.stdin is not None
        assert self.load.stdout is not None
        before, cpu = host.counts(), time.process_time()
        load = dataclasses.replace(load, address=address)
        self.load.stdin.write(json.dumps(asdict(load)).encode() + b"\n")
        point: dict[str, Any] = json.loads(await self.load.stdout.readline())
        done = {name: value - before[name] for name, value in host.counts().items()}
        point["cpu_s"] = time.process_time() - cpu
        point["mean_batch"] = done.pop("rows") / max(1, done.pop("passes"))
        point |= done
        loop = "closed loop" if load.rate is None else f"{load.rate:.0f} rows/s"
        self.say(f"{cell}, {loop}: {compact(point)}")
        return point

    # -- results -----------------------------------------------------------------------------------

    def _summarise(self) -> None:
        self.result["ratios"] = ratios(self.result)
        print(table(self.result), flush=True)
        for name, ratio in self.result["ratios"].items():
            self.say(f"{name}: {ratio:.2f}")
        self._save()


def same_part(one: str, other: str) -> float:
    """How much of two answers comes before their first difference."""
    differ = (number for number, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(differ, min(len(one), len(other))) / max(1, len(one), len(other))


def compact(record: dict[str, Any]) -> str:
    """A record in one line, with numbers of three digits."""
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in record.items()
        if value not in ({}, None)
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        print(error.spelled(as_flag), file=sys.stderr)
        sys.exit(2)
