"""The GPU's attention over packed rows: each row attends to itself, with a bias per distance.

No score is computed across two rows, and none is stored: the backward pass recomputes them. Nothing
is summed in an order that may change. The Triton kernels are in `triton_attention.py`.

Shape letters: N packed positions, B rows, D numbers of a head, M the largest distance with a bias
of its own.
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


class KernelConfigs(NamedTuple):
    """The launch parameters of the three kernels."""

    forward: KernelConfig
    query_gradient: KernelConfig
    key_value_gradient: KernelConfig


CONFIGS = {
    32: KernelConfigs(
        KernelConfig(64, 64, 4, 2), KernelConfig(64, 64, 4, 2), KernelConfig(64, 64, 4, 2)
    ),
    64: KernelConfigs(
        KernelConfig(64, 64, 4, 3), KernelConfig(64, 64, 4, 2), KernelConfig(64, 64, 4, 3, 168)
    ),
    128: KernelConfigs(
        KernelConfig(64, 64, 4, 2), KernelConfig(64, 32, 4, 2), KernelConfig(64, 32, 4, 2)
    ),
}
"""By the size of a head, for 16-bit numbers. They may be changed at any time."""
EXACT_CONFIGS = KernelConfigs(
    KernelConfig(32, 32, 4, 1), KernelConfig(32, 32, 4, 1), KernelConfig(32, 32, 4, 1)
)
"""For 32-bit numbers, which are for checks rather than for speed."""


def max_tiles(positions: int, rows: int, size: int = TILE) -> int:
    """A number of tiles that is enough for any `rows` rows in `positions` positions."""
    return -(-positions // size) + rows


def tiles(lengths: npt.NDArray[np.int64], size: int, count: int) -> npt.NDArray[np.int32]:
    """The tiles of packed rows, longest rows first: [B] -> [`count`, 3].

    Of each tile: where its row starts, the row's length, and the tile's offset in the row. Tiles
    left over have length 0 and cover the positions after the last row.
    """
    order = np.argsort(-lengths, kind="stable")
    per_row = -(-lengths[order] // size)
    used = int(per_row.sum())
    if used > count:
        raise ValueError(f"{used} tiles of {size} positions do not fit in a list of {count}.")
    row = np.repeat(order, per_row)
    offset = (np.arange(used) - np.repeat(per_row.cumsum() - per_row, per_row)) * size
    starts = lengths.cumsum() - lengths
    listed = np.zeros((count, 3), np.int32)
    listed[:used] = np.stack([starts[row], lengths[row], offset], axis=1)
    listed[used:, 0] = int(lengths.sum()) + size * np.arange(count - used)
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
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, tiles: Tensor, scale: float
) -> Tensor:
    """Attention of every row to itself: [1, heads, N, D] each -> [1, N, heads, D]; 0 after the
    last row.

    `table` comes from `extend_table`; `tiles` from the function of that name, with a size of `TILE`
    and `max_tiles` of them.
    """
    return _attend(query, key, value, table, tiles, scale)[0]  # type: ignore[no-any-return]


@torch.library.custom_op("softprompts::ragged_attention", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, tiles: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """[1, heads, N, D] each -> [1, N, heads, D], and the logarithms of the softmax denominators:
    [heads, N]."""
    query, key, value, table = (_with_unit_stride(part) for part in (query, key, value, table))
    out, log_sums = _empty_outputs(query)
    steps = [part.stride(dim) for part in (query, key, value) for dim in (2, 1)]
    _launch(
        triton_attention.forward, _configs(query).forward,
        query, key, value, table, tiles, out, log_sums,
        scale, query.shape[2], *steps, out.stride(1), out.stride(2), table.shape[1],
    )  # fmt: skip
    return out, log_sums


@torch.library.custom_op("softprompts::ragged_attention_backward", mutates_args=())
def _attend_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    tiles: Tensor,
    out: Tensor,
    log_sums: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """grad_out and out [1, N, heads, D] -> the gradients of query, key and value:
    [1, heads, N, D] each."""
    query, key, value, table, grad_out = (
        _with_unit_stride(part) for part in (query, key, value, table, grad_out)
    )
    grad_query, grad_key, grad_value = (torch.empty_like(out) for _ in range(3))
    deltas = torch.empty_like(log_sums)
    steps = [part.stride(dim) for part in (query, key, value) for dim in (2, 1)]
    steps += [part.stride(dim) for part in (out, grad_out) for dim in (1, 2)]
    _launch(
        triton_attention.query_gradient, _configs(query).query_gradient,
        query, key, value, table, tiles, out, log_sums, grad_out, deltas, grad_query,
        scale, query.shape[2], *steps, table.shape[1],
    )  # fmt: skip
    _launch(
        triton_attention.key_value_gradient, _configs(query).key_value_gradient,
        query, key, value, table, tiles, log_sums, grad_out, deltas, grad_key, grad_value,
        scale, query.shape[2], *steps, table.shape[1],
    )  # fmt: skip
    return grad_query.transpose(1, 2), grad_key.transpose(1, 2), grad_value.transpose(1, 2)


def _with_unit_stride(part: Tensor) -> Tensor:
    """Kernels need the last dimension to be contiguous."""
    return part if part.dim() == 4 and part.stride(3) == 1 else part.contiguous()


def _empty_outputs(query: Tensor) -> tuple[Tensor, Tensor]:
    _, heads, positions, size = query.shape
    out = query.new_empty(1, positions, heads, size)
    return out, query.new_empty(heads, positions, dtype=torch.float32)


def _configs(query: Tensor) -> KernelConfigs:
    return EXACT_CONFIGS if query.dtype == torch.float32 else CONFIGS[query.shape[3]]


def _launch(
    kernel: Any,
    config: KernelConfig,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    tiles: Tensor,
    *rest: Any,
) -> None:
    """On the query's device: Triton launches on the current one."""
    parts = TILE // config.outer
    limit = {} if config.registers is None else {"maxnreg": config.registers}
    with torch.cuda.device(query.device) if query.is_cuda else nullcontext():
        kernel[query.shape[1], tiles.shape[0] * parts](
            query,
            key,
            value,
            table,
            tiles,
            *rest,
            OUTER=config.outer,
            INNER=config.inner,
            PARTS=parts,
            D=query.shape[3],
            PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
            RAW=not INTERPRETED,
            num_warps=config.warps,
            num_stages=config.stages,
            **limit,
        )


@_attend.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, tiles: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    return _empty_outputs(query)


@_attend_backward.register_fake
def _(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    tiles: Tensor,
    out: Tensor,
    log_sums: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    grad_query, grad_key, grad_value = (torch.empty_like(out).transpose(1, 2) for _ in range(3))
    return grad_query, grad_key, grad_value


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return *_attend_backward(grad_out, *ctx.saved_tensors, ctx.scale), None, None, None


_attend.register_autograd(_backward, setup_context=_save_inputs)
