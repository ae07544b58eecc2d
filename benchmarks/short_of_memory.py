"""Runs that do not fit into a GPU's memory, and what activations cost: a cohort with all, 60 % and 30 % of the memory it takes.

    python benchmarks/short_of_memory.py --output short-of-memory.json

Tells, for the plain way and the compiled one, time, peak, the size of the passes, and how far the losses are from those with all the
memory; and the same of the plain way with recomputed activations.
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
from softprompts.bench.learners import Ours, make_run
from softprompts.bench.measure import release, surroundings
from softprompts.bench.models import load
from softprompts.bench.workload import Rows, draw
from softprompts.files import write_json

RUNS, STEPS = 8, 10


def trial(
    backbone: Backbone, rows: list[Rows], fast: bool, recompute: bool = False
) -> tuple[dict[str, Any], Tensor]:
    """What it took, and the losses of each run and step [R, steps]."""
    release(backbone)
    tuning = {"optimizer": "adamw", "lr": 0.01, "weight_decay": 1e-5, "recompute": recompute}
    settings = {"preset": "prompt-tuning", "prompt": {"length": 100, "unit": 1.0}, "tuning": tuning}
    ours = Ours([make_run(backbone, own, settings, run) for run, own in enumerate(rows)], fast)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for number in range(STEPS):
        ours.step(number)
    losses = torch.tensor(ours.losses())
    took, peak = (
        1000 * (time.perf_counter() - begun) / (STEPS * RUNS),
        torch.cuda.max_memory_allocated() / 2**30,
    )
    room = ours.cohort.room.tokens
    found = {
        "ms": round(took, 1),
        "peak_gib": round(peak, 2),
        "tokens_of_a_pass": None if room == float("inf") else int(room),
    }
    return {"way": "compiled" if fast else "plain", "recompute": recompute, **found}, losses


def trials(backbone: Backbone, rows: list[Rows]) -> list[dict[str, Any]]:
    """Each is told as soon as it is there."""
    told: list[dict[str, Any]] = []

    def tell(found: dict[str, Any], losses: Tensor, whole: Tensor) -> None:
        apart = float(((losses - whole).abs() / whole.abs()).max())
        told.append({**found, "losses_apart": round(apart, 5)})
        print(told[-1], flush=True)

    for fast in (False, True):
        found, whole = trial(backbone, rows, fast)
        took = torch.cuda.max_memory_reserved() / torch.cuda.get_device_properties(0).total_memory
        tell({"memory": 1.0, **found}, whole, whole)
        if not fast:
            tell(
                {"memory": 1.0, **(again := trial(backbone, rows, fast, recompute=True))[0]},
                again[1],
                whole,
            )
        for share in (0.6, 0.3):
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(share * took)
            found, losses = trial(backbone, rows, fast)
            torch.cuda.set_per_process_memory_fraction(1.0)
            tell({"memory": share, **found}, losses, whole)
    return told


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, help="where the result goes as JSON")
    options = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("short_of_memory: this needs a GPU.", file=sys.stderr)
        return 2
    backbone = load("t5-base", "bf16", "cuda", 0)
    rows = draw("synthetic", backbone, RUNS, STEPS, 32, 0, "", 256)
    result = {
        "benchmark": "short_of_memory",
        "model": "t5-base",
        "runs": RUNS,
        "steps": STEPS,
        **surroundings(backbone.device, "bf16"),
    }
    result["trials"] = trials(backbone, rows)
    if options.output is not None:
        write_json(options.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
