"""Training: seconds per optimiser step of one run, ours alone and in a cohort, against PEFT.

Both sides get the same frozen model, batches, initial prompt, AdamW settings and precision. Our
times include all that `tune` does in a step: choosing and laying out rows, schedule, optimiser,
checking the loss. PEFT's loop is padding, copying, forward, backward and optimiser, nothing else.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from math import inf
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..backbone import Backbone, Masked
from ..errors import UserError
from .flops import FORMULA, step_flops
from .learners import (
    COMPILED,
    PEFT_MODES,
    Learner,
    OurRuns,
    PeftModel,
    PeftRun,
    make_run,
    peft_modes,
    set_compile,
)
from .measure import (
    Clock,
    DisagreementError,
    Say,
    counted,
    environment,
    failure_reason,
    peak_gib,
    peft_library,
    ratio,
    reset_memory,
    spread,
)
from .models import load_model
from .settings import TrainingSettings as Settings
from .workload import MAX_TEXT, RunBatches, draw_batches, padding_ratio

WEIGHT_DECAY = 1e-5
"""On both sides."""
TOLERANCE = {"fp32": 1e-3, "bf16": 2e-2}
"""The largest relative difference between two losses of the same step."""
MAX_ALONE = 4
"""Runs of the cohort that are also trained alone, by default."""


class Subject(NamedTuple):
    name: str
    about: str
    make: Callable[[], Sequence[Learner]]
    """Makes its learners, which take turns."""
    compiled: bool = False
    """Measured in a round of its own, or code compiled for one would be reused for another."""


class Measurement(NamedTuple):
    """What a subject took.

    `seconds` are of each step, for one run; `compile_s` is the warm-up beyond what such steps take;
    `losses` are [runs, steps]; `model_gib` is the part of the peak that was allocated before: the
    frozen model.
    """

    seconds: list[float]
    compile_s: float
    peak_gib: float | None
    losses: list[list[float]]
    model_gib: float | None = None

    def record(self, about: str, runs: int) -> dict[str, Any]:
        return {
            "about": about,
            "runs": runs,
            "seconds": spread(self.seconds),
            "compile_s": self.compile_s,
            "peak_gib": self.peak_gib,
            "model_gib": self.model_gib,
        }


def measure(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """The benchmark's result, yielded again each time it is more complete."""
    peft_library()  # reports at once that it is missing
    deadline = time.monotonic() + (settings.seconds or inf)
    backbone = load_model(
        settings.model, settings.dtype, settings.device, settings.seed, settings.threads
    )
    if isinstance(backbone, Masked) and not backbone.fills_masks:
        raise UserError(
            f"{backbone.name} has no output layer for words, so PEFT cannot train a prompt that "
            "fills masks with it; choose a model with one, such as bert-base."
        )
    alone = settings.alone or min(settings.runs, MAX_ALONE)
    positions = backbone.max_positions
    longest = MAX_TEXT if positions is None else positions - settings.prompt - 2
    batches = draw_batches(settings, backbone, settings.runs, longest)
    peers = _peers(settings, backbone, batches[:alone])
    subjects = [*peers, *_ours(settings, backbone, batches, alone)]
    for measured, left_out in measure_all(
        subjects, backbone, settings.warmup, settings.steps, say, deadline
    ):
        complete = all(subject.name in measured for subject in subjects if not subject.compiled)
        if complete and any(peer.name in measured for peer in peers):
            yield _result(settings, backbone, batches, subjects, measured, left_out, say)
    if not any(peer.name in measured for peer in peers):
        raise DisagreementError(
            f"PEFT did not run, so there is nothing to compare with: {left_out}."
        )


def _result(
    settings: Settings,
    backbone: Backbone,
    batches: Sequence[RunBatches],
    subjects: Sequence[Subject],
    measured: dict[str, Measurement],
    left_out: dict[str, str],
    say: Say,
) -> dict[str, Any]:
    alone = settings.alone or min(settings.runs, MAX_ALONE)
    differences = _compare_losses(measured, alone, backbone.dtype)
    say(f"losses agree: they differ by at most {max(differences.values()):.1e}")
    records = {
        name: measured[name].record(about, settings.runs if name == "cohort" else alone)
        | _flops_rate(settings, backbone, batches, measured[name])
        for name, about, *_ in subjects
        if name in measured
    }
    return {
        **environment(backbone.device, backbone.dtype),
        "settings": asdict(settings),
        "attention": backbone.model.config._attn_implementation,
        "subjects": records,
        "left_out": left_out,
        **_ratios(measured),
        "losses": {
            "max_relative_difference": differences,
            "tolerance": TOLERANCE[backbone.dtype],
            "steps": settings.warmup + settings.steps,
            "runs": alone,
        },
        "padding": padding_ratio(batches, settings.prompt),
        "flops": FORMULA,
    }


def _compare_losses(measured: dict[str, Measurement], alone: int, dtype: str) -> dict[str, float]:
    """The largest relative difference of each subject's losses to those of PEFT's first mode; an
    error if one is too large."""
    first = next(name for name in measured if name.startswith("peft"))
    expected = np.asarray(measured[first].losses)
    largest = {}
    for name, other in measured.items():
        if name == first:
            continue
        losses = np.asarray(other.losses[:alone])
        differences = np.nan_to_num(np.abs(expected - losses) / np.abs(expected), nan=inf)
        largest[name] = float(differences.max())
        precision = "bf16" if "peft autocast" in (first, name) else dtype
        if largest[name] > TOLERANCE[precision]:
            run, step = np.unravel_index(int(differences.argmax()), differences.shape)
            raise DisagreementError(
                f"{name} and {first} do not train the same way: at step {step} of run {run} their "
                f"losses are {losses[run, step]:.6g} and {expected[run, step]:.6g}, which differ "
                f"by {largest[name]:.1e} where {precision} allows {TOLERANCE[precision]:.0e}; the "
                "times are discarded."
            )
    return largest


def _peers(settings: Settings, backbone: Backbone, batches: Sequence[RunBatches]) -> list[Subject]:
    starts = [start(settings, backbone, part, run) for run, part in enumerate(batches)]

    def make(mode: str) -> list[Learner]:
        peer = PeftModel(backbone, settings.prompt, mode)
        return [
            PeftRun(peer, vectors, part, settings.lr, WEIGHT_DECAY)
            for vectors, part in zip(starts, batches, strict=True)
        ]

    return [
        Subject(f"peft {mode}", f"PEFT, {PEFT_MODES[mode]}", partial(make, mode), mode in COMPILED)
        for mode in peft_modes(settings.peers, backbone, PEFT_MODES)
    ]


def _ours(
    settings: Settings, backbone: Backbone, batches: Sequence[RunBatches], alone: int
) -> list[Subject]:
    compiles = set_compile(backbone, settings.compile_ours)
    mode = "compiled" if compiles else "recorded" if backbone.device.type == "cuda" else "eager"

    def runs(count: int) -> list[Any]:
        return [
            make_run(backbone, part, _config(settings), settings.seed + run)
            for run, part in enumerate(batches[:count])
        ]

    one_by_one = Subject(
        "ours",
        f"ours, one run at a time, {mode}",
        lambda: [OurRuns([run], compiles) for run in runs(alone)],
    )
    together = Subject(
        "cohort",
        f"ours, {settings.runs} runs at once, {mode}",
        lambda: [OurRuns(runs(settings.runs), compiles)],
    )
    return [one_by_one, together] if settings.runs > 1 else [one_by_one]


def _config(settings: Settings) -> dict[str, Any]:
    """The settings of our run; the prompt is in absolute numbers (unit 1), as PEFT's is."""
    return {
        "preset": "prompt-tuning",
        "prompt": {"length": settings.prompt, "unit": 1.0},
        "tuning": {"optimizer": "adamw", "lr": settings.lr, "weight_decay": WEIGHT_DECAY},
    }


def start(settings: Settings, backbone: Backbone, batches: RunBatches, run: int) -> Tensor:
    """The vectors that our run starts from [P, H], for PEFT to start from too."""
    ours = make_run(backbone, batches, _config(settings), settings.seed + run)
    return ours.prompt.table.detach()[0].clone()


def measure_all(
    subjects: Sequence[Subject],
    backbone: Backbone,
    warmup: int,
    steps: int,
    say: Say,
    deadline: float = inf,
) -> Iterator[tuple[dict[str, Measurement], dict[str, str]]]:
    """Measure all subjects, the compiled ones last: what was measured, and why the rest was not.

    On a GPU they go one after another, so that each has its own peak of memory; on a CPU they take
    turns step by step, so that other load on the machine affects all of them. A compiled one that
    fails, or for which no time is left, is recorded as left out.
    """
    eager = [subject for subject in subjects if not subject.compiled]
    rounds = [[subject] for subject in eager] if backbone.device.type == "cuda" else [eager]
    rounds += [[subject] for subject in subjects if subject.compiled]
    measured: dict[str, Measurement] = {}
    left_out: dict[str, str] = {}
    for group in filter(None, rounds):
        names, compiled = ", ".join(subject.name for subject in group), group[0].compiled
        if compiled and time.monotonic() > deadline:
            left_out[names] = "no time was left"
            yield measured, left_out
            continue
        reset_memory(backbone)
        say(f"measuring {names} on {backbone.name}: {warmup} + {steps} steps")
        try:
            measured.update(_measure_group(group, backbone.device, warmup, steps, say))
        except Exception as error:
            if not compiled:
                raise
            left_out[names] = failure_reason(error)
            say(f"{names} failed: {left_out[names]}")
        if compiled:
            torch.compiler.reset()
        yield measured, left_out
    reset_memory(backbone)


def _measure_group(
    subjects: Sequence[Subject], device: torch.device, warmup: int, steps: int, say: Say
) -> dict[str, Measurement]:
    on_gpu = device.type == "cuda"
    model_gib = round(torch.cuda.memory_allocated(device) / 2**30, 3) if on_gpu else None
    learners = {subject.name: subject.make() for subject in subjects}
    clocks = {name: [Clock(device) for _ in group] for name, group in learners.items()}
    for number in counted(warmup + steps, "step", say):
        for name, group in learners.items():
            for learner, clock in zip(group, clocks[name], strict=True):
                learner.prepare()
                clock.time(partial(learner.step, number))
    results = {}
    for name, group in learners.items():
        seconds = [clock.seconds() for clock in clocks[name]]
        warmup_seconds = sum(sum(times[:warmup]) for times in seconds)
        per_run = [
            fmean(times[step] / learner.runs for learner, times in zip(group, seconds, strict=True))
            for step in range(warmup, warmup + steps)
        ]
        usual = sum(median(times[warmup:]) for times in seconds)
        compile_s = round(max(0.0, warmup_seconds - warmup * usual), 2)
        losses = [run for learner in group for run in learner.losses()]
        results[name] = Measurement(per_run, compile_s, peak_gib(device), losses, model_gib)
        say(
            f"{name}: {1000 * median(per_run):.2f} ms per step of one run, warm-up "
            f"{warmup_seconds:.1f} s"
        )
    return results


def _flops_rate(
    settings: Settings,
    backbone: Backbone,
    batches: Sequence[RunBatches],
    measurement: Measurement,
) -> dict[str, Any]:
    """Achieved TFLOP/s, if the model's operations are known."""
    if backbone.model.config.model_type not in ("t5", "mt5"):
        return {"tflops": None, "utilisation": None}
    flops = step_flops(backbone, batches, settings.prompt, settings.warmup)
    achieved = flops.step / median(measurement.seconds) / 1e12
    peak_known = backbone.device.type == "cuda" and backbone.dtype == "bf16"
    utilisation = achieved / settings.peak_tflops if peak_known else None
    return {"tflops": achieved, "utilisation": utilisation}


def _ratios(measured: dict[str, Measurement]) -> dict[str, Any]:
    """How many times as long the others take as ours; `fastest` is PEFT's fastest mode."""
    peers = [name for name in measured if name.startswith("peft")]
    fastest = min(peers, key=lambda name: median(measured[name].seconds))
    ratios = {}
    for ours in [name for name in ("ours", "cohort") if name in measured]:
        others = [*peers, "ours"] if ours == "cohort" else peers
        ratios[ours] = {
            name: ratio(measured[name].seconds, measured[ours].seconds) for name in others
        }
    return {"fastest": fastest, "ratios": ratios}
