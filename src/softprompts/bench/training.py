"""Training: seconds for one optimiser step of one run, ours alone and many at once, beside PEFT eager and compiled.

Both sides get the same frozen model, the same batches, the same start and AdamW with the same settings, in the same precision. Our times
hold all that `tune` does in a step: choosing rows, laying them out, learning-rate schedule, optimiser, looking at the loss. PEFT's loop
holds padding, copying, forward, backward and optimiser, and nothing else.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from statistics import fmean, median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..backbone import Backbone
from ..errors import UserError
from .flops import FORMULA, t5_flops
from .learners import COMPILED, WAYS, Learner, Ours, Peft, Theirs, compile_ours, make_run, ways_of
from .measure import (
    TOLERANCE,
    Clock,
    Common,
    DisagreementError,
    Progress,
    Say,
    check_losses,
    peak_gib,
    peft,
    ratio,
    release,
    spread,
    surroundings,
    wait,
    why,
)
from .models import load
from .workload import LONGEST, Rows, draw, waste

DECAY = 1e-5
"""Weight decay, on both sides."""
FEW = 4
"""Runs of a cohort that are also taken one after another, unless told otherwise."""


@dataclass(frozen=True)
class Settings(Common):
    """What to measure."""

    workload: str = "synthetic"
    """synthetic (texts of log-normal length, about 115 tokens, at most 256) or sst2."""

    data_dir: str = ""
    """The folder with SST-2's rows (DIR/glue/sst2); without it SOFTPROMPTS_DATA, or the Hugging Face hub."""

    prompt: int = 20
    """Prompt tokens."""

    batch: int = 32
    """Rows of a run's step."""

    runs: int = 8
    """Runs of our cohort; 1: none."""

    alone: int = 0
    """Runs, of those of the cohort, that PEFT and we also take one after another; 0: four at most."""

    steps: int = 20
    """Steps that are timed."""

    warmup: int = 5
    """Steps before them, which hold the compiling."""

    lr: float = 0.01
    """Learning rate. A small one, because Adam makes whole steps of rounding errors, and the losses of both sides must stay comparable."""

    peers: str = "auto"
    """How PEFT is run: any of eager,regions,dynamic,buckets,graphs,padded,autocast; auto: eager, and on a GPU also compiled by regions."""

    seconds: float = 0.0
    """Begin with no further compiled way of PEFT's after so many seconds; 0: take the time it takes."""

    compile_ours: bool = True
    """Compile our side too, where it can: on a GPU."""

    peak_tflops: float = 989.0
    """The GPU's dense matrix TFLOP/s in bf16, for its utilisation (H100 and H200: 989)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("prompt", "batch", "runs", "steps"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not 0 <= self.alone <= self.runs:
            raise UserError(
                f"--alone is {self.alone}; it must be from 1 to the {self.runs} runs, or 0."
            )


class Subject(NamedTuple):
    """Something to measure: what makes its learners, which then take turns."""

    name: str
    about: str
    make: Callable[[], Sequence[Learner]]
    apart: bool = False
    """Whether it needs a round of its own: what is compiled for one would be taken for another."""


class Timed(NamedTuple):
    """A subject's seconds for a step of one run [steps], warm-up seconds beyond such steps, memory, and losses [runs, steps]."""

    seconds: list[float]
    compile_s: float
    peak_gib: float | None
    losses: list[list[float]]
    model_gib: float | None = None
    """Of the peak, what was there before: the frozen model."""

    def record(self, about: str, runs: int) -> dict[str, Any]:
        memory = {"peak_gib": self.peak_gib, "model_gib": self.model_gib}
        return {
            "about": about,
            "runs": runs,
            "seconds": spread(self.seconds),
            "compile_s": self.compile_s,
            **memory,
        }


class Found(NamedTuple):
    """What was measured, and why the rest was not."""

    timed: dict[str, Timed]
    left_out: dict[str, str]


def measure(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """The benchmark's result."""
    peft()  # said at once where it is missing
    deadline = time.monotonic() + (settings.seconds or inf)
    backbone = load(settings.model, settings.dtype, settings.device, settings.seed)
    alone = settings.alone or min(settings.runs, FEW)
    total = settings.warmup + settings.steps
    room = LONGEST if backbone.longest is None else backbone.longest - settings.prompt - 2
    rows = draw(
        settings.workload,
        backbone,
        settings.runs,
        total,
        settings.batch,
        settings.seed,
        settings.data_dir,
        room,
    )
    subjects = [*_peers(settings, backbone, rows[:alone]), *_ours(settings, backbone, rows, alone)]
    for timed, left_out in time_all(
        subjects, backbone, settings.warmup, settings.steps, say, deadline
    ):
        if any(name.startswith("peft") for name in timed) and all(
            subject.name in timed for subject in subjects if not subject.apart
        ):
            yield _result(settings, backbone, rows, subjects, timed, left_out, say)
    if not any(name.startswith("peft") for name in timed):
        raise DisagreementError(
            f"PEFT did not run, so there is nothing to compare with: {left_out}."
        )


def _result(
    settings: Settings,
    backbone: Backbone,
    rows: Sequence[Rows],
    subjects: Sequence[Subject],
    timed: dict[str, Timed],
    left_out: dict[str, str],
    say: Say,
) -> dict[str, Any]:
    alone, total = settings.alone or min(settings.runs, FEW), settings.warmup + settings.steps
    apart = _checked(timed, alone, backbone.dtype)
    say(f"losses agree: at most {max(apart.values()):.1e} apart")
    return {
        **surroundings(backbone.device, backbone.dtype),
        "settings": asdict(settings),
        "attention": backbone.model.config._attn_implementation,
        "subjects": {
            s.name: timed[s.name].record(s.about, alone if s.name != "cohort" else settings.runs)
            | _rate(settings, backbone, rows, timed[s.name])
            for s in subjects
            if s.name in timed
        },
        "left_out": left_out,
        **_compared(timed),
        "losses": {
            "max_relative_difference": apart,
            "tolerance": TOLERANCE[backbone.dtype],
            "steps": total,
            "runs": alone,
        },
        "padding": waste(rows, settings.prompt),
        "flops": FORMULA,
    }


def _checked(timed: dict[str, Timed], alone: int, dtype: str) -> dict[str, float]:
    """How far the losses of each are from those of the first way that PEFT is run."""
    first = next(name for name in timed if name.startswith("peft"))
    allowed = {name: "bf16" if "peft autocast" in (first, name) else dtype for name in timed}
    return {
        name: check_losses(first, timed[first].losses, name, found.losses[:alone], allowed[name])
        for name, found in timed.items()
        if name != first
    }


def _peers(settings: Settings, backbone: Backbone, rows: Sequence[Rows]) -> list[Subject]:
    ways = ways_of(settings.peers, backbone, WAYS)
    starts = [start(settings, backbone, own, run) for run, own in enumerate(rows)]

    def make(way: str) -> list[Learner]:
        peer = Peft(backbone, settings.prompt, way)
        return [
            Theirs(peer, begin, own, settings.lr, DECAY)
            for begin, own in zip(starts, rows, strict=True)
        ]

    return [
        Subject(f"peft {way}", f"PEFT, {WAYS[way]}", partial(make, way), way in COMPILED)
        for way in ways
    ]


def _ours(
    settings: Settings, backbone: Backbone, rows: Sequence[Rows], alone: int
) -> list[Subject]:
    compiles = compile_ours(backbone, settings.compile_ours)
    how = "compiled" if compiles else "as it comes"

    def runs(many: int) -> list[Any]:
        return [
            make_run(backbone, own, _config(settings), settings.seed + run)
            for run, own in enumerate(rows[:many])
        ]

    subjects = [
        Subject(
            "ours",
            f"ours, one run at a time, {how}",
            lambda: [Ours([run], compiles) for run in runs(alone)],
        )
    ]
    if settings.runs > 1:
        subjects.append(
            Subject(
                "cohort",
                f"ours, {settings.runs} runs at once, {how}",
                lambda: [Ours(runs(settings.runs), compiles)],
            )
        )
    return subjects


def _config(settings: Settings) -> dict[str, Any]:
    """Our run. Numbers are absolute (unit 1), as PEFT's are."""
    return {
        "preset": "prompt-tuning",
        "prompt": {"length": settings.prompt, "unit": 1.0},
        "tuning": {"optimizer": "adamw", "lr": settings.lr, "weight_decay": DECAY},
    }


def start(settings: Settings, backbone: Backbone, rows: Rows, run: int) -> Tensor:
    """The vectors that our run starts from [P, H], for PEFT to start from too."""
    return (
        make_run(backbone, rows, _config(settings), settings.seed + run)
        .prompt.table.detach()[0]
        .clone()
    )


def time_all(
    subjects: Sequence[Subject],
    backbone: Backbone,
    warmup: int,
    steps: int,
    say: Say,
    deadline: float = inf,
) -> Iterator[Found]:
    """On a GPU one subject after another, so that each has its own peak of memory; on a CPU step by step in turn, so that what else
    the machine does falls on all alike. What is compiled comes last: where it fails, or no time is left, that is told."""
    plain = [subject for subject in subjects if not subject.apart]
    rounds = [[subject] for subject in plain] if backbone.device.type == "cuda" else [plain]
    rounds += [[subject] for subject in subjects if subject.apart]
    found = Found({}, {})
    for some in filter(None, rounds):
        names = ", ".join(subject.name for subject in some)
        if some[0].apart and time.monotonic() > deadline:
            found.left_out[names] = "no time was left"
            yield found
            continue
        release(backbone)
        say(f"measuring {names} on {backbone.name}: {warmup} + {steps} steps")
        try:
            found.timed.update(_round(some, backbone.device, warmup, steps, say))
        except Exception as error:
            if not some[0].apart:
                raise
            found.left_out[names] = why(error)
            say(f"{names} failed: {found.left_out[names]}")
        if some[0].apart:
            torch.compiler.reset()
        yield found
    release(backbone)


def _round(
    subjects: Sequence[Subject], device: torch.device, warmup: int, steps: int, say: Say
) -> dict[str, Timed]:
    held = round(torch.cuda.memory_allocated(device) / 2**30, 3) if device.type == "cuda" else None
    learners = [(subject.name, learner) for subject in subjects for learner in subject.make()]
    clocks = [Clock(device) for _ in learners]
    before = {subject.name: 0.0 for subject in subjects}
    progress = Progress(say, "step", warmup + steps)
    for number in range(warmup + steps):
        for (name, learner), clock in zip(learners, clocks, strict=True):
            learner.ready()
            if number < warmup:
                begun = wait(device)
                learner.step(number)
                before[name] += wait(device) - begun
            else:
                clock.time(partial(learner.step, number))
        progress.tick(number + 1)
    found = {}
    for subject in subjects:
        own = [
            (learner, clock.seconds())
            for (name, learner), clock in zip(learners, clocks, strict=True)
            if name == subject.name
        ]
        seconds = [
            fmean(seconds[step] / learner.runs for learner, seconds in own) for step in range(steps)
        ]
        typical = sum(median(seconds) for _, seconds in own)
        losses = [run for learner, _ in own for run in learner.losses()]
        compile_s = round(max(0.0, before[subject.name] - warmup * typical), 2)
        found[subject.name] = Timed(seconds, compile_s, peak_gib(device), losses, held)
        say(
            f"{subject.name}: {1000 * median(seconds):.2f} ms for a step of one run, warm-up {before[subject.name]:.1f} s"
        )
    return found


def _rate(
    settings: Settings, backbone: Backbone, rows: Sequence[Rows], timed: Timed
) -> dict[str, Any]:
    """What the matrices achieved, where the model's operations are known."""
    if backbone.model.config.model_type not in ("t5", "mt5"):
        return {"tflops": None, "utilisation": None}
    texts = [
        len(text) + settings.prompt
        for own in rows
        for batch in own.inputs[settings.warmup :]
        for text in batch
    ]
    targets = [
        len(target) for own in rows for batch in own.targets[settings.warmup :] for target in batch
    ]
    step = t5_flops(backbone.model.config, texts, targets).step / (len(rows) * settings.steps)
    rated = backbone.device.type == "cuda" and backbone.dtype == "bf16"
    achieved = step / median(timed.seconds) / 1e12
    return {"tflops": achieved, "utilisation": achieved / settings.peak_tflops if rated else None}


def _compared(timed: dict[str, Timed]) -> dict[str, Any]:
    """How many times as long the others take as ours; `fastest` is PEFT at its best."""
    theirs = {name: found for name, found in timed.items() if name.startswith("peft")}
    fastest = min(theirs, key=lambda name: median(theirs[name].seconds))
    ratios = {}
    for mine in [name for name in ("ours", "cohort") if name in timed]:
        others = [*theirs, *(["ours"] if mine == "cohort" else [])]
        ratios[mine] = {name: ratio(timed[name].seconds, timed[mine].seconds) for name in others}
    return {"fastest": fastest, "ratios": ratios}
