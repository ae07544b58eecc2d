"""Which attention is fastest for the packed rows of a training step: ours, or one of torch's?

    python benchmarks/attention.py --output attention.json
    python benchmarks/attention.py --cases llama-1b,t5-base-encoder-p20 --repeats 100
    python benchmarks/attention.py --table benchmarks/results/attention-h200.json

One layer's attention, forward and backward to queries, keys and values, in bf16, on rows as
`softprompts bench training` draws and packs them. Times are of passes launched from Python, and of
a recorded CUDA graph, as training replays it. The contenders:

- ours: the Triton kernels, as training calls them. In decoder-only models, a prompt's keys are
  computed once for all its rows, which read them where they are.
- varlen: torch's flash attention for rows of different lengths. It cannot share keys, so those of a
  prompt are repeated before each row's (`repeat_keys` times that alone). It leaves the empty
  positions at the end undefined. Also with a deterministic backward pass, as ours has.
- flex: torch's FlexAttention, compiled for all lengths. Its mask shares prompts without repeating
  their keys. Building the mask, once per batch, is timed apart, eager and compiled.
- padded: scaled_dot_product_attention on padded rows, each with its prompt. Padding the rows and
  building the mask are not timed.

Each is first compared with attention in fp32, and not timed if it differs. ModernBERT's global
layers have the same shape as BERT's; modernbert-base stands for its local ones, which see 64 tokens
to either side.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attention_contenders import (
    CONTENDERS,
    Attend,
    Contender,
    Problem,
    Shape,
    Step,
    bias_at,
    draw_lengths,
    draw_problem,
    host_milliseconds,
    lay_out,
)
from softprompts.backbone.load import resolve_device
from softprompts.bench.measure import Clock, environment, failure_reason, spread
from softprompts.errors import UserError, as_flag
from softprompts.files import write_json

TOLERANCE = 0.03
"""The largest error of a row's outputs or gradients, over their norm; bf16 rounds to 0.004."""
PASSES = 4
"""Passes in a recorded graph, so that replaying it takes much longer than starting it."""

SHAPES = {
    "llama-135m": Shape(9, 3, 64, 576, causal=True),
    "llama-1b": Shape(32, 8, 64, 2048, causal=True),
    "bert-base": Shape(12, 12, 64, 768),
    "t5-base-encoder": Shape(12, 12, 64, 768, biased=True),
    "llama-8b": Shape(32, 8, 128, 4096, causal=True),
    "modernbert-base": Shape(12, 12, 64, 768, window=64),
}
"""The most important first."""


@dataclass(frozen=True)
class Case:
    model: str
    prompt: int
    runs: int

    @property
    def name(self) -> str:
        return f"{self.model}-p{self.prompt}-r{self.runs}"


CASES = [Case(model, prompt, runs) for model in SHAPES for prompt in (20, 100) for runs in (1, 8)]


def choose_cases(text: str) -> list[Case]:
    """Those whose names contain one of the parts."""
    parts = [part.strip() for part in text.split(",")]
    cases = [case for case in CASES if any(part in case.name for part in parts)]
    if not cases:
        names = ", ".join(case.name for case in CASES)
        raise UserError(f"--cases {text} matches no case; there are {names}.")
    return cases


def run(options: argparse.Namespace) -> dict[str, Any]:
    if min(options.rows, options.repeats) < 1:
        raise UserError("--rows and --repeats must be at least 1.")
    began, device = time.monotonic(), resolve_device(options.device)
    result = {
        **environment(device, "bf16"),
        "rows": options.rows,
        "repeats": options.repeats,
        "passes_per_graph": PASSES,
        "cases": {},
    }
    for case in choose_cases(options.cases):
        if time.monotonic() - began > options.seconds:
            print(f"{case.name}: no time left")
            continue
        result["cases"][case.name] = measure_case(case, options.rows, options.repeats, device)
        result["seconds"] = round(time.monotonic() - began, 1)
        if options.output is not None:  # after each case, so that no failure loses those before it
            write_json(options.output, result)
    return result


def measure_case(case: Case, rows: int, repeats: int, device: torch.device) -> dict[str, Any]:
    shape, lengths = SHAPES[case.model], draw_lengths(case.runs, rows)

    def layout() -> Any:
        return lay_out(shape, lengths, case.prompt, case.runs, device)

    problem = draw_problem(shape, layout(), lengths, case.prompt, case.runs, device)
    expected = reference(problem)
    contenders = {}
    for name, make in CONTENDERS.items():
        contenders[name] = measure(make, problem, expected, repeats)
        print(f"{case.name}, {name}: {in_words(contenders[name])}", flush=True)
    return {
        "model": case.model,
        "prompt": case.prompt,
        "runs": case.runs,
        **shape._asdict(),
        "tokens": problem.used,
        "positions": len(problem.gradient),
        "keys": int((problem.sizes + problem.prefix).sum()),
        "layout_ms": host_milliseconds(layout, device),
        "contenders": contenders,
    }


def measure(
    make: Callable[[Problem], Contender],
    problem: Problem,
    expected: Sequence[Tensor],
    repeats: int,
) -> dict[str, Any]:
    """The times of a contender, or why it is left out."""
    try:
        contender = make(problem)
        record = dict(contender.record)
        with deterministic(contender.deterministic):
            if contender.attend is not None:
                record |= check(problem, contender.attend, expected)
                if not record["difference"]["relative"] <= TOLERANCE:
                    return {**record, "left_out": "its results are wrong"}
            return record | time_contender(contender.step, problem, repeats)
    except UserError as error:
        return {"left_out": str(error)}
    except Exception as error:  # the others go on
        return {"left_out": failure_reason(error)}


@contextmanager
def deterministic(on: bool) -> Iterator[None]:
    settings: Any = torch.utils.deterministic
    settings.fill_uninitialized_memory = not on  # filling it would take time
    torch.use_deterministic_algorithms(on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        settings.fill_uninitialized_memory = True


def check(problem: Problem, attend: Attend, expected: Sequence[Tensor]) -> dict[str, Any]:
    """How far it is from the reference, and whether a second pass has the same results."""
    began, step, used = time.perf_counter(), problem.step(attend), problem.used
    once, again = ([part[:used] for part in step()] for _ in range(2))
    difference = deviation(problem, once, expected)
    return {
        "difference": {name: float(f"{value:.4g}") for name, value in difference.items()},
        "reproducible": all(map(torch.equal, once, again)),
        "first_s": round(time.perf_counter() - began, 2),
    }


def reference(problem: Problem) -> list[Tensor]:
    """Output and gradients in fp32, segment by segment; of used positions."""
    shape, used = problem.shape, problem.used
    leaves = [leaf.detach()[:used].float().requires_grad_() for leaf in problem.leaves]
    starts, outputs = problem.sizes.cumsum() - problem.sizes, []
    for start, size, prefix, owner in zip(
        starts, problem.sizes, problem.prefix, problem.owner, strict=True
    ):
        own, before = slice(start, start + size), slice(starts[owner], starts[owner] + prefix)
        key, value = (
            torch.cat([leaf[before], leaf[own]]).repeat_interleave(
                shape.heads // shape.key_heads, dim=1
            )
            for leaf in leaves[1:]
        )
        scores = torch.einsum("qhd,khd->hqk", leaves[0][own], key) * problem.scale
        at = torch.arange(prefix + size, device=problem.device)
        distance = at - at[prefix:, None]
        if problem.bias is not None:
            scores = scores + bias_at(distance, problem.bias)
        if shape.causal:
            scores = scores.masked_fill(distance > 0, -torch.inf)
        if shape.window is not None:
            scores = scores.masked_fill(distance.abs() > shape.window, -torch.inf)
        outputs.append(torch.einsum("hqk,khd->qhd", scores.softmax(-1), value))
    out = torch.cat(outputs)
    return [out.detach(), *torch.autograd.grad(out, leaves, problem.gradient[:used].float())]


def deviation(
    problem: Problem, results: Sequence[Tensor], expected: Sequence[Tensor]
) -> dict[str, float]:
    """The largest absolute error, and the largest relative error of a segment: the norm of its
    error over its norm, or over a tenth of the segments' root mean square norm if that is more."""
    largest = relative = 0.0
    for result, right in zip(results, expected, strict=True):
        wrong = result.float() - right
        if not bool(torch.isfinite(wrong).all()):
            return {"largest": torch.inf, "relative": torch.inf}
        errors, norms = (
            wrong.new_zeros(len(problem.sizes)).index_add(
                0, problem.segment, part.square().flatten(1).sum(1)
            )
            for part in (wrong, right)
        )
        largest = max(largest, float(wrong.abs().max()))
        relative = max(relative, float((errors / norms.clamp(min=0.01 * norms.mean())).max()))
    return {"largest": largest, "relative": relative**0.5}


def time_contender(step: Step, problem: Problem, repeats: int) -> dict[str, Any]:
    """Milliseconds of a pass, launched from Python and replayed from a CUDA graph."""
    for _ in range(5):
        results = step()
    clock = Clock(problem.device)
    for _ in range(repeats):
        clock.time(step)
    record: dict[str, Any] = {"eager_ms": milliseconds(clock)}
    if problem.device.type != "cuda":
        return record
    try:
        clock, replayed = replay(step, problem.device, repeats)
        for result, right in zip(replayed, results, strict=True):
            # what follows the used positions may be undefined
            result, right = result[: problem.used].float(), right[: problem.used].float()
            if not (result - right).norm() <= TOLERANCE * right.norm():
                raise UserError("its results are wrong when recorded")
        record["graph_ms"] = milliseconds(clock, PASSES)
    except Exception as error:  # the eager times remain
        record["not_recorded"] = failure_reason(error)
        torch.cuda.synchronize(problem.device)
    return record


def replay(step: Step, device: torch.device, repeats: int) -> tuple[Clock, list[Tensor]]:
    """Times of a graph of several passes, recorded as `backbone/speed/graphs.py` does it."""
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(PASSES):
            results = step()
    for _ in range(3):
        graph.replay()
    clock = Clock(device)
    for _ in range(repeats):
        clock.time(graph.replay)
    torch.cuda.synchronize(device)
    return clock, [result.clone() for result in results]  # the graph's memory goes with it


def milliseconds(clock: Clock, passes: int = 1) -> dict[str, float]:
    times = spread([1000 * seconds / passes for seconds in clock.seconds()])
    return {name: round(value, 5) for name, value in times.items()}


def in_words(record: dict[str, Any]) -> str:
    words = []
    if "left_out" in record:
        words.append(f"left out, {record['left_out']}")
    for kind, name in (("graph_ms", "recorded"), ("eager_ms", "eager")):
        if kind in record:
            words.append(f"{record[kind]['median']:.3f} ms {name}")
    if "not_recorded" in record:
        words.append(f"not recorded ({record['not_recorded']})")
    if "difference" in record:
        words.append(f"off by {record['difference']['relative']:.2%} of a row at most")
        words.append("reproducible" if record["reproducible"] else "not reproducible")
    return ", ".join(words)


COLUMNS = ("ours", "varlen", "varlen, deterministic", "flex", "padded")


def table(result: dict[str, Any]) -> str:
    """Markdown: milliseconds of a pass (on a GPU, a recorded one) and, in parentheses, how many
    times ours that is; and milliseconds of building flex's mask, compiled, once per batch."""
    kind = "graph_ms" if result["machine"]["kind"] == "cuda" else "eager_ms"
    head = ["case", *COLUMNS[:4], "flex's mask, compiled", *COLUMNS[4:]]
    lines = [f"| {' | '.join(head)} |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for name, case in result["cases"].items():
        contenders = case["contenders"]
        times = {
            column: contenders[column][kind]["median"]
            for column in COLUMNS
            if kind in contenders[column]
        }
        cells = [time_cell(times, column) for column in COLUMNS]
        mask = contenders["flex"].get("compiled_mask_ms")
        cells.insert(4, "–" if mask is None else f"{mask:.2f}")
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


def time_cell(times: dict[str, float], column: str) -> str:
    if column not in times:
        return "–"
    ratio = (
        f" ({times[column] / times['ours']:.2f})" if column != "ours" and "ours" in times else ""
    )
    return f"{times[column]:.3f}{ratio}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--cases", default="", help="parts of the names of cases, separated by commas")
    add("--rows", type=int, default=16, help="rows of a run")
    add("--repeats", type=int, default=30, help="timed passes, and as many replays")
    add("--seconds", type=float, default=300, help="no case starts after this time")
    add("--device", default="auto")
    add("--output", type=Path, help="JSON file for the result")
    add("--table", type=Path, help="print the table of this record instead")
    options = parser.parse_args(argv)
    try:
        if options.table is not None:
            result = json.loads(options.table.read_text(encoding="utf-8"))
        else:
            result = run(options)
    except UserError as error:
        print(f"attention: {error.spelled(as_flag)}", file=sys.stderr)
        return 2
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
