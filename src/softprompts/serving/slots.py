"""Answers that are generated together: rows join and leave before any step.

Each row has a slot in buffers of keys and values. All rows write the same column next, the clock;
a row's own tokens end there, and what lies before them is hidden. So a row may join at any time,
and positions, relative or counted, are those that it would have alone.

Shape letters: S slots, W columns, A attention heads, D numbers of a head; the others as in
`backbone/backbone.py`.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    EncoderDecoderCache,
)
from transformers.modeling_outputs import BaseModelOutput

from ..backbone import Backbone
from ..backbone.generative import Generative
from ..backbone.kv_cache import DecodingState
from .row_pool import index_of

RELATIVE_DECODERS = frozenset({"t5", "mt5", "umt5"})
"""Encoder-decoders whose decoders see distances only; others count a batch's columns."""
SPARE_COLUMNS = 64
"""Columns that buffers are longer than what they hold: every so many steps, they are moved."""


class Rows(Protocol):
    """Rows in the middle of their answers, in order."""

    open: bool
    """Whether rows may join."""

    def __len__(self) -> int: ...

    def join(
        self,
        state: DecodingState,
        sources: Sequence[int],
        lengths: Sequence[int],
        pads_inside: bool = False,
    ) -> None:
        """Add the rows `sources` of `state`, repeats allowed, whose prompt and text have `lengths`
        tokens; `pads_inside`: not only before them."""

    def step(self, tokens: Sequence[int]) -> Tensor:
        """The logits after each row's next token: [B, V]."""

    def leave(self, rows: Sequence[int]) -> list[int]:
        """Remove rows; returns where those that stay were."""

    def column_bytes(self) -> float:
        """Bytes of the keys and values of one token; 0 if it is not known."""


def rows_for(backbone: Backbone, state: DecodingState, most: int) -> Rows:
    """Up to `most` empty slots for rows such as these; if their cache cannot be slotted, room for
    them only."""
    cache, model_type = state.cache, backbone.model.config.model_type
    if state.states is None:
        slotted = isinstance(cache, DynamicCache) and all(
            type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) and layer.is_initialized
            for layer in cache.layers
        )
    else:
        slotted = model_type in RELATIVE_DECODERS and isinstance(cache, EncoderDecoderCache)
    if slotted:
        return SlottedRows(backbone, most)
    assert isinstance(backbone, Generative)
    return GroupedRows(backbone)


class GroupedRows:
    """Rows that began together, in the model's own cache; none can join."""

    def __init__(self, backbone: Generative) -> None:
        self.backbone, self.state, self.open = backbone, None, True

    state: DecodingState | None

    def __len__(self) -> int:
        return 0 if self.state is None else len(self.state.mask)

    def join(
        self,
        state: DecodingState,
        sources: Sequence[int],
        lengths: Sequence[int],
        pads_inside: bool = False,
    ) -> None:
        self.state, self.open = state.rows(index_of(sources, self.backbone.device)), False

    def step(self, tokens: Sequence[int]) -> Tensor:
        assert self.state is not None
        return self.backbone.extend(self.state, index_of(tokens, self.backbone.device)[:, None])[
            :, -1
        ]

    def leave(self, rows: Sequence[int]) -> list[int]:
        assert self.state is not None
        stay = [row for row in range(len(self)) if row not in set(rows)]
        self.state = self.state.rows(index_of(stay, self.backbone.device)) if stay else None
        return stay

    def column_bytes(self) -> float:
        return 0.0


class SlotLayer(DynamicLayer):  # type: ignore[misc]
    """The keys and values of one layer [S, A, W, D], of which the model sees the rows and columns
    in use."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.buffers: tuple[Tensor, ...] = keys, values
        self.is_initialized, self.dtype, self.device = True, keys.dtype, keys.device
        self.rows = self.first = self.clock = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        seen = []
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[: self.rows, :, self.clock : self.clock + 1] = new
            seen.append(buffer[: self.rows, :, self.first : self.clock + 1])
        self.keys, self.values = seen
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.clock - self.first


class SlottedRows:
    """Rows in slots 0, 1, ..., of a decoder-only model, or of an encoder-decoder with relative
    positions, whose cross-attention then has slots of its own."""

    def __init__(self, backbone: Backbone, most: int) -> None:
        self.backbone, self.most, self.open = backbone, most, True
        self.lengths: list[int] = []
        """Columns that each row uses."""
        self.clock = 0
        """The next column."""
        self._sizes = 0, 0  # slots and columns of the buffers
        self.layers: list[SlotLayer] = []
        self.cross: list[SlotLayer] = []
        self.source_lengths: list[int] = []
        """Tokens that each row's cross-attention sees."""

    def __len__(self) -> int:
        return len(self.lengths)

    def join(
        self,
        state: DecodingState,
        sources: Sequence[int],
        lengths: Sequence[int],
        pads_inside: bool = False,
    ) -> None:
        if not self.lengths:  # what was long once need not be so for ever
            self.layers, self.cross, self._sizes = [], [], (0, 0)
        cache, index = state.cache, index_of(sources, self.backbone.device)
        columns, order = list(lengths), None
        if isinstance(cache, EncoderDecoderCache):
            self._join_cross(cache.cross_attention_cache.layers, index, lengths)
            cache, columns = cache.self_attention_cache, [1] * len(sources)
        elif pads_inside:
            order = state.mask.argsort(dim=1, stable=True)[index]
        self.layers = self.layers or _empty_layers(cache.layers)
        rows, width = len(self) + len(sources), max(columns)
        self._reserve(rows, width)
        for layer, new in zip(self.layers, cache.layers, strict=True):
            for buffer, part in zip(layer.buffers, (new.keys, new.values), strict=True):
                part = part[index]
                if order is not None:
                    sizes = (-1, part.shape[1], -1, part.shape[3])
                    part = part.gather(2, order[:, None, :, None].expand(*sizes))
                part = part[:, :, -width:]
                buffer[len(self) : rows, :, self.clock - part.shape[2] : self.clock] = part
        self.lengths += columns

    def step(self, tokens: Sequence[int]) -> Tensor:
        self._reserve(len(self), max(self.lengths))
        first = self.clock - max(self.lengths)
        for layer in self.layers:
            layer.rows, layer.first, layer.clock = len(self), first, self.clock
        lengths = index_of(self.lengths, self.backbone.device)[:, None]
        columns = torch.arange(first, self.clock + 1, device=lengths.device)
        mask = (columns >= self.clock - lengths).long()
        ids = index_of(tokens, self.backbone.device)[:, None]
        cache = Cache(layers=self.layers)
        if self.cross:
            logits = self._decoder_step(ids, mask, cache)
        else:
            logits = self.backbone.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=lengths,
                past_key_values=cache,
                use_cache=True,
            ).logits
        self.lengths = [length + 1 for length in self.lengths]
        self.clock += 1
        return logits[:, -1]

    def _decoder_step(self, ids: Tensor, mask: Tensor, cache: Cache) -> Tensor:
        width = max(self.source_lengths)
        for layer in self.cross:
            layer.rows, layer.first, layer.clock = len(self), 0, width
            layer.keys, layer.values = (buffer[: len(self), :, :width] for buffer in layer.buffers)
        columns = torch.arange(width, device=ids.device)
        # cross-attention has its keys and values, so that the model needs the states' shape only
        states = torch.zeros((), device=ids.device, dtype=self.backbone.model.dtype)
        logits: Tensor = self.backbone.model(
            encoder_outputs=BaseModelOutput(states.expand(len(ids), width, self.backbone.hidden)),
            attention_mask=(columns < index_of(self.source_lengths, ids.device)[:, None]).long(),
            decoder_input_ids=ids,
            decoder_attention_mask=mask,
            past_key_values=EncoderDecoderCache(cache, Cache(layers=self.cross)),
            use_cache=True,
        ).logits
        return logits

    def leave(self, rows: Sequence[int]) -> list[int]:
        """The last rows move to the slots that become free."""
        leaving = set(rows)
        stay = len(self) - len(leaving)
        free = sorted(row for row in leaving if row < stay)
        moved = [row for row in range(stay, len(self)) if row not in leaving]
        if free:
            to, source = (index_of(rows, self.backbone.device) for rows in (free, moved))
            first = self.clock - max(self.lengths)
            for layer in self.layers:
                for buffer in layer.buffers:
                    columns = buffer[:, :, first : self.clock]
                    columns[to] = columns[source]
            for layer in self.cross:
                for buffer in layer.buffers:
                    buffer[to] = buffer[source]
        order = list(range(stay))
        for target, origin in zip(free, moved, strict=True):
            order[target] = origin
        self.lengths = [self.lengths[row] for row in order]
        if self.cross:
            self.source_lengths = [self.source_lengths[row] for row in order]
        return order

    # -- buffers -----------------------------------------------------------------------------------

    def column_bytes(self) -> float:
        buffers = [layer.buffers for layer in (self.cross or self.layers)]
        return sum(b.nbytes / (b.shape[0] * b.shape[2]) for pair in buffers for b in pair)

    def _reserve(self, rows: int, width: int) -> None:
        """Have slots for `rows` rows, `width` columns before the clock, and one at the clock.

        Rows are moved to another column, or to larger buffers, only if they must be.
        """
        slots, columns = self._sizes
        longest = max(self.lengths, default=0)
        clock = max(self.clock, width) if self.lengths else width
        if clock >= columns:
            clock = max(longest, width)
            if clock + SPARE_COLUMNS > columns:
                columns = clock + 2 * SPARE_COLUMNS
        if rows > slots:
            slots = max(rows, min(2 * slots, self.most))
        if (slots, columns) != self._sizes or clock != self.clock:
            before, after = self.clock - longest, clock - longest
            for layer in self.layers:
                layer.buffers = tuple(
                    _moved(buffer, slots, columns, before, after, longest)
                    for buffer in layer.buffers
                )
        self._sizes, self.clock = (slots, columns), clock

    def _join_cross(self, caches: Sequence[Any], index: Tensor, lengths: Sequence[int]) -> None:
        self.cross = self.cross or _empty_layers(caches)
        rows, width = len(self) + len(index), max(lengths)
        slots, columns = self.cross[0].buffers[0].shape[::2]
        if rows > slots or width > columns:
            longest = max(width, columns)
            if rows > slots:
                slots = max(rows, min(2 * slots, self.most))
            for layer in self.cross:
                layer.buffers = tuple(
                    _moved(buffer, slots, longest, 0, 0, columns) for buffer in layer.buffers
                )
        for layer, cache in zip(self.cross, caches, strict=True):
            for buffer, part in zip(layer.buffers, (cache.keys, cache.values), strict=True):
                buffer[len(self) : rows, :, :width] = part[index, :, :width]
        self.source_lengths += lengths


def _empty_layers(caches: Sequence[Any]) -> list[SlotLayer]:
    """Buffers like these caches, without slots and columns yet."""
    return [SlotLayer(cache.keys[:0, :, :0], cache.values[:0, :, :0]) for cache in caches]


def _moved(buffer: Tensor, slots: int, columns: int, old: int, new: int, width: int) -> Tensor:
    """A buffer [slots, A, columns, D] with the columns from `old` on at `new`."""
    target = buffer.new_zeros(slots, buffer.shape[1], columns, buffer.shape[3])
    rows = min(slots, buffer.shape[0])
    target[:rows, :, new : new + width] = buffer[:rows, :, old : old + width]
    return target
