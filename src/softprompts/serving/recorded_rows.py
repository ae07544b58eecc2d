"""Rows in the middle of their answers, whose next step is replayed from a CUDA graph.

Buffers hold the keys and values of all slots, and stay where they are. A step has few sizes: it
runs for the first 4, 8, 16, ... slots, free ones included, and the first 128, 256, ... columns. As
in `slots.py`, all rows write the same column next, the clock.

Shape letters as in `slots.py`.
"""

import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import Cache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from ..backbone import Backbone, to_device
from ..backbone.kv_cache import DecodingState
from ..backbone.speed.inference import Record, attention_masks
from ..backbone.speed.layout import added
from .row_pool import index_of

FEWEST_ROWS = 4
"""The rows of a recorded pass, at least; more are a power of two."""
FEWEST_COLUMNS = 128
"""The columns of a buffer or of a step, at least; more are a power of two."""
SPARE_COLUMNS = 64
"""Columns for more tokens, at least, whenever rows are moved."""
FEW_SLOTS = 16
"""Slots to add at a time when memory is short."""

_versions = itertools.count()


def padded_rows(count: int) -> int:
    """The rows of the pass that `count` rows take part in."""
    return max(FEWEST_ROWS, 1 << (count - 1).bit_length())


def padded_columns(count: int) -> int:
    """The columns of the buffer or of the step that holds `count`; none for none."""
    return max(FEWEST_COLUMNS, 1 << (count - 1).bit_length()) if count else 0


class Buffer:
    """The keys and values of all layers and slots: [2 layers, S, A, W, D]."""

    def __init__(self) -> None:
        self.keys_values = torch.zeros(0, 0, 0, 0, 0)

    @property
    def slots(self) -> int:
        return self.keys_values.shape[1]

    @property
    def columns(self) -> int:
        return self.keys_values.shape[3]

    def resized(self, like: Tensor, slots: int, columns: int, old: slice, new: slice) -> Tensor:
        """Keys and values with this many slots and columns, for rows [2 layers, ., A, ., D]; the
        columns `old` become `new`."""
        layers, _, heads, _, size = like.shape
        keys_values, before = like.new_zeros(layers, slots, heads, columns, size), self.keys_values
        if before.numel():
            kept = min(slots, before.shape[1])
            keys_values[:, :kept, :, new] = before[:, :kept, :, old]
        return keys_values

    def write(self, slots: Tensor, columns: slice, rows: Tensor) -> None:
        """Put rows into slots; nothing is left there of earlier ones, which may be NaN."""
        self.keys_values[:, slots] = 0
        self.keys_values[:, slots, :, columns] = rows

    def layers(self, rows: int, columns: int, clock: Tensor | None = None) -> Cache:
        """The first rows and columns, as the model takes them."""
        parts = [part[:rows, :, :columns] for part in self.keys_values]
        pairs = zip(parts[::2], parts[1::2], strict=True)
        return Cache(layers=[RecordedLayer(keys, values, clock) for keys, values in pairs])


class RecordedLayer(DynamicLayer):  # type: ignore[misc]
    """One layer of a buffer in a recorded step: the new column is written at the clock [1]."""

    def __init__(self, keys: Tensor, values: Tensor, clock: Tensor | None = None) -> None:
        super().__init__()
        self.keys, self.values, self.clock = keys, values, clock
        self.is_initialized, self.dtype, self.device = True, keys.dtype, keys.device

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        assert self.clock is not None
        self.keys.index_copy_(2, self.clock, key_states)
        self.values.index_copy_(2, self.clock, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> Any:
        """For relative positions: the column of the new token."""
        return self.keys.shape[2] if self.clock is None else self.clock


class RecordedRows:
    """Rows of a decoder-only model, or of an encoder-decoder with relative positions."""

    open = True

    def __init__(self, backbone: Backbone, max_slots: int, max_bytes: int, record: Record) -> None:
        self.backbone, self.max_slots, self.max_bytes = backbone, max_slots, max_bytes
        self.record = record
        self.lengths: list[int] = []
        """Columns that each row uses."""
        self.source_lengths: list[int] = []
        """Tokens that each row's cross-attention sees."""
        self.slots: list[int] = []
        self.clock = 0
        self.own, self.cross = Buffer(), Buffer()
        self._version = next(_versions)  # of the buffers: steps are recorded for each

    def __len__(self) -> int:
        return len(self.lengths)

    def join(
        self,
        state: DecodingState,
        sources: Sequence[int],
        lengths: Sequence[int],
        pads_inside: bool = False,
    ) -> None:
        taken = set(self.slots)
        free = (slot for slot in itertools.count() if slot not in taken)
        slots = list(itertools.islice(free, len(sources)))
        index, to = (index_of(numbers, self.backbone.device) for numbers in (sources, slots))
        cache, columns, source_lengths = state.cache, list(lengths), [0] * len(sources)
        across = None
        if isinstance(cache, EncoderDecoderCache):
            across = _stacked(cache.cross_attention_cache, index)[..., : max(lengths), :]
            cache, columns = cache.self_attention_cache, [1] * len(sources)
            source_lengths = list(lengths)
        width = max(columns)
        rows = _stacked(cache, index, width)
        if pads_inside:
            order = state.mask.argsort(dim=1, stable=True)[index]
            rows = rows.gather(3, order[None, :, None, :, None].expand_as(rows))
        rows = rows[..., -width:, :]
        self._make_room(max([*self.slots, *slots]) + 1, rows, across)
        self.own.write(to, slice(self.clock - width, self.clock), rows)
        if across is not None:
            self.cross.write(to, slice(0, across.shape[3]), across)
        self.lengths += columns
        self.source_lengths += source_lengths
        self.slots += slots

    def step(self, tokens: Sequence[int]) -> Tensor:
        self._make_room(max(self.slots) + 1)
        window = padded_columns(self.clock + 1), padded_columns(max(self.source_lengths))
        count = min(padded_rows(max(self.slots) + 1), self.own.slots)
        inputs = torch.zeros(4, count, dtype=torch.long)
        inputs[0, self.slots] = torch.tensor(list(tokens))
        inputs[1, self.slots] = torch.tensor(self.lengths)
        inputs[2, self.slots] = torch.tensor(self.source_lengths)
        inputs[3] = self.clock
        kind = "decode", self._version, window
        inputs = to_device(inputs, self.backbone.device)
        (logits,) = self.record(partial(self._step, window), [inputs], kind)
        self.lengths = [length + 1 for length in self.lengths]
        self.clock += 1
        in_order = self.slots == list(range(len(self)))
        return logits[: len(self)] if in_order else logits[index_of(self.slots, logits.device)]

    def leave(self, rows: Sequence[int]) -> list[int]:
        """The slots become free. Rows are moved only if a step can then be smaller."""
        leaving = set(rows)
        stay = [row for row in range(len(self)) if row not in leaving]
        self.lengths, self.source_lengths, self.slots = (
            [numbers[row] for row in stay]
            for numbers in (self.lengths, self.source_lengths, self.slots)
        )
        if stay and padded_rows(max(self.slots) + 1) > padded_rows(len(stay)):
            self._close_ranks()
        return stay

    def column_bytes(self) -> float:
        like = self.cross if self.cross.slots else self.own
        return like.keys_values.nbytes / max(1, like.slots * like.columns)

    def _step(self, window: tuple[int, int], inputs: Tensor) -> tuple[Tensor, ...]:
        """The logits after each slot's next token [B, V], from the first columns of the buffers.
        Free slots see what they have just written, and what they write is never seen."""
        model, (tokens, lengths, sources, clocks) = self.backbone.model, inputs
        clock, columns = clocks[:1], self._columns(window[0])
        visible = (columns <= clock) & (columns >= clock - lengths[:, None])
        mask = attention_masks(model, visible[:, None], clock[None], columns[None])
        cache = self.own.layers(len(tokens), window[0], clock)
        if not self.cross.slots:
            output = model(
                input_ids=tokens[:, None],
                attention_mask=mask,
                position_ids=lengths[:, None],
                past_key_values=cache,
                use_cache=True,
            )
            return (output.logits[:, -1],)
        seen = self._columns(window[1]) < sources[:, None]
        # cross-attention has its keys and values, so that the model needs the states' shape only
        states = torch.zeros((), device=inputs.device, dtype=model.dtype)
        across = self.cross.layers(len(tokens), window[1])
        output = model(
            encoder_outputs=BaseModelOutput(states.expand(*seen.shape, self.backbone.hidden)),
            attention_mask=added(seen, model.dtype)[:, None, None],
            decoder_input_ids=tokens[:, None],
            decoder_attention_mask=mask,
            past_key_values=EncoderDecoderCache(cache, across),
            use_cache=True,
        )
        return (output.logits[:, -1],)

    # -- buffers -----------------------------------------------------------------------------------

    def _make_room(
        self, slots: int, rows: Tensor | None = None, across: Tensor | None = None
    ) -> None:
        """Have this many slots, columns before the clock for new rows, and some from it on."""
        longest = max(self.lengths, default=0)
        width = longest if rows is None else max(longest, rows.shape[3])
        sources = max(self.source_lengths, default=0)
        if across is not None:
            sources = max(sources, across.shape[3])
        needed = padded_columns(width + SPARE_COLUMNS), padded_columns(sources)
        sizes = self._sizes(slots, needed, rows, across)
        # the clock goes back before a step would have more columns than are needed
        clock = self.clock if longest and width <= self.clock < needed[0] else width
        old, new = (slice(end - longest, end) for end in (self.clock, clock))
        if sizes != (self.own.slots, self.own.columns, self.cross.columns):
            like = [
                buffer.keys_values if part is None else part
                for buffer, part in ((self.own, rows), (self.cross, across))
            ]
            same = slice(0, min(self.cross.columns, sizes[2]))
            # both before either changes: memory may be short
            own = self.own.resized(like[0], sizes[0], sizes[1], old, new)
            cross = self.cross.resized(like[1], sizes[0] if sizes[2] else 0, sizes[2], same, same)
            self.own.keys_values, self.cross.keys_values = own, cross
            self._version = next(_versions)
        elif clock != self.clock and longest:
            self.own.keys_values[..., new, :] = self.own.keys_values[..., old, :].clone()
        self.clock = clock

    def _sizes(
        self, slots: int, needed: tuple[int, int], rows: Tensor | None, across: Tensor | None
    ) -> tuple[int, int, int]:
        """Slots, and columns of both buffers: they stay or grow, unless memory is short."""
        bytes_per_column = [
            (buffer.keys_values if new is None else new)[:, :1, :, :1].nbytes
            for buffer, new in ((self.own, rows), (self.cross, across))
        ]

        def size(count: int, columns: tuple[int, int]) -> int:
            return count * sum(n * b for n, b in zip(columns, bytes_per_column, strict=True))

        columns = max(needed[0], self.own.columns), max(needed[1], self.cross.columns)
        most = max(self.max_slots, slots)
        count = max(self.own.slots, min(padded_rows(slots), most))
        if size(count, columns) > self.max_bytes:
            columns = needed
        if size(count, columns) > self.max_bytes:
            count = max(self.own.slots, min(-(-slots // FEW_SLOTS) * FEW_SLOTS, most))
        if size(count, columns) > self.max_bytes:
            count = max(slots, self.max_bytes // size(1, columns))
        return count, *columns

    def _close_ranks(self) -> None:
        """Move the rows in the last slots to the first free ones."""
        free = sorted(set(range(len(self))) - set(self.slots))
        last = [row for row, slot in enumerate(self.slots) if slot >= len(self)]
        slots = index_of([self.slots[row] for row in last], self.backbone.device)
        to = index_of(free, self.backbone.device)
        for buffer in (self.own, self.cross):
            if buffer.slots:
                buffer.keys_values[:, to] = buffer.keys_values[:, slots]
        for row, slot in zip(last, free, strict=True):
            self.slots[row] = slot

    def _columns(self, count: int) -> Tensor:
        return torch.arange(count, device=self.backbone.device)


def _stacked(cache: Any, index: Tensor, least: int = 0) -> Tensor:
    """The keys and values of some rows [2 layers, B, A, W, D], with at least so many columns: a
    layer may have lost its first ones, which are outside its window."""
    parts = [part for layer in cache.layers for part in (layer.keys, layer.values)]
    width = max(least, *(part.shape[2] for part in parts))
    parts = [
        part if part.shape[2] == width else functional.pad(part, (0, 0, width - part.shape[2], 0))
        for part in parts
    ]
    return torch.stack(parts)[:, index]
