"""Triton kernels of attention over packed rows; `kernels.py` calls them.

Shape letters: N packed positions, D numbers of a head.
"""

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

triton: Any
tl: Any
try:
    triton, tl = importlib.import_module("triton"), importlib.import_module("triton.language")
except ImportError:  # torch for CPUs comes without Triton
    triton, tl = None, SimpleNamespace(constexpr=None)


def _kernel(function: Callable[..., Any]) -> Any:
    """Compiled by Triton, once for all lengths."""
    if triton is None:
        return function
    return triton.jit(function, do_not_specialize=["positions", "table_step"])


@_kernel
def _read(base, index, RAW: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """Loads straight into the registers that need the numbers; Triton's own load may go through
    shared memory."""
    if RAW:
        size: tl.constexpr = base.dtype.element_ty.primitive_bitwidth // 8
        address = base.to(tl.int64) + index.to(tl.int64) * size
        if size == 4:
            numbers = tl.inline_asm_elementwise(
                "ld.global.nc.f32 $0, [$1];",
                "=f,l",
                [address],
                dtype=tl.float32,
                is_pure=True,
                pack=1,
            )
        else:
            numbers = tl.inline_asm_elementwise(
                "ld.global.nc.b16 $0, [$1];",
                "=h,l",
                [address],
                dtype=base.dtype.element_ty,
                is_pure=True,
                pack=1,
            )
    else:
        numbers = tl.load(base + index)
    return numbers.to(tl.float32)


@_kernel
def _clear(  # type: ignore[no-untyped-def]
    base, first, positions, step,
    OUTER: tl.constexpr, D: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Zeros from position `first` on."""
    position = first + tl.arange(0, OUTER)
    at = base + position.to(tl.int64)[:, None] * step + tl.arange(0, D)[None, :]
    zeros = tl.zeros([OUTER, D], base.dtype.element_ty)
    tl.store(at, zeros, mask=(position < positions)[:, None])


@_kernel
def forward(  # type: ignore[no-untyped-def]
    query, key, value, table, tiles, out, log_sums, scale, positions,
    query_step, query_head, key_step, key_head, value_step, value_head, out_step, out_head,
    table_step,
    OUTER: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr,  # noqa: N803
    D: tl.constexpr, PRECISION: tl.constexpr, RAW: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The attention output of a tile, and the base-2 logarithm of its softmax denominators."""
    head = tl.program_id(0)
    tile = tl.program_id(1) // PARTS
    part = tl.program_id(1) % PARTS * OUTER
    start = tl.load(tiles + tile * 3)
    length = tl.load(tiles + tile * 3 + 1)
    offset = tl.load(tiles + tile * 3 + 2) + part
    out += head * out_head
    log_sums += head.to(tl.int64) * positions
    if length == 0:
        if start + part < positions:
            _clear(out, start + part, positions, out_step, OUTER, D)
            beyond = start + part + tl.arange(0, OUTER)
            tl.store(log_sums + beyond, tl.zeros([OUTER], tl.float32), mask=beyond < positions)
        return
    if offset >= length:
        return
    log2e: tl.constexpr = 1.4426950408889634
    query += head * query_head + start.to(tl.int64) * query_step
    key += head * key_head + start.to(tl.int64) * key_step
    value += head * value_head + start.to(tl.int64) * value_step
    out += start.to(tl.int64) * out_step
    table += head * table_step + (table_step - 1) // 2

    outer, inner, dims = tl.arange(0, OUTER), tl.arange(0, INNER), tl.arange(0, D)
    row = offset + outer
    valid = row < length
    queries = tl.load(
        query + row[:, None] * query_step + dims[None, :], mask=valid[:, None], other=0.0
    )
    running_max = tl.full([OUTER], float("-inf"), tl.float32)
    denominator = tl.zeros([OUTER], tl.float32)
    accumulated = tl.zeros([OUTER, D], tl.float32)
    for begin in range(0, length, INNER):
        column = begin + inner
        column_valid = column < length
        keys = tl.load(
            key + column[:, None] * key_step + dims[None, :], mask=column_valid[:, None], other=0.0
        )
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
        scores = scores * scale + _read(table, column[None, :] - row[:, None], RAW)
        scores = tl.where(column_valid[None, :], scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1))
        weights = tl.exp2(scores * log2e - (new_max * log2e)[:, None])
        rescale = tl.exp2((running_max - new_max) * log2e)
        denominator = denominator * rescale + tl.sum(weights, 1)
        accumulated = accumulated * rescale[:, None]
        values = tl.load(
            value + column[:, None] * value_step + dims[None, :],
            mask=column_valid[:, None],
            other=0.0,
        )
        accumulated = tl.dot(
            weights.to(values.dtype), values, accumulated, input_precision=PRECISION
        )
        running_max = new_max
    accumulated = accumulated / denominator[:, None]
    tl.store(
        out + row[:, None] * out_step + dims[None, :],
        accumulated.to(out.dtype.element_ty),
        mask=valid[:, None],
    )
    tl.store(log_sums + start + row, running_max * log2e + tl.log2(denominator), mask=valid)


@_kernel
def query_gradient(  # type: ignore[no-untyped-def]
    query, key, value, table, tiles, out, log_sums, grad_out, deltas, grad_query,
    scale, positions,
    query_step, query_head, key_step, key_head, value_step, value_head, out_step, out_head,
    grad_out_step, grad_out_head, table_step,
    OUTER: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr,  # noqa: N803
    D: tl.constexpr, PRECISION: tl.constexpr, RAW: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The gradient of a tile's queries; also, for the next kernel, each position's inner product of
    the output and its gradient (delta)."""
    head = tl.program_id(0)
    tile = tl.program_id(1) // PARTS
    part = tl.program_id(1) % PARTS * OUTER
    start = tl.load(tiles + tile * 3)
    length = tl.load(tiles + tile * 3 + 1)
    offset = tl.load(tiles + tile * 3 + 2) + part
    grad_query += head * out_head
    if length == 0:
        if start + part < positions:
            _clear(grad_query, start + part, positions, out_step, OUTER, D)
        return
    if offset >= length:
        return
    log2e: tl.constexpr = 1.4426950408889634
    query += head * query_head + start.to(tl.int64) * query_step
    key += head * key_head + start.to(tl.int64) * key_step
    value += head * value_head + start.to(tl.int64) * value_step
    out += head * out_head + start.to(tl.int64) * out_step
    grad_query += start.to(tl.int64) * out_step
    grad_out += head * grad_out_head + start.to(tl.int64) * grad_out_step
    log_sums += head.to(tl.int64) * positions + start
    deltas += head.to(tl.int64) * positions + start
    table += head * table_step + (table_step - 1) // 2

    outer, inner, dims = tl.arange(0, OUTER), tl.arange(0, INNER), tl.arange(0, D)
    row = offset + outer
    valid = row < length
    grads = tl.load(
        grad_out + row[:, None] * grad_out_step + dims[None, :], mask=valid[:, None], other=0.0
    )
    outputs = tl.load(out + row[:, None] * out_step + dims[None, :], mask=valid[:, None], other=0.0)
    delta = tl.sum(grads.to(tl.float32) * outputs.to(tl.float32), 1)
    tl.store(deltas + row, delta, mask=valid)
    queries = tl.load(
        query + row[:, None] * query_step + dims[None, :], mask=valid[:, None], other=0.0
    )
    row_log_sum = tl.load(log_sums + row, mask=valid, other=float("inf"))
    accumulated = tl.zeros([OUTER, D], tl.float32)
    for begin in range(0, length, INNER):
        column = begin + inner
        column_valid = column < length
        keys = tl.load(
            key + column[:, None] * key_step + dims[None, :], mask=column_valid[:, None], other=0.0
        )
        values = tl.load(
            value + column[:, None] * value_step + dims[None, :],
            mask=column_valid[:, None],
            other=0.0,
        )
        scores = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
        grad_weights = tl.dot(grads, tl.trans(values), input_precision=PRECISION)
        scores = scores * scale + _read(table, column[None, :] - row[:, None], RAW)
        weights = tl.where(
            column_valid[None, :], tl.exp2(scores * log2e - row_log_sum[:, None]), 0.0
        )
        grad_scores = weights * (grad_weights - delta[:, None])
        accumulated = tl.dot(
            grad_scores.to(keys.dtype), keys, accumulated, input_precision=PRECISION
        )
    accumulated *= scale
    tl.store(
        grad_query + row[:, None] * out_step + dims[None, :],
        accumulated.to(grad_query.dtype.element_ty),
        mask=valid[:, None],
    )


@_kernel
def key_value_gradient(  # type: ignore[no-untyped-def]
    query, key, value, table, tiles, log_sums, grad_out, deltas, grad_key, grad_value,
    scale, positions,
    query_step, query_head, key_step, key_head, value_step, value_head, out_step, out_head,
    grad_out_step, grad_out_head, table_step,
    OUTER: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr,  # noqa: N803
    D: tl.constexpr, PRECISION: tl.constexpr, RAW: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The gradients of a tile's keys and values. Scores are transposed here: a row for each key."""
    head = tl.program_id(0)
    tile = tl.program_id(1) // PARTS
    part = tl.program_id(1) % PARTS * OUTER
    start = tl.load(tiles + tile * 3)
    length = tl.load(tiles + tile * 3 + 1)
    offset = tl.load(tiles + tile * 3 + 2) + part
    grad_key += head * out_head
    grad_value += head * out_head
    if length == 0:
        if start + part < positions:
            _clear(grad_key, start + part, positions, out_step, OUTER, D)
            _clear(grad_value, start + part, positions, out_step, OUTER, D)
        return
    if offset >= length:
        return
    log2e: tl.constexpr = 1.4426950408889634
    query += head * query_head + start.to(tl.int64) * query_step
    key += head * key_head + start.to(tl.int64) * key_step
    value += head * value_head + start.to(tl.int64) * value_step
    grad_key += start.to(tl.int64) * out_step
    grad_value += start.to(tl.int64) * out_step
    grad_out += head * grad_out_head + start.to(tl.int64) * grad_out_step
    log_sums += head.to(tl.int64) * positions + start
    deltas += head.to(tl.int64) * positions + start
    table += head * table_step + (table_step - 1) // 2

    outer, inner, dims = tl.arange(0, OUTER), tl.arange(0, INNER), tl.arange(0, D)
    row = offset + outer
    valid = row < length
    keys = tl.load(key + row[:, None] * key_step + dims[None, :], mask=valid[:, None], other=0.0)
    values = tl.load(
        value + row[:, None] * value_step + dims[None, :], mask=valid[:, None], other=0.0
    )
    key_grads = tl.zeros([OUTER, D], tl.float32)
    value_grads = tl.zeros([OUTER, D], tl.float32)
    for begin in range(0, length, INNER):
        column = begin + inner
        column_valid = column < length
        queries = tl.load(
            query + column[:, None] * query_step + dims[None, :],
            mask=column_valid[:, None],
            other=0.0,
        )
        grads = tl.load(
            grad_out + column[:, None] * grad_out_step + dims[None, :],
            mask=column_valid[:, None],
            other=0.0,
        )
        inside = tl.minimum(column, length - 1)
        column_log_sum = tl.where(column_valid, _read(log_sums, inside, RAW), float("inf"))
        delta = _read(deltas, inside, RAW)
        scores = tl.dot(keys, tl.trans(queries), input_precision=PRECISION)
        grad_weights = tl.dot(values, tl.trans(grads), input_precision=PRECISION)
        scores = scores * scale + _read(table, row[:, None] - column[None, :], RAW)
        # 0 beyond the row's end, where the sum is infinite
        weights = tl.exp2(scores * log2e - column_log_sum[None, :])
        value_grads = tl.dot(weights.to(grads.dtype), grads, value_grads, input_precision=PRECISION)
        grad_scores = weights * (grad_weights - delta[None, :])
        key_grads = tl.dot(
            grad_scores.to(queries.dtype), queries, key_grads, input_precision=PRECISION
        )
    key_grads *= scale
    tl.store(
        grad_key + row[:, None] * out_step + dims[None, :],
        key_grads.to(grad_key.dtype.element_ty),
        mask=valid[:, None],
    )
    tl.store(
        grad_value + row[:, None] * out_step + dims[None, :],
        value_grads.to(grad_value.dtype.element_ty),
        mask=valid[:, None],
    )
