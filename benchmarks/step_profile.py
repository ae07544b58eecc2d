"""Where the time of a training step goes: how busy the GPU is, which kernels it runs, and Python.

    python benchmarks/step_profile.py --model t5-base --prompt 100 --runs 8 --output profile.json
    python benchmarks/step_profile.py --runs 32 --python 25  # and the 25 slowest Python functions

Steps are timed before the profiler runs, because it slows Python down. On a CPU, the table shows
operations instead of kernels.
"""

import argparse
import cProfile
import pstats
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from softprompts.bench.learners import OurRuns, make_run, set_compile
from softprompts.bench.measure import Clock, environment, spread
from softprompts.bench.models import load_model
from softprompts.bench.settings import StepSettings
from softprompts.bench.workload import draw_batches
from softprompts.errors import UserError, as_flag
from softprompts.files import write_json

KINDS = {
    "matrix products": r"gemm|cutlass|nvjet|cublas|::mm|::addmm|::bmm|xmma|splitK",
    "attention": r"attention|attend|flash|fmha|^(forward|key_value_gradient|query_gradient)$",
    "activations": r"gelu|tanh|relu|silu",
    "norms": r"rsqrt|norm|pow_sum",
    "softmax and loss": r"softmax|logsumexp|cross_entropy|nll",
    "gathers and scatters": r"index|gather|scatter|embedding",
    "copies and fills": r"copy|memcpy|memset|fill|cat",
    "optimiser": r"adam|foreach|multi_tensor",
}
"""Kinds of kernels by their names; the first match counts."""


def kind_of(name: str) -> str:
    for kind, pattern in KINDS.items():
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    return "other pointwise"


def synchronized_time(device: torch.device) -> float:
    """The time when all work launched so far is finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def profile_steps(options: argparse.Namespace) -> dict[str, Any]:
    if min(options.runs, options.prompt, options.batch, options.steps, options.warmup) < 1:
        raise UserError("--runs, --prompt, --batch, --steps and --warmup must be at least 1.")
    backbone = load_model(options.model, options.dtype, options.device, 0)
    device = backbone.device
    total = options.warmup + 2 * options.steps + (options.steps if options.python else 0)
    steps = StepSettings(
        workload=options.workload,
        data_dir=options.data_dir,
        batch=options.batch,
        steps=total,
        warmup=0,
    )
    batches = draw_batches(steps, backbone, options.runs)
    settings = {"preset": options.preset, "prompt": {"length": options.prompt}}
    runs = [make_run(backbone, part, settings, run) for run, part in enumerate(batches)]
    ours = OurRuns(runs, set_compile(backbone, True))
    numbers = iter(range(total))

    def step() -> None:
        ours.step(next(numbers))

    for _ in range(options.warmup):
        step()
    began, clock = synchronized_time(device), Clock(device)
    for _ in range(options.steps):
        clock.time(step)
    milliseconds = 1000 * (synchronized_time(device) - began) / options.steps
    kernels = profile_kernels(step, options.steps, device)
    if options.python:
        profile_python(step, options.steps, device, options.python)
    kinds = defaultdict[str, float](float)
    for kernel in kernels:
        kinds[kind_of(kernel["name"])] += kernel["ms"]
    tokens = sum(
        len(text) + options.prompt for run in batches for batch in run.inputs for text in batch
    )
    by_time = sorted(kinds.items(), key=lambda pair: -pair[1])
    shown = sorted(kernels, key=lambda kernel: -kernel["ms"])[:40]
    return {
        **environment(device, backbone.dtype),
        "model": options.model,
        "runs": options.runs,
        "prompt": options.prompt,
        "batch": options.batch,
        "tokens": round(tokens / total),
        "step_ms": round(milliseconds, 3),
        "run_step_ms": round(milliseconds / options.runs, 3),
        "seconds": spread(clock.seconds()),
        "busy_ms": round(sum(kinds.values()), 3),
        "kinds": {kind: round(ms, 3) for kind, ms in by_time},
        "kernels": [{**k, "name": k["name"][:160], "ms": round(k["ms"], 4)} for k in shown],
    }


def profile_kernels(
    step: Callable[[], None], steps: int, device: torch.device
) -> list[dict[str, Any]]:
    """Kernels, or on a CPU operations, with their milliseconds and calls per step."""
    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities) as profiler:
        for _ in range(steps):
            step()
        synchronized_time(device)
    kernels = []
    for event in profiler.key_averages():
        microseconds = event.self_device_time_total if cuda else event.self_cpu_time_total
        if microseconds > 0 and (not cuda or str(event.device_type).endswith("CUDA")):
            milliseconds = microseconds / 1000 / steps
            kernels.append({"name": event.key, "ms": milliseconds, "calls": event.count / steps})
    return kernels


def profile_python(
    step: Callable[[], None], steps: int, device: torch.device, functions: int
) -> None:
    """Print the slowest Python functions to stderr."""
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(steps):
        step()
    profiler.disable()
    synchronized_time(device)
    pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(functions)


def summary(result: dict[str, Any]) -> str:
    lines = [
        f"{result['model']}, {result['runs']} runs of {result['batch']} rows, "
        f"{result['tokens']:,} tokens a step, on {result['machine']['device']}: "
        f"{result['step_ms']:.1f} ms a step, {result['run_step_ms']:.2f} ms per run; busy "
        f"{result['busy_ms']:.1f} ms.",
        "",
        "| kind | ms a step | share |",
        "|---|---:|---:|",
    ]
    lines += [
        f"| {kind} | {ms:.2f} | {ms / result['busy_ms']:.0%} |"
        for kind, ms in result["kinds"].items()
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="t5-tiny", help="as for benchmarks/training.py")
    add("--workload", default="synthetic", help="synthetic or sst2")
    add("--data-dir", default="", help="folder with the rows of SST-2")
    add("--preset", default="prompt-tuning")
    add("--runs", type=int, default=8, help="runs at once")
    add("--prompt", type=int, default=20, help="prompt tokens")
    add("--batch", type=int, default=32, help="rows per step of a run")
    add("--steps", type=int, default=10, help="timed steps, and as many profiled ones")
    add("--warmup", type=int, default=12, help="steps before them, which include compiling")
    add("--python", type=int, default=0, metavar="N", help="print the N slowest Python functions")
    add("--dtype", default="auto")
    add("--device", default="auto")
    add("--output", type=Path, help="JSON file for the result")
    options = parser.parse_args(argv)
    try:
        result = profile_steps(options)
        if options.output is not None:
            write_json(options.output, result)
    except UserError as error:
        print(f"step_profile: {error.spelled(as_flag)}", file=sys.stderr)
        return 2
    print(summary(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
