"""Runs that do not fit into a GPU's memory: a cohort with all, 60 % and 30 % of what it needs.

    python benchmarks/short_of_memory.py --output short-of-memory.json

For eager and compiled training: time, peak memory, the size of the passes, and how far the losses
are from those with all the memory. Also, for eager training, the same with recomputed activations.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from softprompts.backbone import Backbone
from softprompts.bench.learners import OurRuns, make_run
from softprompts.bench.measure import environment, reset_memory
from softprompts.bench.models import load_model
from softprompts.bench.settings import StepSettings
from softprompts.bench.workload import RunBatches, draw_batches
from softprompts.files import write_json

RUNS, STEPS = 8, 10


def trial(
    backbone: Backbone, batches: list[RunBatches], compiles: bool, recompute: bool = False
) -> tuple[dict[str, Any], Tensor]:
    """What it took, and the losses of each run and step [R, steps]."""
    reset_memory(backbone)
    tuning = {"optimizer": "adamw", "lr": 0.01, "weight_decay": 1e-5, "recompute": recompute}
    settings = {"preset": "prompt-tuning", "prompt": {"length": 100, "unit": 1.0}, "tuning": tuning}
    runs = [make_run(backbone, part, settings, run) for run, part in enumerate(batches)]
    ours = OurRuns(runs, compiles)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for number in range(STEPS):
        ours.step(number)
    losses = torch.tensor(ours.losses())
    milliseconds = 1000 * (time.perf_counter() - began) / (STEPS * RUNS)
    budget = ours.cohort.budget.tokens
    result = {
        "way": "compiled" if compiles else "plain",
        "recompute": recompute,
        "ms": round(milliseconds, 1),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "tokens_of_a_pass": None if budget == float("inf") else int(budget),
    }
    return result, losses


def trials(backbone: Backbone, batches: list[RunBatches]) -> list[dict[str, Any]]:
    """All trials, each printed when it is finished."""
    results: list[dict[str, Any]] = []

    def add(memory: float, result: dict[str, Any], losses: Tensor, expected: Tensor) -> None:
        difference = float(((losses - expected).abs() / expected.abs()).max())
        results.append({"memory": memory, **result, "losses_apart": round(difference, 5)})
        print(results[-1], flush=True)

    for compiles in (False, True):
        result, expected = trial(backbone, batches, compiles)
        total = torch.cuda.get_device_properties(0).total_memory
        needed = torch.cuda.max_memory_reserved() / total
        add(1.0, result, expected, expected)
        if not compiles:
            add(1.0, *trial(backbone, batches, compiles, recompute=True), expected)
        for share in (0.6, 0.3):
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(share * needed)
            result, losses = trial(backbone, batches, compiles)
            torch.cuda.set_per_process_memory_fraction(1.0)
            add(share, result, losses, expected)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="JSON file for the result")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("short_of_memory: this needs a GPU.", file=sys.stderr)
        return 2
    backbone = load_model("t5-base", "bf16", "cuda", 0)
    batches = draw_batches(StepSettings(batch=32, steps=STEPS, warmup=0), backbone, RUNS)
    result = {
        "benchmark": "short_of_memory",
        "model": "t5-base",
        "runs": RUNS,
        "steps": STEPS,
        **environment(backbone.device, "bf16"),
        "trials": trials(backbone, batches),
    }
    if options.output is not None:
        write_json(options.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
