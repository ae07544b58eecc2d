"""Measuring: clocks that do not make a GPU wait, spreads, what the machine is, and whether two sides computed the same."""

import gc
import importlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from ..backbone import Backbone
from ..backbone.hardware import device_name, versions
from ..errors import UserError
from .tables import PEERS

Say = Callable[[str], None]
T = TypeVar("T")

TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}
"""The most that two losses of one step may differ, as a share."""


class DisagreementError(Exception):
    """Ours and the peer computed different things, so that their times cannot be compared."""


@dataclass(frozen=True)
class Common:
    """What every benchmark may be told."""

    model: str = "t5-tiny"
    """t5-tiny (embedded), t5-base, t5-large or llama-135m (these shapes with random weights), or a Hugging Face folder."""

    device: str = "auto"
    """cpu, cuda, or auto."""

    dtype: str = "auto"
    """fp32 or bf16 for the frozen model; auto: bf16 on a GPU, fp32 on a CPU."""

    seed: int = 0
    """Seed of random weights, rows and prompts."""

    threads: int = 0
    """Threads on a CPU; 0: torch's own choice."""

    warmup: int = 2
    """Times before those that are timed."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise UserError(f"The seed is {self.seed}; it must be from 0 to below 2,147,483,648.")
        if not 0 <= self.threads <= 1024:
            raise UserError(f"--threads is {self.threads}; it must be from 1 to 1,024, or 0.")
        if self.warmup < 0:
            raise UserError(f"--warmup is {self.warmup}; it must not be negative.")
        if self.threads:
            torch.set_num_threads(self.threads)


class Clock:
    """The time of pieces of work, one after another. On a GPU by events, which let the next piece begin while this one still runs."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.marks: list[tuple[Any, Any]] = []

    def time(self, work: Callable[[], T]) -> T:
        begun = self._now()
        done = work()
        self.marks.append((begun, self._now()))
        return done

    def seconds(self) -> list[float]:
        """Of each piece."""
        if not self.cuda:
            return [end - begun for begun, end in self.marks]
        torch.cuda.synchronize()
        return [begun.elapsed_time(end) / 1000 for begun, end in self.marks]

    def _now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        mark.record()
        return mark


class Progress:
    """A line now and then, where a benchmark takes long."""

    def __init__(self, say: Say, what: str, total: int) -> None:
        self.say, self.what, self.total, self.told = say, what, total, time.monotonic()

    def tick(self, number: int) -> None:
        """So many are done."""
        if time.monotonic() - self.told > 10:
            self.told = time.monotonic()
            self.say(f"  {self.what} {number} of {self.total}")


class Turns(NamedTuple, Generic[T]):
    """Several sides that did the same: what each gave the first time, the seconds of each time, and why a side was left out."""

    first: dict[str, T]
    seconds: dict[str, list[float]]
    left_out: dict[str, str]


def in_turn(
    works: Mapping[str, Callable[[], T]],
    device: torch.device,
    warmup: int,
    rounds: int,
    say: Say,
    fragile: Iterable[str] = (),
) -> Turns[T]:
    """Round by round, so that what else the machine does falls on all alike. A fragile side that fails at first is left out."""
    clocks = {name: Clock(device) for name in works}
    turns: Turns[T] = Turns({}, {}, {})
    progress = Progress(say, "round", warmup + rounds)
    for number in range(warmup + rounds):
        progress.tick(number)
        for name, clock in list(clocks.items()):
            try:
                done = clock.time(works[name])
            except Exception as error:
                if number or name not in fragile:
                    raise
                turns.left_out[name] = why(error)
                say(f"{name} failed: {turns.left_out[name]}")
                del clocks[name]
            else:
                turns.first.setdefault(name, done)
    turns.seconds.update({name: clock.seconds()[warmup:] for name, clock in clocks.items()})
    return turns


def beside(turns: Turns[Any], least: float, what: str) -> dict[str, Any]:
    """The sides that are ours, and PEFT in each way: its seconds, how many times as long as the last of ours it takes, and the share of
    `what` that all of ours have as it has, which must not be below `least`."""
    own = [name for name in turns.seconds if name not in PEERS]
    found: dict[str, Any] = {name: spread(turns.seconds[name]) for name in own}
    found["peft"] = {}
    for peer in [name for name in turns.seconds if name in PEERS]:
        share = min(
            float(
                np.mean(
                    [
                        one == other
                        for one, other in zip(turns.first[peer], turns.first[name], strict=True)
                    ]
                )
            )
            for name in own
        )
        found["peft"][peer] = {
            "seconds": spread(turns.seconds[peer]),
            "ratio": ratio(turns.seconds[peer], turns.seconds[own[-1]]),
            "agreement": check_share(share, least, what),
        }
    return {**found, "left_out": turns.left_out}


def tell(say: Say, name: str, found: Mapping[str, Mapping[str, Any]], what: str) -> None:
    """What `beside` came to, in a line for each way of PEFT's."""
    for peer, about in found.items():
        say(
            f"{name}: {PEERS[peer]} takes {about['ratio']['median']:.2f} times as long, {about['agreement']:.1%} of {what} agree"
        )


def why(error: Exception) -> str:
    """A failure in a line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def wait(device: torch.device) -> float:
    """The time when all work that was begun is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def release(backbone: Backbone) -> None:
    """Memory as it was before a measurement, and its peak counted from here."""
    gc.collect()
    backbone.forget()
    if backbone.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(backbone.device)


def peak_gib(device: torch.device) -> float | None:
    """The most memory that tensors took since `release`, the frozen model included; None on a CPU."""
    return (
        round(torch.cuda.max_memory_allocated(device) / 2**30, 3) if device.type == "cuda" else None
    )


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, tenth and ninetieth percentile, and mean."""
    low, high = (float(share) for share in np.percentile(values, [10, 90]))
    return {
        "median": statistics.median(values),
        "p10": low,
        "p90": high,
        "mean": statistics.fmean(values),
    }


def ratio(peer: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """How many times as long the peer took, step by step on the same batches."""
    return spread([theirs / mine for theirs, mine in zip(peer, ours, strict=True)])


def check_losses(
    peer: str,
    theirs: Sequence[Sequence[float]],
    name: str,
    own: Sequence[Sequence[float]],
    dtype: str,
) -> float:
    """The largest difference between the losses of the same steps of the same runs, as a share; too large a one is an error."""
    one, other = np.asarray(theirs), np.asarray(own)
    apart = np.nan_to_num(np.abs(one - other) / np.abs(one), nan=np.inf)
    worst = float(apart.max())
    if worst > TOLERANCE[dtype]:
        run, step = np.unravel_index(int(apart.argmax()), apart.shape)
        raise DisagreementError(
            f"{name} and {peer} do not learn the same: at step {step} of run {run} their losses are {other[run, step]:.6g} and "
            f"{one[run, step]:.6g}, {worst:.1e} apart where {dtype} allows {TOLERANCE[dtype]:.0e}; no time of this benchmark counts."
        )
    return worst


def check_share(share: float, least: float, what: str) -> float:
    """The share of answers on which ours and the peer agree; too small a one is an error."""
    if not share >= least:
        raise DisagreementError(
            f"Ours and PEFT agree on {share:.1%} of the {what}, not on {least:.0%}; no time of this benchmark counts."
        )
    return share


def peft() -> Any:
    """The peer."""
    try:
        return importlib.import_module("peft")
    except ImportError:
        raise UserError(
            "This benchmark runs beside Hugging Face PEFT, which is not here; install it: pip install peft."
        ) from None


def surroundings(device: torch.device, dtype: str) -> dict[str, Any]:
    """What the numbers were measured on."""
    machine = {
        "device": device_name(device),
        "kind": device.type,
        "dtype": dtype,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    found = {"python": platform.python_version(), **versions()}
    try:
        found["peft"] = peft().__version__
    except UserError:
        found["peft"] = "none"
    return {"machine": machine, "versions": found}
