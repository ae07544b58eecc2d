"""A prompt after the text in a decoder-only model: the text read first, or with the prompt.

    python benchmarks/suffix.py --model llama-135m --output suffix.json

Milliseconds of a forward and backward pass (the fastest of several) by the tokens of the texts,
with the text read without gradients before the rest, and with everything in one pass, on a CPU.
Both have the same losses and gradients.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from softprompts.backbone import Backbone, Causal
from softprompts.backbone.speed import packed_rows
from softprompts.bench.measure import DisagreementError, environment
from softprompts.bench.models import load_model
from softprompts.errors import UserError, as_flag
from softprompts.files import write_json

WAYS = {"text_first": 0.0, "one_pass": float("inf")}
"""How many times all other tokens the text must have to be read first."""


def trial(backbone: Backbone, options: argparse.Namespace, mean: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    sizes = np.maximum(2, draw.lognormal(np.log(mean), 0.4, options.batch).astype(int)).tolist()
    rows = [draw.integers(5, 100, size).tolist() for size in sizes]
    targets = [draw.integers(5, 100, 3).tolist() for _ in sizes]
    text = backbone.embed_rows(rows, "suffix")
    vectors = 0.05 * torch.randn(len(sizes), options.prompt, backbone.hidden)
    weight = torch.ones(len(sizes))
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    results: dict[str, tuple[Tensor, Tensor]] = {}
    before = packed_rows.TEXT_FIRST
    for _ in range(options.repeats):
        for way, limit in WAYS.items():
            packed_rows.TEXT_FIRST = limit
            began = time.perf_counter()
            results[way] = backbone.gradients(vectors, text, targets, weight, 0 * weight)
            seconds[way].append(time.perf_counter() - began)
    packed_rows.TEXT_FIRST = before
    for ours, plain in zip(*results.values(), strict=True):
        if float((ours - plain).norm()) > 1e-3 * float(plain.norm()):
            raise DisagreementError("The two ways disagree in their losses or gradients.")
    return {
        "text_tokens": sum(sizes),
        "prompt_tokens": len(sizes) * options.prompt,
        **{f"{way}_ms": round(1000 * min(times), 1) for way, times in seconds.items()},
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="llama-135m", help="a shape, or a decoder-only model")
    parser.add_argument("--tokens", default="10,30,100,300", help="mean tokens of a text")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(argv)
    try:
        backbone = load_model(options.model, "fp32", "cpu", 0)
        if not isinstance(backbone, Causal) or not backbone.packs_rows:
            raise UserError(f"{options.model} is not a decoder-only model that is packed.")
        trials = [trial(backbone, options, int(mean)) for mean in options.tokens.split(",")]
    except UserError as error:
        print(f"suffix: {error.spelled(as_flag)}", file=sys.stderr)
        return 2
    for record in trials:
        ratio = record["one_pass_ms"] / record["text_first_ms"]
        print(
            f"{record['text_tokens']:>6} text and {record['prompt_tokens']} prompt tokens: "
            f"{record['text_first_ms']} ms instead of {record['one_pass_ms']} ms ({ratio:.2f} x)"
        )
    if options.output is not None:
        machine = environment(backbone.device, backbone.dtype)
        write_json(options.output, {"model": options.model, "trials": trials, "machine": machine})
    return 0


if __name__ == "__main__":
    sys.exit(main())
