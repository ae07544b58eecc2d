"""What attention.py compares: ways to attend to the packed rows of one layer.

Shape letters: N packed positions, K packed keys, D numbers of a head, B rows, L the longest row.
"""

import inspect
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from softprompts.backbone.batch import Text
from softprompts.backbone.speed import kernels
from softprompts.backbone.speed.row_layout import RowLayout, row_layout
from softprompts.bench.settings import StepSettings
from softprompts.bench.workload import draw_batches
from softprompts.errors import UserError, require

Array = npt.NDArray[np.int64]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries [N, heads, D], keys and values [N, key heads, D] -> [N, heads, D]."""
Step = Callable[[], list[Tensor]]
"""A forward and backward pass: the output and the gradients."""

FARTHEST = 128
"""T5's bias is constant beyond this distance."""


class Shape(NamedTuple):
    """The attention of one layer of a model."""

    heads: int
    key_heads: int
    head_size: int
    hidden: int
    causal: bool = False
    window: int | None = None
    biased: bool = False


@dataclass(frozen=True)
class Problem:
    """Packed rows, and their queries, keys and values.

    Segments stand end to end: in a causal model the prompts, each read once, and then the rows.
    After the last segment, some positions are empty.

    sizes: positions of each segment
    prefix: how many keys come before each segment's own
    owner: the segment whose first keys these are
    first_row: the segment of the first row
    leaves: queries [N, heads, D], keys and values [N, key heads, D]
    gradient: of the output [N, heads, D]
    bias: for each distance from -128 to 128 [heads, 257]
    """

    shape: Shape
    layout: RowLayout
    sizes: Array
    prefix: Array
    owner: Array
    first_row: int
    leaves: list[Tensor]
    gradient: Tensor
    bias: Tensor | None

    @property
    def device(self) -> torch.device:
        return self.gradient.device

    @property
    def used(self) -> int:
        """Positions before the empty ones."""
        return int(self.sizes.sum())

    @property
    def segment(self) -> Tensor:
        """The segment of each used position."""
        return torch.from_numpy(np.repeat(np.arange(len(self.sizes)), self.sizes)).to(self.device)

    @property
    def scale(self) -> float:
        return 1.0 if self.shape.biased else self.shape.head_size**-0.5

    def step(self, attend: Attend) -> Step:
        return backward_step(attend, self.leaves, self.gradient)


def backward_step(attend: Attend, leaves: Sequence[Tensor], gradient: Tensor) -> Step:
    def step() -> list[Tensor]:
        out = attend(*leaves)
        return [out.detach(), *torch.autograd.grad(out, leaves, gradient)]

    return step


def draw_lengths(runs: int, rows: int) -> Array:
    """Tokens of each row's text, as `softprompts bench training` draws them."""
    any_model: Any = SimpleNamespace(vocab_size=30_000, generates=True)
    drawn = draw_batches(StepSettings(batch=rows, steps=1, warmup=0), any_model, runs)
    return np.array([len(text) for run in drawn for text in run.inputs[0]])


def lay_out(
    shape: Shape, lengths: Array, prompt: int, runs: int, device: torch.device
) -> RowLayout:
    """As training packs these rows; in a causal model, each has two target tokens."""
    count, longest = len(lengths), int(lengths.max())
    text = Text(
        torch.empty(count, longest, shape.hidden, device="meta"),
        torch.ones(count, longest, device=device),
        lengths=torch.from_numpy(lengths),
        prompt_of=torch.arange(runs).repeat_interleave(count // runs) if shape.causal else None,
    )
    prompts = (runs if shape.causal else count, prompt)
    targets = [2] * count if shape.causal else None
    return row_layout(text, prompts, shape.causal, targets, 2, tiled=True, buckets=True)


def draw_problem(
    shape: Shape, layout: RowLayout, lengths: Array, prompt: int, runs: int, device: torch.device
) -> Problem:
    first_row, rows = runs if shape.causal else 0, len(lengths)
    owner = np.arange(runs).repeat(rows // runs) if shape.causal else np.arange(rows)
    own = 1 if shape.causal else prompt  # of two target tokens, the last is only predicted
    sizes = np.concatenate([np.full(first_row, prompt), lengths + own])
    prefix = np.concatenate([np.full(first_row, 0), np.full(rows, prompt * shape.causal)])
    owner = np.concatenate([np.arange(first_row), owner])
    draw = torch.Generator(device).manual_seed(0)
    parts = [
        torch.randn(len(layout.source), heads, shape.head_size, generator=draw, device=device)
        for heads in (shape.heads, shape.key_heads, shape.key_heads, shape.heads)
    ]
    bias = None
    if shape.biased:  # T5, which does not scale its scores
        parts[0] *= shape.head_size**-0.5
        bias = torch.randn(shape.heads, 2 * FARTHEST + 1, generator=draw, device=device)
    *states, gradient = (part.to(torch.bfloat16) for part in parts)
    gradient[int(sizes.sum()) :] = 0  # no loss depends on the empty positions
    leaves = [state.requires_grad_() for state in states]
    return Problem(shape, layout, sizes, prefix, owner, first_row, leaves, gradient, bias)


def host_milliseconds(call: Callable[[], Any], device: torch.device) -> float:
    """The median time of five calls until the host and the device have finished."""
    finish: Callable[[], Any] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    times = []
    for _ in range(5):
        finish()
        began = time.perf_counter()
        call()
        finish()
        times.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(times), 4)


def bias_at(distance: Tensor, bias: Tensor) -> Tensor:
    return bias[:, distance.clamp(-FARTHEST, FARTHEST) + FARTHEST]


@dataclass(frozen=True)
class Contender:
    """One way to attend to the rows of a problem.

    step: what is timed
    attend: what is compared with the reference; None: nothing
    deterministic: whether torch must use deterministic algorithms
    record: what else was measured
    """

    step: Step
    attend: Attend | None
    deterministic: bool = False
    record: dict[str, Any] = field(default_factory=dict)


def joined(part: Tensor) -> Tensor:
    """As a model's attention has it: [N, heads, D] -> [1, heads, N, D]."""
    return part.transpose(0, 1)[None]


class Repetition(NamedTuple):
    """The keys of all segments end to end, those of a prompt repeated for each of its rows.

    source: the position of each [K]
    own: of each position, the key that is not a repetition [N]
    users: the keys that repeat each position of a prompt [runs * P, rows]
    """

    source: Tensor
    own: Tensor
    users: Tensor


def repetition(problem: Problem) -> Repetition:
    sizes, prefix = problem.sizes, problem.prefix
    starts, keys = sizes.cumsum() - sizes, sizes + prefix
    segment = np.repeat(np.arange(len(keys)), keys)
    offset = np.arange(len(segment)) - (keys.cumsum() - keys)[segment]
    repeats = offset < prefix[segment]
    at = np.where(repeats, starts[problem.owner[segment]], starts[segment] - prefix[segment])
    source = at + offset
    own = np.zeros(len(problem.gradient), np.int64)
    own[source[~repeats]] = np.flatnonzero(~repeats)
    by_source = np.flatnonzero(repeats)[np.argsort(source[repeats], kind="stable")]
    vectors = int(sizes[: problem.first_row].sum())
    arrays = source, own, by_source.reshape(vectors, -1)
    return Repetition._make(torch.from_numpy(array).to(problem.device) for array in arrays)


class RepeatKeys(torch.autograd.Function):
    """[N, ...] -> [K, ...]. A prompt's gradient is the sum over its rows, in a fixed order."""

    @staticmethod
    def forward(ctx: Any, keys: Tensor, source: Tensor, own: Tensor, users: Tensor) -> Tensor:
        ctx.save_for_backward(own, users)
        return keys[source]

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None, None]:
        positions, users = ctx.saved_tensors
        own, count = gradient[0][positions], len(users)
        own[:count] += gradient[0][users].sum(1, dtype=torch.float32)
        return own, None, None, None


def repeat(part: Tensor, repetition: Repetition | None) -> Tensor:
    """All keys that segments attend to, end to end: [N, heads, D] -> [K, heads, D]."""
    if repetition is None:
        return part
    repeated: Tensor = RepeatKeys.apply(part, *repetition)  # type: ignore[no-untyped-call]
    return repeated


def ours(problem: Problem) -> Contender:
    if not kernels.AVAILABLE:
        raise UserError("Triton is not installed")
    rows, shape, table = problem.layout.rows, problem.shape, None
    if problem.bias is not None:
        table = kernels.extend_table(problem.bias, int(problem.sizes.max()))

    def attend(*parts: Tensor) -> Tensor:
        query, key, value = map(joined, parts)
        assert rows.tiles is not None
        return kernels.ragged_attention(
            query, key, value, rows.tiles, problem.scale, table, shape.window,
            causal=shape.causal, users=rows.users,
        )[0]  # fmt: skip

    return Contender(problem.step(attend), attend)


def repeating(problem: Problem) -> Contender:
    """What varlen takes to repeat keys and values, and to sum their gradients."""
    if not problem.first_row:
        raise UserError("each row has its own copy of its prompt")
    leaves, repeated = problem.leaves[1:], repetition(problem)
    gradients = [torch.randn_like(repeat(leaf, repeated)) for leaf in leaves]

    def step() -> list[Tensor]:
        outputs = [repeat(leaf, repeated) for leaf in leaves]
        return [*outputs, *torch.autograd.grad(outputs, leaves, gradients)]

    return Contender(step, None)


def check_gpu(problem: Problem) -> None:
    if problem.device.type != "cuda":
        raise UserError("it needs a GPU")


def varlen(problem: Problem, deterministic: bool = False) -> Contender:
    check_gpu(problem)
    shape = problem.shape
    if shape.biased:
        raise UserError("it takes no bias")
    module = require("torch.nn.attention.varlen", "it needs torch 2.11 or later")
    reach = -1 if shape.window is None else shape.window
    options: dict[str, Any] = {"window_size": (-1, 0) if shape.causal else (reach, reach)}
    # torch 2.11 shares key heads unasked
    if "enable_gqa" in inspect.signature(module.varlen_attn).parameters:
        options["enable_gqa"] = shape.heads != shape.key_heads
    sizes = problem.sizes, problem.sizes + problem.prefix
    ends = [
        torch.from_numpy(np.concatenate([[0], size.cumsum()]).astype(np.int32)).to(problem.device)
        for size in sizes
    ]
    longest = [int(size.max()) for size in sizes]
    repeated = repetition(problem) if problem.first_row else None

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = (repeat(part, repeated) for part in (key, value))
        out: Tensor = module.varlen_attn(query, key, value, *ends, *longest, **options)
        return out

    return Contender(problem.step(attend), attend, deterministic)


@cache
def compiled_flex() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """FlexAttention and what builds its masks, compiled for all lengths.

    Without a whole graph, FlexAttention would compute all scores of all rows with each other.
    """
    torch._dynamo.config.recompile_limit = 64
    return (
        torch.compile(flex_attention, dynamic=True, fullgraph=True),
        torch.compile(create_block_mask, dynamic=True),
    )


def flex(problem: Problem) -> Contender:
    check_gpu(problem)
    attention, compiled_mask = compiled_flex()
    bias, positions = problem.bias, len(problem.gradient)
    visible = flex_mask(problem)

    def build(function: Callable[..., Any]) -> Any:
        return function(visible, None, None, positions, positions, device=problem.device)

    def with_bias(score: Tensor, _: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        assert bias is not None
        return score + bias[head, (key - query).clamp(-FARTHEST, FARTHEST) + FARTHEST]

    block_mask = build(create_block_mask)

    def attend(*states: Tensor) -> Tensor:
        parts = [joined(state) for state in states]
        for part in parts:  # only lengths change
            torch._dynamo.mark_static(part, [1, 3])
        out: Tensor = attention(
            *parts,
            score_mod=None if bias is None else with_bias,
            block_mask=block_mask,
            scale=problem.scale,
            enable_gqa=problem.shape.heads != problem.shape.key_heads,
        )
        return out[0].transpose(0, 1)

    if bias is not None:
        torch._dynamo.mark_static(bias)
    mask_ms = {
        "mask_ms": host_milliseconds(lambda: build(create_block_mask), problem.device),
        "compiled_mask_ms": host_milliseconds(lambda: build(compiled_mask), problem.device),
    }
    return Contender(problem.step(attend), attend, record=mask_ms)


def flex_mask(problem: Problem) -> Callable[..., Tensor]:
    """Which keys each query attends to, by their positions. An empty position is alone."""
    device, causal, window = problem.device, problem.shape.causal, problem.shape.window
    count = len(problem.gradient) - problem.used
    empty = torch.arange(count, device=device) + len(problem.sizes)
    used = problem.segment
    segment = torch.cat([used, empty]).to(torch.int32)
    owners = torch.from_numpy(problem.owner).to(device)
    owner = torch.cat([owners[used], empty]).to(torch.int32)

    def visible(_: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        own = segment[query] == segment[key]
        if causal:
            return (own | (owner[query] == segment[key])) & (key <= query)
        return own if window is None else own & ((query - key).abs() <= window)

    return visible


def padded(problem: Problem) -> Contender:
    shape = problem.shape
    index, exists, column = padded_index(problem)
    mask = None if shape.causal else padded_mask(problem, exists)  # causal rows reach no pads

    def on_rows(*parts: Tensor) -> Tensor:
        query, key, value = (part.transpose(1, 2) for part in parts)
        return nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=shape.causal,
            scale=problem.scale,
            enable_gqa=shape.heads != shape.key_heads,
        ).transpose(1, 2)

    def to_rows(part: Tensor) -> Tensor:  # gradients of a prompt are summed in fp32
        rows = part.float().index_select(0, index.flatten()).to(part.dtype)
        return rows.view(*index.shape, *part.shape[1:])

    def attend(*parts: Tensor) -> Tensor:
        return on_rows(*map(to_rows, parts)).flatten(0, 1).index_select(0, column)

    leaves = [to_rows(leaf.detach()).requires_grad_() for leaf in problem.leaves]
    step = backward_step(on_rows, leaves, to_rows(problem.gradient))
    return Contender(step, attend, record={"tokens": index.numel()})


def padded_index(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """The position of each column of each row and its prompt [B, L]; which columns are not padding;
    and the column of each position [N], for a prompt's positions in one of its rows."""
    source = np.arange(problem.used)
    if problem.first_row:
        source = repetition(problem).source.cpu().numpy()
    keys = problem.sizes + problem.prefix
    starts = (keys.cumsum() - keys)[problem.first_row :, None]
    keys = keys[problem.first_row :, None]
    columns = np.arange(keys.max())
    exists = columns < keys
    index = np.where(exists, source[np.where(exists, starts + columns, 0)], 0)
    column = np.zeros(len(problem.gradient), np.int64)
    column[index[exists]] = np.flatnonzero(exists)
    arrays = [torch.from_numpy(array).to(problem.device) for array in (index, exists, column)]
    return arrays[0], arrays[1], arrays[2]


def padded_mask(problem: Problem, exists: Tensor) -> Tensor:
    """[B, 1, L, L]; with a bias, what is added to the scores [B, heads, L, L]."""
    at = torch.arange(exists.shape[1], device=problem.device)
    distance, window = at - at[:, None], problem.shape.window
    mask = exists[:, None, None].expand(-1, 1, len(at), -1)
    if window is not None:  # a pad attends to itself at least
        mask = (mask & (distance.abs() <= window)) | (distance == 0)
    if problem.bias is None:
        return mask
    return bias_at(distance, problem.bias)[None].masked_fill(~mask, -1e30).to(torch.bfloat16)


CONTENDERS: dict[str, Callable[[Problem], Contender]] = {
    "ours": ours,
    "repeat_keys": repeating,
    "varlen": varlen,
    "varlen, deterministic": partial(varlen, deterministic=True),
    "flex": flex,
    "padded": padded,
}
