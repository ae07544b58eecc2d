"""Where rows stand when they are laid end to end, so that there are no pads; from there to columns, and back.

Shape letters: N tokens of all rows, L the longest row, G rows of a group; the others as in `backbone.py`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..device import sent
from ..rows import Text
from . import kernels

WASTE = 1.15
"""The most that padding may add to a group of rows in the CPU's attention."""
SMALL = 2**25
"""Tokens times width, up to which a step costs less than recording one of another size."""
FEW, MANY = 8, 16
"""Sizes between a number and its double that steps are recorded for, up to `SMALL` and beyond."""


class Layout(NamedTuple):
    """Where the rows of a batch stand when they are laid end to end."""

    order: Tensor
    """What stands at each place, counted through all prompts' vectors and then all texts' tokens: [N]."""
    back: Tensor
    """The place of each prompt vector: [B, P]; its row's first where it is not the row's own."""
    own: Tensor
    """Which prompt vectors are a row's own: [B, P]."""
    rows: Tensor
    """The batch's rows in their order, longest first where groups are made: [B]."""
    padded: Tensor
    """The place of each column of each group's rows, one group after another; beyond its end a row repeats its last token."""
    inverse: Tensor
    """The other way round: [N]."""
    groups: list[tuple[int, int]]
    """Rows and columns of each group."""
    masks: list[Tensor]
    """Which columns are a row's own: [G, L] each."""
    tiles: Tensor
    """The parts of rows that the GPU's attention works on: see `kernels.tiles`."""


def lay(text: Text, length: int) -> Layout:
    """The layout of a batch with `length` prompt vectors a row."""
    assert text.sizes is not None
    device, (batch, width) = text.mask.device, text.mask.shape
    sizes = text.sizes.numpy().astype(np.int64)
    given = np.full(batch, length) if text.given is None else text.given.numpy()
    at = np.zeros(batch, np.int64) if text.at is None else text.at.cpu().numpy()
    total = sizes + given
    rows = np.argsort(-total, kind="stable")
    ends = total[rows].cumsum()
    starts, count = ends - total[rows], int(ends[-1])
    document = np.repeat(np.arange(batch), total[rows])
    place = np.arange(count) - starts[document]
    row = rows[document]
    inside = place - at[row]
    from_text = batch * length + row * width + np.where(inside < 0, place, place - given[row])
    order = np.where((inside >= 0) & (inside < given[row]), row * length + inside, from_text)

    first = np.empty(batch, np.int64)
    first[rows] = starts
    own = np.arange(length) < given[:, None]
    back = np.where(own, (first + at)[:, None] + np.arange(length), first[:, None])

    groups = group(total[rows])
    padded, inverse, masks, begin, base = [], [], [], 0, 0
    for many, columns in groups:
        own_rows, across = slice(begin, begin + many), np.arange(columns)
        masks.append(across < total[rows][own_rows, None])
        padded.append(
            (starts[own_rows, None] + np.minimum(across, total[rows][own_rows, None] - 1)).reshape(
                -1
            )
        )
        inside_group = (document >= begin) & (document < begin + many)
        inverse.append(base + (document[inside_group] - begin) * columns + place[inside_group])
        begin, base = begin + many, base + many * columns
    tensors = [
        rows,
        order,
        back,
        own,
        np.concatenate(padded),
        np.concatenate(inverse),
        np.zeros((0, 3), np.int32),
        *masks,
    ]
    moved = [sent(torch.from_numpy(np.ascontiguousarray(array)), device) for array in tensors]
    rows_, order_, back_, own_, padded_, inverse_, tiles_, *masks_ = moved
    return Layout(order_, back_, own_, rows_, padded_, inverse_, groups, masks_, tiles_)


def lay_wide(text: Text, length: int, room: int, rows: int | None = None) -> Layout:
    """The same of one group with `room` columns, in a bucket's number of places; worked out on the device, from the lengths alone.

    To the batch's rows come empty ones, up to `rows`.
    """
    assert text.sizes is not None
    device, (batch, width) = text.mask.device, text.mask.shape
    given = torch.full((batch,), length) if text.given is None else text.given
    lengths = text.sizes + given
    count = int(lengths.sum())
    places = bucket(count, FEW if count * text.embeds.shape[2] <= SMALL else MANY)
    at = torch.zeros(batch, dtype=torch.long) if text.at is None else text.at.cpu()
    told = nn.functional.pad(
        torch.stack([lengths, given, at]), (0, 0 if rows is None else rows - batch)
    )
    tiles = kernels.tiles(told[0].numpy(), kernels.TILE, kernels.room(places, told.shape[1]))
    total, given, at = sent(told, device)

    ends = total.cumsum(0)
    starts, at_place = ends - total, torch.arange(places, device=device)
    used = at_place < count
    row = torch.searchsorted(ends, at_place, right=True).clamp_(max=len(total) - 1)
    place = at_place - starts[row]
    inside, ours = place - at[row], given[row]
    from_text = batch * length + row * width + torch.where(inside < 0, place, place - ours)
    order = torch.where((inside >= 0) & (inside < ours), row * length + inside, from_text)

    own = torch.arange(length, device=device) < given[:batch, None]
    back = torch.where(
        own, (starts + at)[:batch, None] + torch.arange(length, device=device), starts[:batch, None]
    )
    across = torch.arange(room, device=device)
    padded = (starts[:, None] + torch.minimum(across, total[:, None] - 1)).view(-1)
    mask = across < total[:, None]
    moved, every = sent(torch.from_numpy(tiles), device), torch.arange(len(total), device=device)
    return Layout(
        order * used,
        back,
        own,
        every,
        padded,
        (row * room + place) * used,
        [(len(total), room)],
        [mask],
        moved,
    )


def rounded(number: int, many: int) -> int:
    """Up to one of at most `many` sizes (2, 4, 8, ...) between a number and its double."""
    step = 1 << max(0, number.bit_length() - many.bit_length())
    return -(-number // step) * step


def bucket(tokens: int, many: int) -> int:
    """The number of places for so many tokens: whole tiles."""
    return -(-rounded(tokens, many) // kernels.TILE) * kernels.TILE


def group(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Rows, longest first, in groups that padding makes little larger: the number and the columns of each."""
    groups: list[tuple[int, int]] = []
    begin = 0
    tokens = 0
    for row, length in enumerate(lengths):
        if row > begin and (row + 1 - begin) * lengths[begin] > WASTE * (tokens + length):
            groups.append((row - begin, int(lengths[begin])))
            begin, tokens = row, 0
        tokens += int(length)
    return [*groups, (len(lengths) - begin, int(lengths[begin]))]


class _Spread(torch.autograd.Function):
    """From places to columns: [N, ...] -> [G * L, ...]. Columns beyond a row's end are seen by nobody, so they give nothing back."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, padded: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return states[padded]

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient[0][inverse], None, None


class _Gather(torch.autograd.Function):
    """From columns to places."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.columns = len(states)
        return states[inverse]

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        (inverse,) = ctx.saved_tensors
        return gradient[0].new_zeros(ctx.columns, *gradient[0].shape[1:]).index_copy_(
            0, inverse, gradient[0]
        ), None


def spread(states: Tensor, layout: Layout) -> list[Tensor]:
    """Rows laid end to end as rows of columns, group by group: [N, ...] -> [G, L, ...] each."""
    columns: Tensor = _Spread.apply(states, layout.padded, layout.inverse)  # type: ignore[no-untyped-call]
    parts = torch.split(columns, [rows * width for rows, width in layout.groups])
    return [
        part.view(*shape, *part.shape[1:]) for part, shape in zip(parts, layout.groups, strict=True)
    ]


def gathered(groups: Sequence[Tensor], layout: Layout) -> Tensor:
    """The other way round: [G, L, ...] each -> [N, ...]."""
    columns = (
        torch.cat([part.flatten(0, 1) for part in groups])
        if len(groups) > 1
        else groups[0].flatten(0, 1)
    )
    places: Tensor = _Gather.apply(columns, layout.inverse)  # type: ignore[no-untyped-call]
    return places
