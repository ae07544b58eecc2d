"""Runs that do not fit into a GPU's memory, and what activations cost: a cohort with all, 60 % and 30 % of the memory it takes.

    python benchmarks/short_of_memory.py

Prints, for the plain way and the compiled one, the time, the peak, and how far the losses are from those with all the memory; then the same
for recomputed activations.
"""

import sys
import time

import torch
from torch import Tensor

from softprompts.backbone import Backbone
from softprompts.bench.learners import Ours, make_run
from softprompts.bench.measure import release
from softprompts.bench.models import load
from softprompts.bench.workload import Rows, draw

RUNS, STEPS = 8, 10


def losses(name: str, backbone: Backbone, rows: list[Rows], fast: bool, recompute: bool = False) -> Tensor:
    """Of each run and step: [R, steps]."""
    release(backbone)
    tuning = {"optimizer": "adamw", "lr": 0.01, "weight_decay": 1e-5, "recompute": recompute}
    settings = {"preset": "prompt-tuning", "prompt": {"length": 100, "unit": 1.0}, "tuning": tuning}
    ours = Ours([make_run(backbone, own, settings, run) for run, own in enumerate(rows)], fast)
    torch.cuda.synchronize()
    begun = time.perf_counter()
    for number in range(STEPS):
        ours.step(number)
    found = torch.tensor(ours.losses())
    took, peak = 1000 * (time.perf_counter() - begun) / (STEPS * RUNS), torch.cuda.max_memory_allocated() / 2**30
    print(f"{name}: {took:.1f} ms a run-step with compiling, peak {peak:.2f} GiB, passes of {ours.cohort.room.tokens} tokens", flush=True)
    return found


def apart(one: Tensor, other: Tensor) -> str:
    return f"  losses at most {float(((one - other).abs() / other.abs()).max()):.2%} apart"


def main() -> int:
    if not torch.cuda.is_available():
        print("short_of_memory: this needs a GPU.", file=sys.stderr)
        return 2
    backbone = load("t5-base", "bf16", "cuda", 0)
    rows = draw("synthetic", backbone, RUNS, STEPS, 32, 0, "", 256)
    for fast in (False, True):
        way = "compiled" if fast else "plain"
        whole = losses(f"{way}, all memory", backbone, rows, fast)
        took = torch.cuda.max_memory_reserved() / torch.cuda.get_device_properties(0).total_memory
        for share in (0.6, 0.3):
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(share * took)
            print(apart(losses(f"{way}, {share:.0%} of it", backbone, rows, fast), whole), flush=True)
            torch.cuda.set_per_process_memory_fraction(1.0)
    plain = losses("plain, recomputed", backbone, rows, False, recompute=True)
    print(apart(plain, whole))
    return 0


if __name__ == "__main__":
    sys.exit(main())
