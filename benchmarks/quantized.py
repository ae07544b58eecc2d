"""Frozen weights in bf16, int8 and int4: memory and time of training, and what it costs in loss.

    python benchmarks/quantized.py --model llama-8b --output quantized-8b.json        # GPU
    python benchmarks/quantized.py --model FOLDER --workload sst2 --data DATA         # real weights

For each precision, with and without recomputed activations: seconds of a step, peak memory, and the
losses of the same steps beside those of the exact weights. Losses say something only about real
weights.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from softprompts.bench.learners import OurRuns, make_run
from softprompts.bench.measure import Clock, environment, peak_gib, reset_memory
from softprompts.bench.models import load_model
from softprompts.bench.settings import StepSettings
from softprompts.bench.workload import draw_batches
from softprompts.errors import UserError, as_flag
from softprompts.files import write_json


def trial(options: argparse.Namespace, dtype: str, recompute: bool) -> dict[str, Any]:
    backbone = load_model(options.model, dtype, options.device, 0)
    reset_memory(backbone)
    memory = torch.cuda.memory_allocated() / 2**30 if backbone.device.type == "cuda" else None
    steps = StepSettings(
        workload=options.workload,
        data_dir=options.data,
        batch=options.batch,
        steps=options.steps,
        warmup=0,
    )
    (batches,) = draw_batches(steps, backbone, 1)
    tuning = {"optimizer": "adamw", "lr": options.lr, "recompute": recompute}
    prompt = {"length": options.prompt, "unit": 1.0} if options.workload == "synthetic" else {}
    settings = {"preset": "prompt-tuning", "prompt": {"length": options.prompt, **prompt}}
    ours = OurRuns([make_run(backbone, batches, settings | {"tuning": tuning}, 0)], options.compile)
    clock = Clock(backbone.device)
    for number in range(options.steps):
        clock.time(partial(ours.step, number))
    result = {
        "dtype": dtype,
        "recompute": recompute,
        "ms": round(1000 * median(clock.seconds()[options.steps // 2 :]), 2),
        "model_gib": None if memory is None else round(memory, 2),
        "peak_gib": peak_gib(backbone.device),
        "losses": [round(loss, 4) for loss in ours.losses()[0]],
        **environment(backbone.device, backbone.dtype),
    }
    del backbone, ours
    gc.collect()
    return result


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="llama-8b")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtypes", default="bf16,int8,int4")
    parser.add_argument("--workload", default="synthetic")
    parser.add_argument("--data", default="")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=20)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--lr", type=float, default=0.001)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--recompute", default="no,yes", help="no, yes, or both")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    results = []
    try:
        for recompute in options.recompute.split(","):
            for dtype in options.dtypes.split(","):
                results.append(trial(options, dtype, recompute == "yes"))
                shown = {name: results[-1][name] for name in ("dtype", "recompute", "ms")}
                memory = {name: results[-1][name] for name in ("model_gib", "peak_gib")}
                print(shown | memory, "mean loss", mean(results[-1]["losses"]), flush=True)
                if options.output:
                    write_json(options.output, {"settings": _plain(options), "trials": results})
    except UserError as error:
        print(f"quantized: {error.spelled(as_flag)}", file=sys.stderr)
        return 2
    return 0


def mean(losses: Sequence[float]) -> float:
    return round(sum(losses) / len(losses), 4)


def _plain(options: argparse.Namespace) -> dict[str, Any]:
    return {name: value for name, value in vars(options).items() if name != "output"}


if __name__ == "__main__":
    sys.exit(main())
