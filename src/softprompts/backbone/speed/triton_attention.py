"""Triton kernels of attention over packed rows; `kernels.py` calls them.

A tile lists where its row's own positions start, how many there are, its offset in them, and the
start and number of the other side's: keys for queries, queries for keys. A row's queries are its
last positions, so that query i stands at key i + (keys - queries). If rows share their first keys,
a tile also lists how many these are, where they start, and where the row's part of their gradients
goes; both of its starts are then those of the row's own positions.

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
    return triton.jit(function, do_not_specialize=["positions", "table_step", "window"])


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
def _tile(tiles, OUTER: tl.constexpr, PARTS: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """The program's part of its tile, and the tile's numbers, with its offset that of the part."""
    tiles += tl.program_id(1) // PARTS * (8 if SHARED else 5)
    part = tl.program_id(1) % PARTS * OUTER
    start = tl.load(tiles)
    length = tl.load(tiles + 1)
    offset = tl.load(tiles + 2) + part
    other_start = tl.load(tiles + 3)
    other_length = tl.load(tiles + 4)
    return part, start, length, offset, other_start, other_length


@_kernel
def _prefix(tiles, PARTS: tl.constexpr, SHARED: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """How many shared keys the tile's row has, where they are, and where their gradients go."""
    count, start, gradient = 0, 0, 0
    if SHARED:
        tiles += tl.program_id(1) // PARTS * 8
        count = tl.load(tiles + 5)
        start = tl.load(tiles + 6)
        gradient = tl.load(tiles + 7)
    return count, start, gradient


@_kernel
def _places(keys, start, prefix, prefix_start, SHARED: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """Where the keys of a row are, relative to the first of its own."""
    places = keys
    if SHARED:
        places = tl.where(keys < prefix, prefix_start - start + keys, keys - prefix)
    return places


@_kernel
def _inside(valid, dims, D: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: N803
    """Which numbers of positions by dimensions exist; a head's size is rounded up to `WIDTH`."""
    if WIDTH == D:  # noqa: SIM108 (Triton has no such expression)
        mask = valid[:, None]
    else:
        mask = valid[:, None] & (dims < D)[None, :]
    return mask


@_kernel
def _clear(  # type: ignore[no-untyped-def]
    base, first, positions, step,
    OUTER: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Zeros from position `first` on."""
    position, dims = first + tl.arange(0, OUTER), tl.arange(0, WIDTH)
    at = base + position.to(tl.int64)[:, None] * step + dims[None, :]
    zeros = tl.zeros([OUTER, WIDTH], base.dtype.element_ty)
    tl.store(at, zeros, mask=_inside(position < positions, dims, D, WIDTH))


@_kernel
def _scores(  # type: ignore[no-untyped-def]
    products, distance, valid, table, scale, window, softcap,
    CAUSAL: tl.constexpr, BIASED: tl.constexpr, WINDOWED: tl.constexpr,  # noqa: N803
    CAPPED: tl.constexpr, RAW: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """Scores from inner products, and the mask of what is attended to; `distance` is the key's
    position minus the query's."""
    scores = products * scale
    if CAPPED:
        scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)
    if BIASED:
        scores += _read(table, distance, RAW)
    if CAUSAL:
        valid = valid & (distance <= 0)
    if WINDOWED:
        valid = valid & (tl.abs(distance) <= window)
    return scores, valid


@_kernel
def _key_range(  # type: ignore[no-untyped-def]
    offset, length, keys_length, window,
    OUTER: tl.constexpr, INNER: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The keys that queries from `offset` on attend to, in steps of `INNER`."""
    first, last = 0, keys_length
    if WINDOWED:
        first = tl.maximum(0, offset + keys_length - length - window) // INNER * INNER
        last = tl.minimum(last, offset + OUTER + keys_length - length + window)
    if CAUSAL:
        last = tl.minimum(last, offset + OUTER + keys_length - length)
    return first, last


@_kernel
def forward(  # type: ignore[no-untyped-def]
    query, key, value, table, tiles, out, log_sums, scale, positions, window, softcap,
    query_step, query_head, key_step, key_head, value_step, value_head, out_step, out_head,
    table_step,
    OUTER: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr, GROUP: tl.constexpr,  # noqa: N803
    D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, BIASED: tl.constexpr,  # noqa: N803
    WINDOWED: tl.constexpr, CAPPED: tl.constexpr, PRECISION: tl.constexpr, RAW: tl.constexpr,  # noqa: N803
    SHARED: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The attention output of a tile, and the base-2 logarithm of its softmax denominators."""
    head = tl.program_id(0)
    part, start, length, offset, key_start, keys_length = _tile(tiles, OUTER, PARTS, SHARED)
    out += head * out_head
    log_sums += head.to(tl.int64) * positions
    if length == 0:
        if start + part < positions:
            _clear(out, start + part, positions, out_step, OUTER, D, WIDTH)
            beyond = start + part + tl.arange(0, OUTER)
            tl.store(log_sums + beyond, tl.zeros([OUTER], tl.float32), mask=beyond < positions)
        return
    if offset >= length:
        return
    log2e: tl.constexpr = 1.4426950408889634
    query += head * query_head + start.to(tl.int64) * query_step
    key += head // GROUP * key_head + key_start.to(tl.int64) * key_step
    value += head // GROUP * value_head + key_start.to(tl.int64) * value_step
    out += start.to(tl.int64) * out_step
    if BIASED:
        table += head * table_step + (table_step - 1) // 2

    outer, inner, dims = tl.arange(0, OUTER), tl.arange(0, INNER), tl.arange(0, WIDTH)
    row = offset + outer
    valid = row < length
    at = row + keys_length - length  # among the keys
    mask = _inside(valid, dims, D, WIDTH)
    queries = tl.load(query + row[:, None] * query_step + dims[None, :], mask=mask, other=0.0)
    running_max = tl.full([OUTER], float("-inf"), tl.float32)
    denominator = tl.zeros([OUTER], tl.float32)
    accumulated = tl.zeros([OUTER, WIDTH], tl.float32)
    prefix, prefix_start, _ = _prefix(tiles, PARTS, SHARED)
    first, last = _key_range(offset, length, keys_length, window, OUTER, INNER, CAUSAL, WINDOWED)
    for begin in range(first, last, INNER):
        column = begin + inner
        place = _places(column, key_start, prefix, prefix_start, SHARED)
        column_valid = column < keys_length
        column_mask = _inside(column_valid, dims, D, WIDTH)
        keys = tl.load(key + place[:, None] * key_step + dims[None, :], mask=column_mask, other=0.0)
        products = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
        distance = column[None, :] - at[:, None]
        scores, attended = _scores(
            products, distance, column_valid[None, :], table, scale, window, softcap,
            CAUSAL, BIASED, WINDOWED, CAPPED, RAW,
        )  # fmt: skip
        scores = tl.where(attended, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1))
        reference = new_max
        if WINDOWED:  # a row may attend to nothing in the first columns
            reference = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(scores * log2e - (reference * log2e)[:, None])
        rescale = tl.exp2((running_max - reference) * log2e)
        denominator = denominator * rescale + tl.sum(weights, 1)
        accumulated = accumulated * rescale[:, None]
        values = tl.load(
            value + place[:, None] * value_step + dims[None, :], mask=column_mask, other=0.0
        )
        accumulated = tl.dot(
            weights.to(values.dtype), values, accumulated, input_precision=PRECISION
        )
        running_max = new_max
    accumulated = accumulated / denominator[:, None]
    tl.store(
        out + row[:, None] * out_step + dims[None, :],
        accumulated.to(out.dtype.element_ty),
        mask=mask,
    )
    tl.store(log_sums + start + row, running_max * log2e + tl.log2(denominator), mask=valid)


@_kernel
def query_gradient(  # type: ignore[no-untyped-def]
    query, key, value, table, tiles, out, log_sums, grad_out, deltas, grad_query,
    scale, positions, window, softcap,
    query_step, query_head, key_step, key_head, value_step, value_head, out_step, out_head,
    grad_out_step, grad_out_head, table_step,
    OUTER: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr, GROUP: tl.constexpr,  # noqa: N803
    D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, BIASED: tl.constexpr,  # noqa: N803
    WINDOWED: tl.constexpr, CAPPED: tl.constexpr, PRECISION: tl.constexpr, RAW: tl.constexpr,  # noqa: N803
    SHARED: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The gradient of a tile's queries; also, for the next kernel, each position's inner product of
    the output and its gradient (delta)."""
    head = tl.program_id(0)
    part, start, length, offset, key_start, keys_length = _tile(tiles, OUTER, PARTS, SHARED)
    grad_query += head * out_head
    if length == 0:
        if start + part < positions:
            _clear(grad_query, start + part, positions, out_step, OUTER, D, WIDTH)
        return
    if offset >= length:
        return
    log2e: tl.constexpr = 1.4426950408889634
    query += head * query_head + start.to(tl.int64) * query_step
    key += head // GROUP * key_head + key_start.to(tl.int64) * key_step
    value += head // GROUP * value_head + key_start.to(tl.int64) * value_step
    out += head * out_head + start.to(tl.int64) * out_step
    grad_query += start.to(tl.int64) * out_step
    grad_out += head * grad_out_head + start.to(tl.int64) * grad_out_step
    log_sums += head.to(tl.int64) * positions + start
    deltas += head.to(tl.int64) * positions + start
    if BIASED:
        table += head * table_step + (table_step - 1) // 2

    outer, inner, dims = tl.arange(0, OUTER), tl.arange(0, INNER), tl.arange(0, WIDTH)
    row = offset + outer
    valid = row < length
    at = row + keys_length - length
    mask = _inside(valid, dims, D, WIDTH)
    grads = tl.load(grad_out + row[:, None] * grad_out_step + dims[None, :], mask=mask, other=0.0)
    outputs = tl.load(out + row[:, None] * out_step + dims[None, :], mask=mask, other=0.0)
    delta = tl.sum(grads.to(tl.float32) * outputs.to(tl.float32), 1)
    tl.store(deltas + row, delta, mask=valid)
    queries = tl.load(query + row[:, None] * query_step + dims[None, :], mask=mask, other=0.0)
    row_log_sum = tl.load(log_sums + row, mask=valid, other=float("inf"))
    accumulated = tl.zeros([OUTER, WIDTH], tl.float32)
    prefix, prefix_start, _ = _prefix(tiles, PARTS, SHARED)
    first, last = _key_range(offset, length, keys_length, window, OUTER, INNER, CAUSAL, WINDOWED)
    for begin in range(first, last, INNER):
        column = begin + inner
        place = _places(column, key_start, prefix, prefix_start, SHARED)
        column_valid = column < keys_length
        column_mask = _inside(column_valid, dims, D, WIDTH)
        keys = tl.load(key + place[:, None] * key_step + dims[None, :], mask=column_mask, other=0.0)
        values = tl.load(
            value + place[:, None] * value_step + dims[None, :], mask=column_mask, other=0.0
        )
        products = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
        grad_weights = tl.dot(grads, tl.trans(values), input_precision=PRECISION)
        distance = column[None, :] - at[:, None]
        scores, attended = _scores(
            products, distance, column_valid[None, :], table, scale, window, softcap,
            CAUSAL, BIASED, WINDOWED, CAPPED, RAW,
        )  # fmt: skip
        weights = tl.where(attended, tl.exp2(scores * log2e - row_log_sum[:, None]), 0.0)
        grad_scores = weights * (grad_weights - delta[:, None])
        if CAPPED:
            grad_scores *= 1.0 - (scores / softcap) * (scores / softcap)
        accumulated = tl.dot(
            grad_scores.to(keys.dtype), keys, accumulated, input_precision=PRECISION
        )
    accumulated *= scale
    tl.store(
        grad_query + row[:, None] * out_step + dims[None, :],
        accumulated.to(grad_query.dtype.element_ty),
        mask=mask,
    )


@_kernel
def key_value_gradient(  # type: ignore[no-untyped-def]
    query, key, value, table, tiles, log_sums, grad_out, deltas, grad_key, grad_value,
    shared_key_grads, shared_value_grads, scale, positions, key_positions, window, softcap,
    query_step, query_head, key_step, key_head, value_step, value_head, out_step, out_head,
    grad_out_step, grad_out_head, table_step,
    OUTER: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr, GROUP: tl.constexpr,  # noqa: N803
    D: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, BIASED: tl.constexpr,  # noqa: N803
    WINDOWED: tl.constexpr, CAPPED: tl.constexpr, PRECISION: tl.constexpr, RAW: tl.constexpr,  # noqa: N803
    SHARED: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """The gradients of a tile's keys and values, over all query heads that use them; for keys that
    rows share, only this row's part. Scores are transposed here: a row for each key."""
    head = tl.program_id(0)
    part, start, length, offset, query_start, queries_length = _tile(tiles, OUTER, PARTS, SHARED)
    grad_key += head * out_head
    grad_value += head * out_head
    if length == 0:
        if start + part < key_positions:
            _clear(grad_key, start + part, key_positions, out_step, OUTER, D, WIDTH)
            _clear(grad_value, start + part, key_positions, out_step, OUTER, D, WIDTH)
        return
    if offset >= length:
        return
    log2e: tl.constexpr = 1.4426950408889634
    key += head * key_head + start.to(tl.int64) * key_step
    value += head * value_head + start.to(tl.int64) * value_step
    grad_key += start.to(tl.int64) * out_step
    grad_value += start.to(tl.int64) * out_step

    outer, inner, dims = tl.arange(0, OUTER), tl.arange(0, INNER), tl.arange(0, WIDTH)
    row = offset + outer
    valid = row < length
    mask = _inside(valid, dims, D, WIDTH)
    prefix, prefix_start, prefix_gradient = _prefix(tiles, PARTS, SHARED)
    place = _places(row, start, prefix, prefix_start, SHARED)
    keys = tl.load(key + place[:, None] * key_step + dims[None, :], mask=mask, other=0.0)
    values = tl.load(value + place[:, None] * value_step + dims[None, :], mask=mask, other=0.0)
    key_grads = tl.zeros([OUTER, WIDTH], tl.float32)
    value_grads = tl.zeros([OUTER, WIDTH], tl.float32)
    first, last = 0, queries_length
    if WINDOWED:
        first = tl.maximum(0, offset - length + queries_length - window) // INNER * INNER
        last = tl.minimum(last, offset + OUTER - length + queries_length + window)
    if CAUSAL:
        first = tl.maximum(first, tl.maximum(0, offset - length + queries_length) // INNER * INNER)
    for member in range(GROUP):
        query_head_at = head * GROUP + member
        own_query = query + query_head_at * query_head + query_start.to(tl.int64) * query_step
        own_grad = grad_out + query_head_at * grad_out_head
        own_grad += query_start.to(tl.int64) * grad_out_step
        at_head = query_head_at.to(tl.int64) * positions + query_start
        bias = table
        if BIASED:
            bias += query_head_at * table_step + (table_step - 1) // 2
        for begin in range(first, last, INNER):
            column = begin + inner
            column_valid = column < queries_length
            column_mask = _inside(column_valid, dims, D, WIDTH)
            queries = tl.load(
                own_query + column[:, None] * query_step + dims[None, :],
                mask=column_mask,
                other=0.0,
            )
            grads = tl.load(
                own_grad + column[:, None] * grad_out_step + dims[None, :],
                mask=column_mask,
                other=0.0,
            )
            inside = tl.minimum(column, queries_length - 1)
            column_log_sum = tl.where(
                column_valid, _read(log_sums + at_head, inside, RAW), float("inf")
            )
            delta = _read(deltas + at_head, inside, RAW)
            products = tl.dot(keys, tl.trans(queries), input_precision=PRECISION)
            grad_weights = tl.dot(values, tl.trans(grads), input_precision=PRECISION)
            distance = row[:, None] - (column + length - queries_length)[None, :]
            scores, attended = _scores(
                products, distance, column_valid[None, :], bias, scale, window, softcap,
                CAUSAL, BIASED, WINDOWED, CAPPED, RAW,
            )  # fmt: skip
            # 0 beyond the row's end, where the sum is infinite
            weights = tl.exp2(scores * log2e - column_log_sum[None, :])
            if CAUSAL or WINDOWED:
                weights = tl.where(attended, weights, 0.0)
            value_grads = tl.dot(
                weights.to(grads.dtype), grads, value_grads, input_precision=PRECISION
            )
            grad_scores = weights * (grad_weights - delta[None, :])
            if CAPPED:
                grad_scores *= 1.0 - (scores / softcap) * (scores / softcap)
            key_grads = tl.dot(
                grad_scores.to(queries.dtype), queries, key_grads, input_precision=PRECISION
            )
    key_grads = (key_grads * scale).to(grad_key.dtype.element_ty)
    value_grads = value_grads.to(grad_value.dtype.element_ty)
    if SHARED:
        if offset < prefix:
            slot = (prefix_gradient + row).to(tl.int64)[:, None] * out_step
            slot += head * out_head + dims[None, :]
            of_prefix = mask & (row < prefix)[:, None]
            tl.store(shared_key_grads + slot, key_grads, mask=of_prefix)
            tl.store(shared_value_grads + slot, value_grads, mask=of_prefix)
        mask = mask & (row >= prefix)[:, None]
    at = (row - prefix)[:, None] * out_step + dims[None, :]
    tl.store(grad_key + at, key_grads, mask=mask)
    tl.store(grad_value + at, value_grads, mask=mask)
