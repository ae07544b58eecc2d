"""The attention function of packed rows, registered with transformers: a model's own attention
modules call it, with the `Rows` that they are passed.

Shape letters: N packed positions, D numbers of a head; the others as in `row_layout.py`.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from . import kernels
from .layout import added, to_columns, to_positions
from .row_layout import Group, Rows

ATTENTION = "softprompts_rows"


def row_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_rows: Rows,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Each row attends to itself and what comes before it: [1, heads, N, D] -> [1, N, heads, D]."""
    if packed_rows.keeps is not None:
        packed_rows.keeps[module] = key, value
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    window = None if sliding_window is None else sliding_window - 1
    if packed_rows.tiles is None:
        before = packed_rows.before and packed_rows.before.keys[module]
        return _attend((query, key, value), before, packed_rows, scale, window, softcap), None
    tiles, causal, users = packed_rows.tiles, packed_rows.causal, packed_rows.users
    return kernels.ragged_attention(
        query, key, value, tiles, scale, window=window, softcap=softcap, causal=causal, users=users
    ), None


AttentionInterface.register(ATTENTION, row_attention)


def _attend(
    states: tuple[Tensor, Tensor, Tensor],
    before: tuple[Tensor, Tensor] | None,
    rows: Rows,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> Tensor:
    """Queries, keys and values by groups of rows of similar length, padded; `before`: the keys and
    values of texts that were read before them."""
    assert rows.padded is not None
    assert rows.inverse is not None
    dtype, repeats = states[0].dtype, states[0].shape[1] // states[1].shape[1]
    packed = [part[0].transpose(0, 1) for part in (*states, *(before or ()))]
    if dtype == torch.bfloat16:  # which is slow in a CPU's attention
        packed = [part.float() for part in packed]
    packed, read = packed[:3], packed[3:]
    sizes = [group.rows * group.width for group in rows.groups]
    columns = [torch.split(to_columns(part, rows.padded, rows.inverse), sizes) for part in packed]
    count, length = rows.prompts
    prompts = [part[: count * length].view(count, length, *part.shape[1:]) for part in packed[1:]]
    attended = []
    for group, *parts in zip(rows.groups, *columns, strict=True):
        queries, keys, values = (
            part.view(group.rows, group.width, *part.shape[1:]) for part in parts
        )
        if group.prompts is not None:
            keys = torch.cat([_of_rows(prompts[0], group.prompts), keys], dim=1)
            values = torch.cat([_of_rows(prompts[1], group.prompts), values], dim=1)
        if group.before is not None:
            keys = torch.cat([read[0][group.before], keys], dim=1)
            values = torch.cat([read[1][group.before], values], dim=1)
        if repeats > 1:
            keys, values = (part.repeat_interleave(repeats, dim=2) for part in (keys, values))
        mask = _mask(group, rows.causal, window, queries.dtype)
        output = _dense(
            queries.transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            mask,
            scale,
            softcap,
        )
        attended.append(output.transpose(1, 2).flatten(0, 1))
    return to_positions(torch.cat(attended), rows.inverse).to(dtype)[None]


def _of_rows(prompts: Tensor, owner: Tensor) -> Tensor:
    """Each row's prompt: [U, P, ...] -> [G, P, ...]."""
    if len(prompts) == 1:
        return prompts.expand(len(owner), *prompts.shape[1:])
    return prompts.index_select(0, owner)


def _mask(group: Group, causal: bool, window: int | None, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: [G, 1, L, P + L]."""
    distance = group.query_positions[:, :, None] - group.key_positions[:, None]
    allowed = (group.key_positions >= 0)[:, None].expand_as(distance)
    if causal:
        allowed = allowed & (distance >= 0)
    if window is not None:
        allowed = allowed & (distance.abs() <= window)
    return added(allowed, dtype)[:, None]


def _dense(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float | None
) -> Tensor:
    if softcap is None:
        return nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale
        )
    scores = torch.tanh(query @ key.transpose(2, 3) * (scale / softcap)) * softcap
    return (scores + mask).softmax(-1) @ value
