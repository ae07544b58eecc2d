"""Where the time of a training step goes: seconds, how busy the GPU is, which kernels take it, and what Python does meanwhile.

    python benchmarks/step_profile.py --model t5-base --prompt 100 --runs 8 --output profile-t5-base.json
    python benchmarks/step_profile.py --model t5-tiny --runs 32 --prompt 20 --python 25      # the 25 costliest functions too

Times of steps are taken before the profiler runs, because it slows Python down. On a CPU the table is of operations, not of kernels.
"""

import argparse
import cProfile
import pstats
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from softprompts.bench.learners import Ours, compile_ours, make_run
from softprompts.bench.measure import Clock, spread, surroundings, wait
from softprompts.bench.models import load
from softprompts.bench.workload import draw
from softprompts.errors import UserError
from softprompts.files import write_json

KINDS = {
    "matrix products": r"gemm|cutlass|nvjet|cublas|::mm|::addmm|::bmm|xmma|splitK",
    "attention": r"attention|attend|flash|fmha|^_forward$|^_to_key$|^_to_query$",
    "activations": r"gelu|tanh|relu|silu",
    "norms": r"rsqrt|norm|pow_sum",
    "softmax and loss": r"softmax|logsumexp|cross_entropy|nll",
    "gathers and scatters": r"index|gather|scatter|embedding",
    "copies and fills": r"copy|memcpy|memset|fill|cat",
    "optimiser": r"adam|foreach|multi_tensor",
}
"""Kinds of kernels by their names; the first that fits."""


def kind_of(name: str) -> str:
    return next(
        (kind for kind, pattern in KINDS.items() if re.search(pattern, name, re.IGNORECASE)),
        "other pointwise",
    )


def profiled(options: argparse.Namespace) -> dict[str, Any]:
    if min(options.runs, options.prompt, options.batch, options.steps, options.warmup) < 1:
        raise UserError("--runs, --prompt, --batch, --steps and --warmup must be at least 1.")
    backbone = load(options.model, options.dtype, options.device, 0)
    total = options.warmup + 2 * options.steps + (options.steps if options.python else 0)
    rows = draw(
        options.workload, backbone, options.runs, total, options.batch, 0, options.data_dir, 256
    )
    settings = {"preset": options.preset, "prompt": {"length": options.prompt}}
    ours = Ours(
        [make_run(backbone, own, settings, run) for run, own in enumerate(rows)],
        compile_ours(backbone, True),
    )
    number = iter(range(total))
    for _ in range(options.warmup):
        ours.step(next(number))
    begun, clock = wait(backbone.device), Clock(backbone.device)
    for _ in range(options.steps):
        clock.time(lambda: ours.step(next(number)))
    took = 1000 * (wait(backbone.device) - begun) / options.steps
    cuda = backbone.device.type == "cuda"
    with profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    ) as seen:
        for _ in range(options.steps):
            ours.step(next(number))
        wait(backbone.device)
    kinds, names = defaultdict[str, float](float), []
    for event in seen.key_averages():
        own = (
            (event.self_device_time_total if cuda else event.self_cpu_time_total)
            / 1000
            / options.steps
        )
        if own > 0 and (not cuda or str(event.device_type).endswith("CUDA")):
            kinds[kind_of(event.key)] += own
            names.append(
                {"name": event.key[:160], "ms": round(own, 4), "calls": event.count / options.steps}
            )
    tokens = (
        sum(len(text) + options.prompt for each in rows for batch in each.inputs for text in batch)
        / total
    )
    result = {
        **surroundings(backbone.device, backbone.dtype), "model": options.model, "runs": options.runs, "prompt": options.prompt,
        "batch": options.batch, "tokens": round(tokens), "step_ms": round(took, 3), "run_step_ms": round(took / options.runs, 3),
        "seconds": spread(clock.seconds()), "busy_ms": round(sum(kinds.values()), 3),
        "kinds": {kind: round(ms, 3) for kind, ms in sorted(kinds.items(), key=lambda pair: -pair[1])},
        "kernels": sorted(names, key=lambda entry: -float(entry["ms"]))[:40],
    }  # fmt: skip
    if options.python:
        python = cProfile.Profile()
        python.enable()
        for _ in range(options.steps):
            ours.step(next(number))
        python.disable()
        wait(backbone.device)
        pstats.Stats(python, stream=sys.stderr).sort_stats("tottime").print_stats(options.python)
    return result


def told(result: dict[str, Any]) -> str:
    where = result["machine"]["device"]
    lines = [
        f"{result['model']}, {result['runs']} runs of {result['batch']} rows, {result['tokens']:,} tokens a step, on {where}: "
        f"{result['step_ms']:.1f} ms a step, {result['run_step_ms']:.2f} a run-step; busy {result['busy_ms']:.1f} ms.",
        "", "| kind | ms a step | share |", "|---|---:|---:|",
    ]  # fmt: skip
    lines += [
        f"| {kind} | {ms:.2f} | {ms / result['busy_ms']:.0%} |"
        for kind, ms in result["kinds"].items()
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="t5-tiny", help="as benchmarks/training.py has it")
    parser.add_argument("--workload", default="synthetic", help="synthetic or sst2")
    parser.add_argument("--data-dir", default="", help="a folder with SST-2's rows")
    parser.add_argument("--preset", default="prompt-tuning")
    parser.add_argument("--runs", type=int, default=8, help="runs at once")
    parser.add_argument("--prompt", type=int, default=20, help="prompt tokens")
    parser.add_argument("--batch", type=int, default=32, help="rows of a run's step")
    parser.add_argument(
        "--steps", type=int, default=10, help="steps that are timed, and as many that are profiled"
    )
    parser.add_argument(
        "--warmup", type=int, default=12, help="steps before them, which hold the compiling"
    )
    parser.add_argument(
        "--python",
        type=int,
        default=0,
        metavar="N",
        help="print the N Python functions that take longest",
    )
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, help="where the result goes as JSON")
    options = parser.parse_args(argv)
    try:
        result = profiled(options)
        if options.output is not None:
            write_json(options.output, result)
    except UserError as error:
        print(f"step_profile: {error}", file=sys.stderr)
        return 2
    print(told(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
