"""Where everything is when the rows of a batch are packed end to end, for models with one stack of
layers.

In a decoder-only model, a prompt that comes first cannot see the text, so its states are the same
for all its rows: prompts are packed once, before all rows, and each row's keys are its prompt's
followed by its own. Elsewhere (another place, or a model that looks both ways) each row has its own
copy of its prompt inside it. Text before a prompt does not depend on it: where that is read first,
a packed row is what comes after it.

Shape letters: U prompts, N packed positions, K packed keys, G rows of a group, L the longest of
them, n target tokens; the others as in `backbone.py`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..batch import Text, to_device
from . import kernels
from .layout import Layout, bucket, group_by_length, round_up

Array = npt.NDArray[np.int64]
CPU_BUCKETS = 32
"""Bucket sizes of T5's positions on a CPU, where oneDNN compiles a kernel for each size, and keeps
it in memory."""


class Group(NamedTuple):
    """For a CPU: rows of similar length, padded.

    members: the row of each [G]
    prompts: the prompt of each [G]; None: no prompt comes before them
    query_positions: in the row [G, L]
    key_positions: of the keys before the row's own (the prompt's, or those of `before`), then the
        row's own: [G, P + L]; -1: not a key
    before: where the keys of the text before each row are [G, T]; None: none were read before
    """

    rows: int
    width: int
    members: Tensor
    prompts: Tensor | None
    query_positions: Tensor
    key_positions: Tensor
    before: Tensor | None = None


class TextBefore(NamedTuple):
    """The text before the prompt of each row, packed and read already, on a CPU.

    lengths: tokens of each row's [B]
    starts: where each row's starts [B]
    keys: the keys and values [1, heads, N, D] of each attention module
    """

    lengths: Tensor
    starts: Tensor
    keys: dict[nn.Module, tuple[Tensor, Tensor]]


class Rows(NamedTuple):
    """What attention needs to keep packed rows apart: `tiles` on a GPU, the rest on a CPU."""

    causal: bool
    tiles: tuple[Tensor, Tensor] | None = None  # of the queries and of the keys, for our kernels
    users: Tensor | None = None  # of the prompts that rows share, see `kernels.ragged_attention`
    groups: tuple[Group, ...] = ()
    padded: Tensor | None = None  # the position of each column of all groups
    inverse: Tensor | None = None  # the column of each position [N]
    prompts: tuple[int, int] = (0, 0)  # how many come before all rows, and their length
    before: TextBefore | None = None  # what was read before these rows
    keeps: dict[nn.Module, tuple[Tensor, Tensor]] | None = None  # gets their keys and values


class RowLayout(NamedTuple):
    """A packed batch.

    source: what is at each position, as an index into all prompt vectors, then all text tokens,
        then all target tokens [N]
    positions: the position of each token in its row [N]
    row_of: the row that each token belongs to; -1: none [N]
    starts: where each row starts [B]
    prompt_positions: of each prompt vector [U, P]
    prompt_mask: which of them exist [U, P]
    target_positions: of the token that predicts each target token [B, n]
    """

    source: Tensor
    positions: Tensor
    row_of: Tensor
    starts: Tensor
    prompt_positions: Tensor
    prompt_mask: Tensor
    target_positions: Tensor
    rows: Rows


def row_layout(
    text: Text,
    prompts: tuple[int, int],
    causal: bool,
    target_lengths: Sequence[int] | None = None,
    columns: int = 1,
    tiled: bool = False,
    buckets: bool = False,
) -> RowLayout:
    """The layout of a batch with `prompts` (U, P) vectors and `columns` target tokens at most.

    Prompts are read once if the text says which one each row uses. `tiled` is for our kernels;
    `buckets` adds positions up to one of a few sizes, for recorded steps.
    """
    assert text.lengths is not None
    (count, length), (batch, width) = prompts, text.mask.shape
    lengths = text.lengths.numpy()
    used = np.full(batch, length) if text.prompt_lengths is None else text.prompt_lengths.numpy()
    insert_at = np.zeros(batch, np.int64)
    if text.insert_at is not None:
        insert_at = text.insert_at.cpu().numpy()
    own = lengths.copy()
    if target_lengths is not None:  # the last target token is predicted, not read
        own += np.asarray(target_lengths) - 1
    first = count if text.prompt_of is not None else 0  # prompts that are read once
    inside = used if first == 0 else np.zeros(batch, np.int64)  # prompt vectors inside a row
    sizes = own + inside
    order = np.arange(batch) if tiled else np.argsort(-sizes, kind="stable")

    queries = np.concatenate([np.full(first, length), sizes[order]])
    prefix = np.concatenate([np.zeros(first, np.int64), (used - inside)[order]])
    starts, total = queries.cumsum() - queries, int(queries.sum())
    positions = bucket(total, text.embeds.shape[2]) if buckets else total
    segment = np.repeat(np.arange(len(queries)), queries)
    offset = np.arange(total) - starts[segment]
    row = np.where(segment < first, -1, np.concatenate([np.zeros(first, np.int64), order])[segment])
    in_prompt = np.where(row < 0, offset, offset - insert_at[row])
    in_text = np.where(in_prompt < 0, offset, offset - inside[row])
    beyond = in_text - lengths[row]  # the text: in the target
    source = np.where(
        (row < 0) | ((in_prompt >= 0) & (in_prompt < inside[row])),
        np.where(row < 0, segment, row) * length + in_prompt,
        count * length
        + np.where(beyond < 0, row * width + in_text, batch * width + row * columns + beyond),
    )

    row_starts = np.empty(batch, np.int64)
    row_starts[order] = starts[first:]
    vector = np.arange(length)
    prompt_mask = np.ones((count, length), bool) if first else vector < used[:, None]
    begins = starts[:first] if first else row_starts + insert_at
    prompt_positions = np.where(prompt_mask, begins[:, None] + vector, 0)
    last = row_starts + lengths + inside - 1
    target_positions = np.minimum(
        last[:, None] + np.arange(columns), (row_starts + sizes - 1)[:, None]
    )

    device = text.mask.device
    if not tiled:
        rows = _grouped(queries, prefix, first, length, order, text, causal)
    elif text.prompt_of is None:
        tiles = to_device(torch.from_numpy(kernels.tiles(queries, positions)), device)
        rows = Rows(causal, tiles=(tiles, tiles))
    else:
        rows = _shared(queries, prefix, text.prompt_of.numpy()[order], prompts, positions, device)
    arrays = (
        _padded(source, positions),
        _padded(offset + prefix[segment], positions),
        _padded(row, positions, -1),
        row_starts,
        prompt_positions,
        prompt_mask,
        target_positions,
    )
    tensors = [to_device(torch.from_numpy(array), device) for array in arrays]
    return RowLayout._make([*tensors, rows])


def grouped_layout(text: Text, length: int) -> Layout:
    """The layout of a batch with `length` prompt vectors per row, in groups of similar length, as
    T5 takes it."""
    packed = row_layout(text, (len(text.mask), length), causal=False)
    groups, padded, inverse = packed.rows.groups, packed.rows.padded, packed.rows.inverse
    assert padded is not None
    assert inverse is not None
    device, used = text.mask.device, len(inverse)
    more = round_up(used, CPU_BUCKETS) - used
    return Layout(
        nn.functional.pad(packed.source, (0, more)),
        packed.prompt_positions,
        packed.prompt_mask,
        to_device(torch.cat([group.members for group in groups]), device),
        to_device(padded, device),
        to_device(nn.functional.pad(inverse, (0, more)), device),
        [(group.rows, group.width) for group in groups],
        [to_device(group.key_positions >= 0, device) for group in groups],
        torch.zeros(0, 5, dtype=torch.int32, device=device),
        used,
    )


def after_text(layout: RowLayout, before: TextBefore) -> RowLayout:
    """The same layout where each row comes after a text that was read before it."""
    groups = []
    for group in layout.rows.groups:
        lengths, starts = before.lengths[group.members], before.starts[group.members]
        column = torch.arange(int(lengths.max())).expand(group.rows, -1)
        read = column < lengths[:, None]
        own = group.key_positions
        keys = [torch.where(read, column, -1), torch.where(own < 0, -1, own + lengths[:, None])]
        groups.append(
            group._replace(
                query_positions=group.query_positions + lengths[:, None],
                key_positions=torch.cat(keys, dim=1),
                before=starts[:, None] + torch.where(read, column, 0),
            )
        )
    return layout._replace(
        positions=layout.positions + before.lengths[layout.row_of],
        rows=layout.rows._replace(groups=tuple(groups), before=before),
    )


def _padded(array: Array, size: int, value: int = 0) -> Array:
    return np.concatenate([array, np.full(size - len(array), value)])


def _shared(
    queries: Array,
    prefix: Array,
    owner: Array,
    prompts: tuple[int, int],
    positions: int,
    device: torch.device,
) -> Rows:
    """Causal rows that share prompts, each read once, for our kernels."""
    count, length = prompts
    of_prompt = np.bincount(owner, minlength=count)
    most = -(-len(owner) * length // kernels.TILE) * kernels.TILE
    users = np.full((count, length, max(1, int(of_prompt.max()))), most)
    by_owner = np.argsort(owner, kind="stable")
    rank = np.arange(len(owner)) - np.repeat(of_prompt.cumsum() - of_prompt, of_prompt)
    vector, row = np.arange(length), by_owner + count
    slots = (prefix.cumsum() - prefix)[row, None] + vector
    users[owner[by_owner], :, rank] = np.where(vector < prefix[row, None], slots, most)
    starts = length * np.concatenate([np.zeros(count, np.int64), owner])
    tiles = kernels.shared_tiles(queries, positions, prefix, starts, most)
    by_query, by_key, slots_of = (
        to_device(torch.from_numpy(array), device)
        for array in (*tiles, users.reshape(count * length, users.shape[2]))
    )
    return Rows(causal=True, tiles=(by_query, by_key), users=slots_of)


def _grouped(
    queries: Array, prefix: Array, first: int, length: int, order: Array, text: Text, causal: bool
) -> Rows:
    """Groups of rows, which come longest first; prompts before them are a group of their own."""
    starts = queries.cumsum() - queries
    sizes = [(first, length)] if first else []
    sizes += group_by_length(queries[first:].tolist())
    groups, padded, begin = [], [], 0
    for size, width in sizes:
        members = slice(begin, begin + size)
        begin += size
        column, own = np.arange(width), queries[members, None]
        padded.append((starts[members, None] + np.minimum(column, own - 1)).ravel())
        positions = prefix[members, None] + column
        keys, owner = np.where(column < own, positions, -1), None
        if text.prompt_of is not None and members.start >= first:
            owner = text.prompt_of[torch.from_numpy(order[members.start - first : begin - first])]
            vector = np.arange(length)
            keys = np.concatenate([np.where(vector < prefix[members, None], vector, -1), keys], 1)
        numbers = order[max(0, members.start - first) : max(0, begin - first)]
        arrays = [torch.from_numpy(array) for array in (numbers, positions, keys)]
        groups.append(Group(size, width, arrays[0], owner, *arrays[1:]))
    widths = np.repeat([width for _, width in sizes], [size for size, _ in sizes])
    column_starts = widths.cumsum() - widths
    segment = np.repeat(np.arange(len(queries)), queries)
    inverse = column_starts[segment] + np.arange(len(segment)) - starts[segment]
    return Rows(
        causal,
        groups=tuple(groups),
        padded=torch.from_numpy(np.concatenate(padded)),
        inverse=torch.from_numpy(inverse),
        prompts=(first, length),
    )
