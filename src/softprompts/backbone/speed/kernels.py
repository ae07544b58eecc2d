"""The GPU's attention for rows laid end to end: every row sees itself alone, with a bias for each distance. Written in Triton.

No score is computed across two rows, and none is kept: the way back computes them again. Nothing is added up in an order that may change.

Shape letters: N places, B rows, D of a head, M the most distance that has a bias, T tiles.
"""

import importlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

triton: Any
tl: Any
try:
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")
except ImportError:  # a build of torch for the CPU brings no Triton
    triton, tl = None, SimpleNamespace(constexpr=None)

TILE = 128
"""Places of a tile, for `tiles`, and what M is a multiple of, for `widen`."""
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


class Shape(NamedTuple):
    """How a kernel works."""

    outer: int
    """Places that a program answers for: at least 16, and they divide a tile."""
    inner: int
    """Places that it looks at together: at most a tile."""
    warps: int
    stages: int
    registers: int | None = None
    """The most for a thread: with fewer each, more programs run at a time."""


class Shapes(NamedTuple):
    """The shapes of the three kernels."""

    forward: Shape
    to_query: Shape
    to_key: Shape


SHAPES = {
    32: Shapes(Shape(64, 64, 4, 2), Shape(64, 64, 4, 2), Shape(64, 64, 4, 2)),
    64: Shapes(Shape(64, 64, 4, 3), Shape(64, 64, 4, 2), Shape(64, 64, 4, 3, 168)),
    128: Shapes(Shape(64, 64, 4, 2), Shape(64, 32, 4, 2), Shape(64, 32, 4, 2)),
}
"""By the size of a head, for two bytes a number. They may be changed at any time."""
EXACT = Shapes(Shape(32, 32, 4, 1), Shape(32, 32, 4, 1), Shape(32, 32, 4, 1))
"""For four bytes a number: for checks rather than for speed."""


def room(places: int, rows: int, size: int = TILE) -> int:
    """Tiles enough for any `rows` rows in so many places."""
    return -(-places // size) + rows


def tiles(lengths: npt.NDArray[np.int64], size: int, room: int) -> npt.NDArray[np.int32]:
    """The tiles of rows laid end to end, longest rows first: where its row starts, how long that is, and where in it the tile does.

    [B] -> [`room`, 3]. Tiles that are left over have length 0 and stand, one after another, where no row does.
    """
    order = np.argsort(-lengths, kind="stable")
    many = -(-lengths[order] // size)
    used = int(many.sum())
    if used > room:
        raise ValueError(f"{used} tiles of {size} places do not fit in a list of {room}.")
    row = np.repeat(order, many)
    inside = (np.arange(used) - np.repeat(many.cumsum() - many, many)) * size
    ends = lengths.cumsum()
    found = np.zeros((room, 3), np.int32)
    found[:used] = np.stack([(ends - lengths)[row], lengths[row], inside], axis=1)
    found[used:, 0] = int(lengths.sum()) + size * np.arange(room - used)
    return found


def widen(table: Tensor, longest: int) -> Tensor:
    """The table for rows of at most `longest` tokens, in float32: [heads, 2 m + 1] -> [heads, 2 M + 1].

    Beyond m the bias stays the same. M is a multiple of a tile: kernels read whole tiles.
    """
    middle, most = table.shape[1] // 2, -(-longest // TILE) * TILE
    distance = torch.arange(-most, most + 1, device=table.device).clamp(-middle, middle)
    return table.float()[:, distance + middle].contiguous()


def ragged_attention(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, tiles: Tensor, scale: float
) -> Tensor:
    """Attention of every row to itself: [1, heads, N, D] each -> [1, N, heads, D]. Places of no row are 0.

    `table` is from `widen`, `tiles` from the function of that name, with a size of `TILE` and the room that `room` tells.
    """
    found: Tensor = _attend(query, key, value, table, tiles, scale)[0]
    return found


def _kernel(function: Callable[..., Any]) -> Any:
    """For Triton to compile, once for all lengths."""
    return (
        function
        if triton is None
        else triton.jit(function, do_not_specialize=["places", "table_step"])
    )


@_kernel
def _read(base, at, RAW: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """Numbers read straight into the registers that want them: Triton's own load may take the way through shared memory."""
    if RAW:
        size: tl.constexpr = base.dtype.element_ty.primitive_bitwidth // 8
        address = base.to(tl.int64) + at.to(tl.int64) * size
        if size == 4:
            found = tl.inline_asm_elementwise(
                "ld.global.nc.f32 $0, [$1];",
                "=f,l",
                [address],
                dtype=tl.float32,
                is_pure=True,
                pack=1,
            )
        else:
            found = tl.inline_asm_elementwise(
                "ld.global.nc.b16 $0, [$1];",
                "=h,l",
                [address],
                dtype=base.dtype.element_ty,
                is_pure=True,
                pack=1,
            )
    else:
        found = tl.load(base + at)
    return found.to(tl.float32)


@_kernel
def _clear(base, first, places, step, OUTER: tl.constexpr, D: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """Zeros from a place on."""
    at = first + tl.arange(0, OUTER)
    where = base + at.to(tl.int64)[:, None] * step + tl.arange(0, D)[None, :]
    tl.store(where, tl.zeros([OUTER, D], base.dtype.element_ty), mask=(at < places)[:, None])


@_kernel
def _forward(  # type: ignore[no-untyped-def]
    query, key, value, table, tiles, out, sums, scale, places,
    query_step, query_head, key_step, key_head, value_step, value_head, out_step, out_head,
    table_step,
    OUTER: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr, RAW: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """What the places of a tile see, and the base-2 logarithm of the sum of its weights."""
    head = tl.program_id(0)
    tile = tl.program_id(1) // PARTS
    part = tl.program_id(1) % PARTS * OUTER
    start = tl.load(tiles + tile * 3)
    length = tl.load(tiles + tile * 3 + 1)
    offset = tl.load(tiles + tile * 3 + 2) + part
    out += head * out_head
    sums += head.to(tl.int64) * places
    if length == 0:
        if start + part < places:
            _clear(out, start + part, places, out_step, OUTER, D)
            beyond = start + part + tl.arange(0, OUTER)
            tl.store(sums + beyond, tl.zeros([OUTER], tl.float32), mask=beyond < places)
        return
    if offset >= length:
        return
    log2e: tl.constexpr = 1.4426950408889634
    query += head * query_head + start.to(tl.int64) * query_step
    key += head * key_head + start.to(tl.int64) * key_step
    value += head * value_head + start.to(tl.int64) * value_step
    out += start.to(tl.int64) * out_step
    table += head * table_step + (table_step - 1) // 2

    rows, columns, sides = tl.arange(0, OUTER), tl.arange(0, INNER), tl.arange(0, D)
    at = offset + rows
    here = at < length
    asking = tl.load(
        query + at[:, None] * query_step + sides[None, :], mask=here[:, None], other=0.0
    )
    most = tl.full([OUTER], float("-inf"), tl.float32)
    total = tl.zeros([OUTER], tl.float32)
    found = tl.zeros([OUTER, D], tl.float32)
    for begin in range(0, length, INNER):
        other = begin + columns
        there = other < length
        keys = tl.load(
            key + other[:, None] * key_step + sides[None, :], mask=there[:, None], other=0.0
        )
        scores = tl.dot(asking, tl.trans(keys), input_precision=PRECISION)
        scores = scores * scale + _read(table, other[None, :] - at[:, None], RAW)
        scores = tl.where(there[None, :], scores, float("-inf"))
        now = tl.maximum(most, tl.max(scores, 1))
        weights = tl.exp2(scores * log2e - (now * log2e)[:, None])
        shrink = tl.exp2((most - now) * log2e)
        total = total * shrink + tl.sum(weights, 1)
        found = found * shrink[:, None]
        values = tl.load(
            value + other[:, None] * value_step + sides[None, :], mask=there[:, None], other=0.0
        )
        found = tl.dot(weights.to(values.dtype), values, found, input_precision=PRECISION)
        most = now
    found = found / total[:, None]
    tl.store(
        out + at[:, None] * out_step + sides[None, :],
        found.to(out.dtype.element_ty),
        mask=here[:, None],
    )
    tl.store(sums + start + at, most * log2e + tl.log2(total), mask=here)


@_kernel
def _to_query(  # type: ignore[no-untyped-def]
    query, key, value, table, tiles, out, sums, gradient, inner, by_query,
    scale, places,
    query_step, query_head, key_step, key_head, value_step, value_head, out_step, out_head,
    gradient_step, gradient_head, table_step,
    OUTER: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr, RAW: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The gradient by a tile's queries; on the way, the inner product of each place's output and its gradient, for the next kernel."""
    head = tl.program_id(0)
    tile = tl.program_id(1) // PARTS
    part = tl.program_id(1) % PARTS * OUTER
    start = tl.load(tiles + tile * 3)
    length = tl.load(tiles + tile * 3 + 1)
    offset = tl.load(tiles + tile * 3 + 2) + part
    by_query += head * out_head
    if length == 0:
        if start + part < places:
            _clear(by_query, start + part, places, out_step, OUTER, D)
        return
    if offset >= length:
        return
    log2e: tl.constexpr = 1.4426950408889634
    query += head * query_head + start.to(tl.int64) * query_step
    key += head * key_head + start.to(tl.int64) * key_step
    value += head * value_head + start.to(tl.int64) * value_step
    out += head * out_head + start.to(tl.int64) * out_step
    by_query += start.to(tl.int64) * out_step
    gradient += head * gradient_head + start.to(tl.int64) * gradient_step
    sums += head.to(tl.int64) * places + start
    inner += head.to(tl.int64) * places + start
    table += head * table_step + (table_step - 1) // 2

    rows, columns, sides = tl.arange(0, OUTER), tl.arange(0, INNER), tl.arange(0, D)
    at = offset + rows
    here = at < length
    given = tl.load(
        gradient + at[:, None] * gradient_step + sides[None, :], mask=here[:, None], other=0.0
    )
    told = tl.load(out + at[:, None] * out_step + sides[None, :], mask=here[:, None], other=0.0)
    product = tl.sum(given.to(tl.float32) * told.to(tl.float32), 1)
    tl.store(inner + at, product, mask=here)
    asking = tl.load(
        query + at[:, None] * query_step + sides[None, :], mask=here[:, None], other=0.0
    )
    sum_here = tl.load(sums + at, mask=here, other=float("inf"))
    found = tl.zeros([OUTER, D], tl.float32)
    for begin in range(0, length, INNER):
        other = begin + columns
        there = other < length
        keys = tl.load(
            key + other[:, None] * key_step + sides[None, :], mask=there[:, None], other=0.0
        )
        values = tl.load(
            value + other[:, None] * value_step + sides[None, :], mask=there[:, None], other=0.0
        )
        scores = tl.dot(asking, tl.trans(keys), input_precision=PRECISION)
        by_weight = tl.dot(given, tl.trans(values), input_precision=PRECISION)
        scores = scores * scale + _read(table, other[None, :] - at[:, None], RAW)
        weights = tl.where(there[None, :], tl.exp2(scores * log2e - sum_here[:, None]), 0.0)
        by_score = weights * (by_weight - product[:, None])
        found = tl.dot(by_score.to(keys.dtype), keys, found, input_precision=PRECISION)
    found *= scale
    tl.store(
        by_query + at[:, None] * out_step + sides[None, :],
        found.to(by_query.dtype.element_ty),
        mask=here[:, None],
    )


@_kernel
def _to_key(  # type: ignore[no-untyped-def]
    query, key, value, table, tiles, sums, gradient, inner, by_key, by_value,
    scale, places,
    query_step, query_head, key_step, key_head, value_step, value_head, out_step, out_head,
    gradient_step, gradient_head, table_step,
    OUTER: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr, RAW: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The gradients by a tile's keys and values. Scores stand the other way round here: a line for each key."""
    head = tl.program_id(0)
    tile = tl.program_id(1) // PARTS
    part = tl.program_id(1) % PARTS * OUTER
    start = tl.load(tiles + tile * 3)
    length = tl.load(tiles + tile * 3 + 1)
    offset = tl.load(tiles + tile * 3 + 2) + part
    by_key += head * out_head
    by_value += head * out_head
    if length == 0:
        if start + part < places:
            _clear(by_key, start + part, places, out_step, OUTER, D)
            _clear(by_value, start + part, places, out_step, OUTER, D)
        return
    if offset >= length:
        return
    log2e: tl.constexpr = 1.4426950408889634
    query += head * query_head + start.to(tl.int64) * query_step
    key += head * key_head + start.to(tl.int64) * key_step
    value += head * value_head + start.to(tl.int64) * value_step
    by_key += start.to(tl.int64) * out_step
    by_value += start.to(tl.int64) * out_step
    gradient += head * gradient_head + start.to(tl.int64) * gradient_step
    sums += head.to(tl.int64) * places + start
    inner += head.to(tl.int64) * places + start
    table += head * table_step + (table_step - 1) // 2

    rows, columns, sides = tl.arange(0, OUTER), tl.arange(0, INNER), tl.arange(0, D)
    at = offset + rows
    here = at < length
    keys = tl.load(key + at[:, None] * key_step + sides[None, :], mask=here[:, None], other=0.0)
    values = tl.load(
        value + at[:, None] * value_step + sides[None, :], mask=here[:, None], other=0.0
    )
    found_key = tl.zeros([OUTER, D], tl.float32)
    found_value = tl.zeros([OUTER, D], tl.float32)
    for begin in range(0, length, INNER):
        other = begin + columns
        there = other < length
        asking = tl.load(
            query + other[:, None] * query_step + sides[None, :], mask=there[:, None], other=0.0
        )
        given = tl.load(
            gradient + other[:, None] * gradient_step + sides[None, :],
            mask=there[:, None],
            other=0.0,
        )
        inside = tl.minimum(other, length - 1)
        sum_there = tl.where(there, _read(sums, inside, RAW), float("inf"))
        product = _read(inner, inside, RAW)
        scores = tl.dot(keys, tl.trans(asking), input_precision=PRECISION)
        by_weight = tl.dot(values, tl.trans(given), input_precision=PRECISION)
        scores = scores * scale + _read(table, at[:, None] - other[None, :], RAW)
        weights = tl.exp2(
            scores * log2e - sum_there[None, :]
        )  # 0 beyond the row's end, where the sum is infinite
        found_value = tl.dot(weights.to(given.dtype), given, found_value, input_precision=PRECISION)
        by_score = weights * (by_weight - product[None, :])
        found_key = tl.dot(by_score.to(asking.dtype), asking, found_key, input_precision=PRECISION)
    found_key *= scale
    tl.store(
        by_key + at[:, None] * out_step + sides[None, :],
        found_key.to(by_key.dtype.element_ty),
        mask=here[:, None],
    )
    tl.store(
        by_value + at[:, None] * out_step + sides[None, :],
        found_value.to(by_value.dtype.element_ty),
        mask=here[:, None],
    )


@torch.library.custom_op("softprompts::ragged_attention", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, tiles: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """[1, heads, N, D] each -> [1, N, heads, D], and the logarithms of the sums: [heads, N]."""
    query, key, value, table = (_dense(part) for part in (query, key, value, table))
    out, sums = _made(query)
    shape = _shapes(query).forward
    steps = [part.stride(side) for part in (query, key, value) for side in (2, 1)]
    with _on(query):
        _forward[_grid(query, tiles, shape)](
            query, key, value, table, tiles, out, sums, scale, query.shape[2], *steps, out.stride(1), out.stride(2), table.shape[1],
            **_settings(query, shape),
        )  # fmt: skip
    return out, sums


@torch.library.custom_op("softprompts::ragged_attention_backward", mutates_args=())
def _attend_back(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    tiles: Tensor,
    out: Tensor,
    sums: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """gradient and out [1, N, heads, D] -> the gradients by query, key and value: [1, heads, N, D] each."""
    query, key, value, table, gradient = (
        _dense(part) for part in (query, key, value, table, gradient)
    )
    by_query, by_key, by_value = (torch.empty_like(out) for _ in range(3))
    inner = torch.empty_like(sums)
    shapes = _shapes(query)
    steps = [part.stride(side) for part in (query, key, value) for side in (2, 1)]
    steps += [part.stride(side) for part in (out, gradient) for side in (1, 2)]
    with _on(query):
        _to_query[_grid(query, tiles, shapes.to_query)](
            query, key, value, table, tiles, out, sums, gradient, inner, by_query, scale, query.shape[2], *steps, table.shape[1],
            **_settings(query, shapes.to_query),
        )  # fmt: skip
        _to_key[_grid(query, tiles, shapes.to_key)](
            query, key, value, table, tiles, sums, gradient, inner, by_key, by_value, scale, query.shape[2], *steps, table.shape[1],
            **_settings(query, shapes.to_key),
        )  # fmt: skip
    return by_query.transpose(1, 2), by_key.transpose(1, 2), by_value.transpose(1, 2)


def _dense(part: Tensor) -> Tensor:
    return part if part.dim() == 4 and part.stride(3) == 1 else part.contiguous()


def _made(query: Tensor) -> tuple[Tensor, Tensor]:
    _, heads, places, size = query.shape
    return query.new_empty(1, places, heads, size), query.new_empty(
        heads, places, dtype=torch.float32
    )


def _shapes(query: Tensor) -> Shapes:
    return EXACT if query.dtype == torch.float32 else SHAPES[query.shape[3]]


def _grid(query: Tensor, tiles: Tensor, shape: Shape) -> tuple[int, int]:
    return query.shape[1], tiles.shape[0] * (TILE // shape.outer)


def _settings(query: Tensor, shape: Shape) -> dict[str, Any]:
    limit = {} if shape.registers is None else {"maxnreg": shape.registers}
    return limit | {
        "OUTER": shape.outer,
        "INNER": shape.inner,
        "PARTS": TILE // shape.outer,
        "D": query.shape[3],
        "PRECISION": "ieee" if query.dtype == torch.float32 else "tf32",
        "RAW": not INTERPRETED,
        "num_warps": shape.warps,
        "num_stages": shape.stages,
    }


def _on(tensor: Tensor) -> AbstractContextManager[Any]:
    """Triton launches where the current device is."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


@_attend.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, tiles: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    return _made(query)


@_attend_back.register_fake
def _(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    table: Tensor,
    tiles: Tensor,
    out: Tensor,
    sums: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    by_query, by_key, by_value = (torch.empty_like(out).transpose(1, 2) for _ in range(3))
    return by_query, by_key, by_value


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.set_materialize_grads(False)


def _back(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return *_attend_back(gradient, *ctx.saved_tensors, ctx.scale), None, None, None


_attend.register_autograd(_back, setup_context=_keep)
