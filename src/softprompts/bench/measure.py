"""Measuring: clocks that do not stall a GPU, spreads, the environment, and checks that two sides
computed the same."""

import gc
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from ..backbone import Backbone
from ..backbone.hardware import device_name, versions
from ..errors import UserError, require
from .settings import RoundSettings
from .tables import PEFT_NAMES

Say = Callable[[str], None]
"""Shows a line of progress."""
T = TypeVar("T")


class DisagreementError(UserError):
    """We and PEFT computed different things, so their times cannot be compared."""

    exit_code = 1


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


def counted(total: int, unit: str, say: Say) -> Iterator[int]:
    """The numbers below `total`; every ten seconds a line says how far it is."""
    last = time.monotonic()
    for number in range(total):
        yield number
        if time.monotonic() - last > 10:
            last = time.monotonic()
            say(f"  {unit} {number + 1} of {total}")


def compare_with_peft(
    calls: Mapping[str, Callable[[], Any]],
    device: torch.device,
    settings: RoundSettings,
    minimum: float,
    title: str,
    unit: str,
    say: Say,
) -> dict[str, Any]:
    """Seconds of our sides, and for each mode of PEFT its seconds, their ratio to our last side's,
    and the share of `unit` on which it agrees with ours, which must be at least `minimum`."""
    first, times, left_out = time_in_turn(calls, device, settings.warmup, settings.rounds, say)
    ours = [name for name in times if name not in PEFT_NAMES]
    peers: dict[str, Any] = {}
    for mode in [name for name in times if name in PEFT_NAMES]:
        share = min(_agreement(first[mode], first[name]) for name in ours)
        if not share >= minimum:
            raise DisagreementError(
                f"We and PEFT agree on {share:.1%} of the {unit}, and {minimum:.0%} is required; "
                "the times are discarded."
            )
        slower = ratio(times[mode], times[ours[-1]])
        peers[mode] = {"seconds": spread(times[mode]), "ratio": slower, "agreement": share}
        say(
            f"{title}: {PEFT_NAMES[mode]} takes {slower['median']:.2f} times as long, "
            f"{share:.1%} of {unit} agree"
        )
    return {**{name: spread(times[name]) for name in ours}, "peft": peers, "left_out": left_out}


def _agreement(one: Any, other: Any) -> float:
    """The share of equal answers, or of equal tokens of two tensors."""
    if isinstance(one, torch.Tensor):
        return float((one == other).double().mean())
    return float(np.mean([a == b for a, b in zip(one, other, strict=True)]))


def time_in_turn(
    calls: Mapping[str, Callable[[], Any]],
    device: torch.device,
    warmup: int,
    rounds: int,
    say: Say,
) -> tuple[dict[str, Any], dict[str, list[float]], dict[str, str]]:
    """The first result of each side, the seconds of its timed calls, and why some sides failed.

    All sides go round by round, so that other load on the machine affects all of them. Compiled
    layers that fail in the first round are left out.
    """
    clocks = {name: Clock(device) for name in calls}
    first, left_out = dict[str, Any](), dict[str, str]()
    for number in counted(warmup + rounds, "round", say):
        for name, clock in list(clocks.items()):
            try:
                result = clock.time(calls[name])
            except Exception as error:
                if number or name != "regions":
                    raise
                left_out[name] = failure_reason(error)
                say(f"{name} failed: {left_out[name]}")
                del clocks[name]
            else:
                first.setdefault(name, result)
    return first, {name: clock.seconds()[warmup:] for name, clock in clocks.items()}, left_out


def failure_reason(error: Exception) -> str:
    """The error in one line."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


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


def peft_library() -> Any:
    return require(
        "peft",
        "This benchmark compares with Hugging Face PEFT, which is not installed; install it with "
        "pip install peft.",
    )


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
