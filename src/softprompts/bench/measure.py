"""Measuring: clocks that do not stall a GPU, spreads, the environment, and checks that two sides
computed the same."""

import gc
import importlib
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch

from ..backbone import Backbone
from ..backbone.hardware import device_name, versions
from ..errors import UserError
from .tables import PEFT_NAMES

Say = Callable[[str], None]
"""Shows a line of progress."""
T = TypeVar("T")

TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}
"""The largest relative difference between two losses of the same step."""


class DisagreementError(Exception):
    """We and PEFT computed different things, so their times cannot be compared."""


class Clock:
    """Times calls one after another; on a GPU with events, which do not make it wait."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.intervals: list[tuple[Any, Any]] = []

    def time(self, call: Callable[[], T]) -> T:
        start = self._now()
        result = call()
        self.intervals.append((start, self._now()))
        return result

    def seconds(self) -> list[float]:
        """The seconds of each call."""
        if not self.cuda:
            return [end - start for start, end in self.intervals]
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in self.intervals]

    def _now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


class Progress:
    """A line every ten seconds, for long benchmarks."""

    def __init__(self, say: Say, unit: str, total: int) -> None:
        self.say, self.unit, self.total, self.last = say, unit, total, time.monotonic()

    def update(self, completed: int) -> None:
        if time.monotonic() - self.last > 10:
            self.last = time.monotonic()
            self.say(f"  {self.unit} {completed} of {self.total}")


class Timings(NamedTuple, Generic[T]):
    """For several sides: the result of the first call, the seconds of each, and why some failed."""

    first: dict[str, T]
    seconds: dict[str, list[float]]
    left_out: dict[str, str]


def time_in_turn(
    calls: Mapping[str, Callable[[], T]],
    device: torch.device,
    warmup: int,
    rounds: int,
    say: Say,
    optional: Iterable[str] = (),
) -> Timings[T]:
    """Time all sides round by round, so that other load on the machine affects all of them.

    An optional side that fails in the first round is left out.
    """
    clocks = {name: Clock(device) for name in calls}
    timings: Timings[T] = Timings({}, {}, {})
    progress = Progress(say, "round", warmup + rounds)
    for number in range(warmup + rounds):
        progress.update(number)
        for name, clock in list(clocks.items()):
            try:
                result = clock.time(calls[name])
            except Exception as error:
                if number or name not in optional:
                    raise
                timings.left_out[name] = failure_reason(error)
                say(f"{name} failed: {timings.left_out[name]}")
                del clocks[name]
            else:
                timings.first.setdefault(name, result)
    timings.seconds.update({name: clock.seconds()[warmup:] for name, clock in clocks.items()})
    return timings


def compare_with_peft(timings: Timings[Any], minimum: float, unit: str) -> dict[str, Any]:
    """Seconds of our sides, and for each mode of PEFT its seconds, their ratio to our last side's,
    and the share of `unit` on which it agrees with ours, which must be at least `minimum`."""
    ours = [name for name in timings.seconds if name not in PEFT_NAMES]
    peers: dict[str, Any] = {}
    for mode in [name for name in timings.seconds if name in PEFT_NAMES]:
        agreement = min(_agreement(timings.first[mode], timings.first[name]) for name in ours)
        peers[mode] = {
            "seconds": spread(timings.seconds[mode]),
            "ratio": ratio(timings.seconds[mode], timings.seconds[ours[-1]]),
            "agreement": check_agreement(agreement, minimum, unit),
        }
    seconds = {name: spread(timings.seconds[name]) for name in ours}
    return {**seconds, "peft": peers, "left_out": timings.left_out}


def _agreement(one: Sequence[Any], other: Sequence[Any]) -> float:
    return float(np.mean([a == b for a, b in zip(one, other, strict=True)]))


def say_ratios(say: Say, name: str, peers: Mapping[str, Mapping[str, Any]], unit: str) -> None:
    """Show the result of `compare_with_peft`, a line for each mode of PEFT."""
    for mode, result in peers.items():
        say(
            f"{name}: {PEFT_NAMES[mode]} takes {result['ratio']['median']:.2f} times as long, "
            f"{result['agreement']:.1%} of {unit} agree"
        )


def failure_reason(error: Exception) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def synchronized_time(device: torch.device) -> float:
    """The time when all work launched so far is finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def reset_memory(backbone: Backbone) -> None:
    """Free cached memory, and start a new peak."""
    gc.collect()
    backbone.free_memory()
    if backbone.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(backbone.device)


def peak_gib(device: torch.device) -> float | None:
    """Peak memory of tensors since `reset_memory`, with the frozen model; None on a CPU."""
    if device.type != "cuda":
        return None
    return round(torch.cuda.max_memory_allocated(device) / 2**30, 3)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, tenth and ninetieth percentile, and mean."""
    low, high = (float(value) for value in np.percentile(values, [10, 90]))
    return {
        "median": statistics.median(values),
        "p10": low,
        "p90": high,
        "mean": statistics.fmean(values),
    }


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> dict[str, float]:
    """How many times as long the others take, step by step on the same batches."""
    return spread([slow / fast for slow, fast in zip(theirs, ours, strict=True)])


def compare_losses(
    first: str,
    first_losses: Sequence[Sequence[float]],
    name: str,
    losses: Sequence[Sequence[float]],
    dtype: str,
) -> float:
    """The largest relative difference between losses [runs, steps]; an error if it is too large."""
    expected, actual = np.asarray(first_losses), np.asarray(losses)
    differences = np.nan_to_num(np.abs(expected - actual) / np.abs(expected), nan=np.inf)
    largest = float(differences.max())
    if largest > TOLERANCE[dtype]:
        run, step = np.unravel_index(int(differences.argmax()), differences.shape)
        raise DisagreementError(
            f"{name} and {first} do not train alike: at step {step} of run {run} their losses "
            f"are {actual[run, step]:.6g} and {expected[run, step]:.6g}, which differ by "
            f"{largest:.1e} where {dtype} allows {TOLERANCE[dtype]:.0e}; the times are discarded."
        )
    return largest


def check_agreement(share: float, minimum: float, unit: str) -> float:
    """The share of `unit` that agree; an error if it is below the minimum."""
    if not share >= minimum:
        raise DisagreementError(
            f"We and PEFT agree on {share:.1%} of the {unit}, and {minimum:.0%} is required; the "
            "times are discarded."
        )
    return share


def peft_library() -> Any:
    try:
        return importlib.import_module("peft")
    except ImportError:
        raise UserError(
            "This benchmark compares with Hugging Face PEFT, which is not installed; install it "
            "with pip install peft."
        ) from None


def environment(device: torch.device, dtype: str) -> dict[str, Any]:
    """The machine and the versions behind the numbers."""
    machine = {
        "device": device_name(device),
        "kind": device.type,
        "dtype": dtype,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    try:
        peft_version = peft_library().__version__
    except UserError:
        peft_version = "none"
    libraries = {"python": platform.python_version(), **versions(), "peft": peft_version}
    return {"machine": machine, "versions": libraries}
