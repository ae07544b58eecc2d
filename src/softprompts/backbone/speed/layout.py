"""Layouts of packed rows: rows laid end to end without pads, and the way to columns and back.

Shape letters: N packed positions, L the longest row, G rows of a group; the others as in
`backbone.py`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..batch import Text, to_device
from . import kernels

MAX_WASTE = 1.15  # how much larger padding may make a group of rows in the CPU's attention
SMALL_STEP = 2**25
"""Up to this many tokens times width, computing more pads costs less than recording more sizes."""
FEW_BUCKETS, MANY_BUCKETS = 8, 16
"""Bucket sizes between a number and its double, for steps up to `SMALL_STEP` and beyond."""


MASKED = -1e30  # added to the scores of masked columns; finite, so that no difference is NaN


def added(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to attention scores: 0 where a column is visible."""
    zeros = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return zeros.masked_fill_(~visible, MASKED)


class Layout(NamedTuple):
    """Where the rows of a batch are when they are packed end to end.

    source: what is at each position, as an index into all prompt vectors followed by all text
        tokens [N]; the first vector at positions that no row uses
    prompt_positions: of each prompt vector [B, P]; its row's first if the row does not use it
    prompt_mask: which prompt vectors a row uses [B, P]
    rows: the batch's rows in packed order [B], longest first where there are groups
    padded: the position of each column of each group's rows, group by group; beyond its end, a row
        repeats its last token
    inverse: the column of each position [N]; 0 for positions that no row uses
    groups: rows and columns of each group
    masks: which columns a row uses, by group [G, L]
    tiles: the parts of rows that the GPU's attention works on, see `kernels.tiles`
    used: the number of positions that rows use; the others come last
    """

    source: Tensor
    prompt_positions: Tensor
    prompt_mask: Tensor
    rows: Tensor
    padded: Tensor
    inverse: Tensor
    groups: list[tuple[int, int]]
    masks: list[Tensor]
    tiles: Tensor
    used: int


def bucketed_layout(text: Text, length: int, columns: int, rows: int | None = None) -> Layout:
    """A layout of one group with `columns` columns, and a bucket's number of positions.

    It is computed on the device, from the lengths alone. Empty rows are added up to `rows`.
    """
    device, (batch, width) = text.mask.device, text.mask.shape
    assert text.lengths is not None
    prompt_lengths, insert_at = text.prompt_lengths, text.insert_at
    if prompt_lengths is None:
        prompt_lengths = torch.full_like(text.lengths, length)
    insert_at = torch.zeros_like(text.lengths) if insert_at is None else insert_at.cpu()
    by_row = torch.stack([text.lengths + prompt_lengths, prompt_lengths, insert_at])
    count = int(by_row[0].sum())
    positions = bucket(count, text.embeds.shape[2])
    by_row = nn.functional.pad(by_row, (0, 0 if rows is None else rows - batch))
    tiles = kernels.tiles(by_row[0].numpy(), positions)
    total, prompt_lengths, insert_at = to_device(by_row, device)

    ends = total.cumsum(0)
    starts, position = ends - total, torch.arange(positions, device=device)
    used = position < count
    row = torch.searchsorted(ends, position, right=True).clamp_(max=len(total) - 1)
    offset = position - starts[row]
    in_prompt, prompt_length = offset - insert_at[row], prompt_lengths[row]
    text_column = torch.where(in_prompt < 0, offset, offset - prompt_length)
    source = torch.where(
        (in_prompt >= 0) & (in_prompt < prompt_length),
        row * length + in_prompt,
        batch * length + row * width + text_column,
    )

    vector = torch.arange(length, device=device)
    prompt_mask = vector < prompt_lengths[:batch, None]
    prompt_start = (starts + insert_at)[:batch, None]
    prompt_positions = torch.where(prompt_mask, prompt_start + vector, starts[:batch, None])
    column = torch.arange(columns, device=device)
    padded = (starts[:, None] + torch.minimum(column, total[:, None] - 1)).view(-1)
    return Layout(
        source * used,
        prompt_positions,
        prompt_mask,
        torch.arange(len(total), device=device),
        padded,
        (row * columns + offset) * used,
        [(len(total), columns)],
        [column < total[:, None]],
        to_device(torch.from_numpy(tiles), device),
        count,
    )


def round_up(number: int, sizes: int) -> int:
    """Up to one of at most `sizes` (2, 4, 8, ...) sizes between a number and its double."""
    step = 1 << max(0, number.bit_length() - sizes.bit_length())
    return -(-number // step) * step


def bucket(tokens: int, hidden: int) -> int:
    """The number of positions for `tokens` tokens of this width, in whole tiles."""
    sizes = FEW_BUCKETS if tokens * hidden <= SMALL_STEP else MANY_BUCKETS
    return -(-round_up(tokens, sizes) // kernels.TILE) * kernels.TILE


def group_by_length(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Rows, longest first, in groups that padding enlarges little: rows and columns of each."""
    groups: list[tuple[int, int]] = []
    begin = tokens = 0
    for row, length in enumerate(lengths):
        if row > begin and (row + 1 - begin) * lengths[begin] > MAX_WASTE * (tokens + length):
            groups.append((row - begin, int(lengths[begin])))
            begin, tokens = row, 0
        tokens += int(length)
    return [*groups, (len(lengths) - begin, int(lengths[begin]))]


class _ToColumns(torch.autograd.Function):
    """From positions to columns: [N, ...] -> [G * L, ...].

    Nothing attends to columns beyond a row's end, so they have no gradient.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, padded: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return states[padded]

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient[0][inverse], None, None


class _ToPositions(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.columns = len(states)
        return states[inverse]

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        (inverse,) = ctx.saved_tensors
        by_column = gradient[0].new_zeros(ctx.columns, *gradient[0].shape[1:])
        return by_column.index_copy_(0, inverse, gradient[0]), None


def to_columns(states: Tensor, padded: Tensor, inverse: Tensor) -> Tensor:
    """The state of each column's position: [N, ...] -> [columns, ...]."""
    return cast(Tensor, _ToColumns.apply(states, padded, inverse))  # type: ignore[no-untyped-call]


def to_positions(states: Tensor, inverse: Tensor) -> Tensor:
    """The reverse: [columns, ...] -> [N, ...]."""
    return cast(Tensor, _ToPositions.apply(states, inverse))  # type: ignore[no-untyped-call]


def unpack(states: Tensor, layout: Layout) -> list[Tensor]:
    """Packed rows as padded ones, by group: [N, ...] -> [G, L, ...] each."""
    columns = to_columns(states, layout.padded, layout.inverse)
    parts = torch.split(columns, [rows * width for rows, width in layout.groups])
    return [
        part.view(*shape, *part.shape[1:]) for part, shape in zip(parts, layout.groups, strict=True)
    ]


def pack(groups: Sequence[Tensor], layout: Layout) -> Tensor:
    """The reverse: [G, L, ...] each -> [N, ...]; zeros at positions that no row uses."""
    flat = [part.flatten(0, 1) for part in groups]
    columns, inverse = torch.cat(flat) if len(flat) > 1 else flat[0], layout.inverse
    states, more = to_positions(columns, inverse[: layout.used]), len(inverse) - layout.used
    return nn.functional.pad(states, (*(0, 0) * (states.dim() - 1), 0, more)) if more else states
