"""The GPU's attention over packed rows: each row attends to its own keys alone.

Keys may come before a row's queries (a prompt, which many rows may share), be shared by several
query heads, and be limited to earlier ones (causal) or near ones (a window); scores may be capped,
or get a bias per distance. No score is computed across two rows, and none is stored: the backward
pass recomputes them. Nothing is summed in an order that may change. The Triton kernels are in
`triton_attention.py`.

Shape letters: N packed queries, K packed keys, B rows, D numbers of a head, M the largest distance
with a bias of its own.
"""

import os
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from . import triton_attention

AVAILABLE = triton_attention.triton is not None
TILE = 128  # positions; M is a multiple of it
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class KernelConfig(NamedTuple):
    """The launch parameters of a kernel."""

    outer: int  # positions that a program computes: at least 16, and a divisor of a tile
    inner: int  # positions that it attends to at a time: at most a tile
    warps: int
    stages: int
    registers: int | None = None  # the most per thread: with fewer, more programs run at a time


CONFIGS = {
    32: {
        "forward": KernelConfig(64, 64, 4, 2),
        "query_gradient": KernelConfig(64, 64, 4, 2),
        "key_value_gradient": KernelConfig(64, 64, 4, 2),
    },
    64: {
        "forward": KernelConfig(64, 64, 4, 3),
        "query_gradient": KernelConfig(64, 64, 4, 2),
        "key_value_gradient": KernelConfig(64, 64, 4, 3, 168),
    },
    128: {
        "forward": KernelConfig(64, 64, 4, 2),
        "query_gradient": KernelConfig(64, 32, 4, 2),
        "key_value_gradient": KernelConfig(64, 32, 4, 2),
    },
    256: {
        "forward": KernelConfig(64, 32, 8, 1),
        "query_gradient": KernelConfig(32, 32, 8, 1),
        "key_value_gradient": KernelConfig(32, 32, 8, 1),
    },
}
"""By the size of a head, rounded up, and by kernel, for 16-bit numbers."""
EXACT_CONFIG = KernelConfig(32, 32, 4, 1)
"""For 32-bit numbers, which are for checks rather than for speed."""


def head_width(size: int) -> int | None:
    """The number of columns of the kernels for heads of `size` numbers; None: too large."""
    return next((width for width in CONFIGS if size <= width), None)


Lengths = npt.NDArray[np.int64]


def tiles(lengths: Lengths, positions: int, others: Lengths | None = None) -> npt.NDArray[np.int32]:
    """The tiles of packed rows in `positions` positions, longest rows first: [B] -> [tiles, 5].

    Of each tile: where its row starts, the row's length, the tile's offset in the row; and the
    start and length of the row's other side, of `others` positions (keys for queries, or queries
    for keys). There are enough for any rows of this number in these positions; those left over have
    length 0 and cover the positions after the last row.
    """
    others = lengths if others is None else others
    starts, other_starts = lengths.cumsum() - lengths, others.cumsum() - others
    return _tiles(lengths, int(lengths.sum()), positions, starts, other_starts, others)


def shared_tiles(
    lengths: Lengths, positions: int, prefix: Lengths, prefix_starts: Lengths, slots: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """The tiles of queries and of keys [tiles, 8] of packed rows, each of which attends to the
    `prefix` positions from `prefix_starts` on, and then to its own.

    A tile's last three numbers: the length of its row's prefix, where the prefix starts, and the
    row's first slot. For each key of its prefix, a row has a slot for its part of the key's
    gradients. The slots of all rows are consecutive; there are at most `slots`, a multiple of
    `TILE`, and as many more tiles of keys than of queries as that has tiles.
    """
    keys, starts, used = lengths + prefix, lengths.cumsum() - lengths, int(lengths.sum())
    shared = prefix, prefix_starts, prefix.cumsum() - prefix
    return (
        _tiles(lengths, used, positions, starts, starts, keys, *shared),
        _tiles(keys, used, positions + slots, starts, starts, lengths, *shared),
    )


def _tiles(lengths: Lengths, used: int, positions: int, *others: Lengths) -> npt.NDArray[np.int32]:
    """The tiles of rows of these lengths, enough for `positions` positions, the first `used` of
    which are the rows' own. `others`: where each row starts, and whatever else its tiles list."""
    order = np.argsort(-lengths, kind="stable")
    per_row = -(-lengths[order] // TILE)
    row = np.repeat(order, per_row)
    offset = (np.arange(len(row)) - np.repeat(per_row.cumsum() - per_row, per_row)) * TILE
    starts, *more = (part[row] for part in others)
    columns = [starts, lengths[row], offset, *more]
    listed = np.zeros((-(-positions // TILE) + len(lengths), len(columns)), np.int32)
    listed[: len(row)] = np.stack(columns, axis=1)
    listed[len(row) :, 0] = used + TILE * np.arange(len(listed) - len(row))
    return listed


def extend_table(table: Tensor, length: int) -> Tensor:
    """The bias table for rows of up to `length` tokens, in float32: [heads, 2 m + 1] ->
    [heads, 2 M + 1].

    Beyond m the bias is constant. M is a multiple of a tile, because kernels read whole tiles.
    """
    middle, most = table.shape[1] // 2, -(-length // TILE) * TILE
    distance = torch.arange(-most, most + 1, device=table.device).clamp(-middle, middle)
    return table.float()[:, distance + middle].contiguous()


def ragged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tiles: tuple[Tensor, Tensor],
    scale: float,
    table: Tensor | None = None,
    window: int | None = None,
    softcap: float | None = None,
    causal: bool = False,
    users: Tensor | None = None,
) -> Tensor:
    """Attention of every row to its keys: [1, heads, N, D], [1, key heads, K, D] twice ->
    [1, N, heads, D]; 0 after the last row.

    `table` comes from `extend_table`, the tiles of queries and of keys from `tiles`. A row attends
    to keys at most `window` positions away. If rows share keys, those come first of all, the tiles
    come from `shared_tiles`, and `users` [shared keys, rows] lists the slots that hold each shared
    key's gradients, filled up with the number of slots.
    """
    return _attend(  # type: ignore[no-any-return]
        query, key, value, table, *tiles, users, causal, scale,
        -1 if window is None else window, softcap or 0.0,
    )[0]  # fmt: skip


@torch.library.custom_op("softprompts::ragged_attention", mutates_args=())
def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor | None,
    query_tiles: Tensor,
    key_tiles: Tensor,
    users: Tensor | None,
    causal: bool,
    scale: float,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor]:
    """[1, N, heads, D], and the logarithms of the softmax denominators: [heads, N]."""
    query, key, value = (_with_unit_stride(part) for part in (query, key, value))
    out, log_sums = _empty_outputs(query)
    steps = [part.stride(dim) for part in (query, key, value) for dim in (2, 1)]
    _launch(
        "forward", query.shape[1], query_tiles, query, key, value, table, causal, window, softcap,
        out, log_sums, scale, query.shape[2], window, softcap,
        *steps, out.stride(1), out.stride(2),
    )  # fmt: skip
    return out, log_sums


@torch.library.custom_op("softprompts::ragged_attention_backward", mutates_args=())
def _attend_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor | None,
    query_tiles: Tensor,
    key_tiles: Tensor,
    users: Tensor | None,
    out: Tensor,
    log_sums: Tensor,
    causal: bool,
    scale: float,
    window: int,
    softcap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """grad_out and out [1, N, heads, D] -> the gradients of query, key and value, in their
    shapes."""
    query, key, value, grad_out = (
        _with_unit_stride(part) for part in (query, key, value, grad_out)
    )
    grad_query, deltas = torch.empty_like(out), torch.empty_like(log_sums)
    grad_key, grad_value = (_empty_outputs(part)[0] for part in (key, value))
    # of shared keys and values, and one that stays empty
    count = 0 if users is None else (len(key_tiles) - len(query_tiles)) * TILE + 1
    slots = grad_key.new_zeros(2, count, *grad_key.shape[2:])
    steps = [part.stride(dim) for part in (query, key, value) for dim in (2, 1)]
    grad_steps = [grad_out.stride(1), grad_out.stride(2)]
    given = query, key, value, table, causal, window, softcap
    _launch(
        "query_gradient", query.shape[1], query_tiles, *given,
        out, log_sums, grad_out, deltas, grad_query, scale, query.shape[2], window, softcap,
        *steps, out.stride(1), out.stride(2), *grad_steps,
    )  # fmt: skip
    _launch(
        "key_value_gradient", key.shape[1], key_tiles, *given,
        log_sums, grad_out, deltas, grad_key, grad_value,
        *slots, scale, query.shape[2], key.shape[2], window, softcap,
        *steps, grad_key.stride(1), grad_key.stride(2), *grad_steps,
    )  # fmt: skip
    if users is not None:
        summed = slots[:, users].sum(2, dtype=torch.float32)
        for gradient, part in zip((grad_key, grad_value), summed, strict=True):
            gradient[0, : len(users)] += part
    return grad_query.transpose(1, 2), grad_key.transpose(1, 2), grad_value.transpose(1, 2)


def _with_unit_stride(part: Tensor) -> Tensor:
    """Kernels need the last dimension to be contiguous."""
    return part if part.stride(3) == 1 else part.contiguous()


def _empty_outputs(part: Tensor) -> tuple[Tensor, Tensor]:
    _, heads, positions, size = part.shape
    out = part.new_empty(1, positions, heads, size)
    return out, part.new_empty(heads, positions, dtype=torch.float32)


def _launch(
    name: str,
    heads: int,
    tiles: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor | None,
    causal: bool,
    window: int,
    softcap: float,
    *rest: Any,
) -> None:
    """On the query's device: Triton launches on the current one."""
    exact, size = query.dtype == torch.float32, query.shape[3]
    width = head_width(size)
    assert width is not None
    config = EXACT_CONFIG if exact else CONFIGS[width][name]
    parts = TILE // config.outer
    limit = {} if config.registers is None else {"maxnreg": config.registers}
    biases = tiles if table is None else table.contiguous()
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        getattr(triton_attention, name)[heads, tiles.shape[0] * parts](
            query,
            key,
            value,
            biases,
            tiles,
            *rest,
            biases.shape[1],
            OUTER=config.outer,
            INNER=config.inner,
            PARTS=parts,
            GROUP=query.shape[1] // key.shape[1],
            D=size,
            WIDTH=width,
            CAUSAL=causal,
            BIASED=table is not None,
            WINDOWED=window >= 0,
            CAPPED=softcap > 0,
            PRECISION="ieee" if exact else "tf32",
            RAW=not INTERPRETED,
            SHARED=tiles.shape[1] > 5,
            num_warps=config.warps,
            num_stages=config.stages,
            **limit,
        )


@_attend.register_fake
def _(query: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return _empty_outputs(query)


@_attend_backward.register_fake
def _(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    by_query, by_key, by_value = (
        _empty_outputs(part)[0].transpose(1, 2) for part in (query, key, value)
    )
    return by_query, by_key, by_value


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.options = inputs[7:]
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return *_attend_backward(grad_out, *ctx.saved_tensors, *ctx.options), *[None] * 8


_attend.register_autograd(_backward, setup_context=_save_inputs)
