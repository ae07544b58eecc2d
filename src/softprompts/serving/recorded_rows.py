"""Rows in the middle of their answers, whose next step is replayed from a CUDA graph.

Buffers hold the keys and values of all slots, and stay where they are. A step has few sizes: it
runs for the first 4, 16, 64, ... slots, free ones included, and the first 128, 256, ... columns. As
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
from ..backbone.speed.inference import Record, added, attention_masks

ROWS = (4, 16, 64, 128, 256, 512, 1024)
"""The rows of recorded passes."""
COLUMNS = 128
"""The columns of buffers and steps are a multiple of this."""
SPARE_COLUMNS = 64
"""Columns for more tokens, at least, whenever rows are moved."""
TOO_LARGE = 4
"""Empty buffers with so many times the columns that are needed are discarded."""

_versions = itertools.count()


def padded_rows(count: int) -> int:
    """The rows of the pass that `count` rows take part in."""
    return next((size for size in ROWS if size >= count), count)


class Buffer:
    """The keys and values of all layers and slots: [2 layers, S, A, W, D]."""

    def __init__(self) -> None:
        self.numbers = torch.zeros(0, 0, 0, 0, 0)

    @property
    def slots(self) -> int:
        return self.numbers.shape[1]

    @property
    def columns(self) -> int:
        return self.numbers.shape[3]

    def reserve(self, like: Tensor, slots: int, columns: int) -> bool:
        """Have this many slots and columns, for rows [2 layers, B, A, ., D]; whether the buffer was
        moved to be larger."""
        slots, columns = max(slots, self.slots), max(columns, self.columns)
        if (slots, columns) == (self.slots, self.columns):
            return False
        layers, _, heads, _, size = like.shape
        numbers = like.new_zeros(layers, slots, heads, columns, size)
        if self.slots:
            numbers[:, : self.slots, :, : self.columns] = self.numbers
        self.numbers = numbers
        return True

    def bytes_per_column(self) -> float:
        return self.numbers.nbytes / max(1, self.slots * self.columns)


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

    def __init__(self, backbone: Backbone, most: int, most_bytes: int, record: Record) -> None:
        self.backbone, self.most, self.most_bytes = backbone, most, most_bytes
        self.record = record
        self.lengths: list[int] = []
        """Columns that each row uses."""
        self.source_lengths: list[int] = []
        """Tokens that each row's cross-attention sees."""
        self.slots: list[int] = []
        """Where each row is."""
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
        index, to = self._index(sources), self._index(slots)
        cache, columns, sees = state.cache, list(lengths), [0] * len(sources)
        if isinstance(cache, EncoderDecoderCache):
            across = _stacked(cache.cross_attention_cache, index)
            width = min(max(lengths), across.shape[3])
            self._reserve(self.cross, across, slots, width)
            self.cross.numbers[:, to, :, :width] = across[..., :width, :]
            cache, columns, sees = cache.self_attention_cache, [1] * len(sources), list(lengths)
        width = max(columns)
        rows = _stacked(cache, index, width)
        if pads_inside:
            order = state.mask.argsort(dim=1, stable=True)[index]
            rows = rows.gather(3, order[None, :, None, :, None].expand_as(rows))
        rows = rows[..., -width:, :]
        self._make_room(rows, slots, width)
        self.own.numbers[:, to, :, self.clock - width : self.clock] = rows
        self.lengths += columns
        self.source_lengths += sees
        self.slots += slots

    def step(self, tokens: Sequence[int]) -> Tensor:
        self._make_room(self.own.numbers, self.slots, 0)
        window = _rounded(self.clock + 1), _rounded(max(self.source_lengths))
        count = min(padded_rows(max(self.slots) + 1), self.own.slots)
        numbers = torch.zeros(4, count, dtype=torch.long)
        numbers[0, self.slots] = torch.tensor(list(tokens))
        numbers[1, self.slots] = torch.tensor(self.lengths)
        numbers[2, self.slots] = torch.tensor(self.source_lengths)
        numbers[3] = self.clock
        inputs = [to_device(numbers, self.backbone.device)]
        step = partial(self._step, window)
        (logits,) = self.record(step, inputs, ("decode", self._version, window))
        self.lengths = [length + 1 for length in self.lengths]
        self.clock += 1
        in_order = self.slots == list(range(len(self)))
        return logits[: len(self)] if in_order else logits[self._index(self.slots)]

    def leave(self, rows: Sequence[int]) -> list[int]:
        """The slots become free; nothing is moved."""
        leaving = set(rows)
        stay = [row for row in range(len(self)) if row not in leaving]
        self.lengths, self.source_lengths, self.slots = (
            [numbers[row] for row in stay]
            for numbers in (self.lengths, self.source_lengths, self.slots)
        )
        return stay

    def column_bytes(self) -> float:
        return (self.cross if self.cross.slots else self.own).bytes_per_column()

    def _step(self, window: tuple[int, int], numbers: Tensor) -> tuple[Tensor, ...]:
        """The logits after each slot's next token [B, V], from the first columns of the buffers.
        Free slots see what they have just written, and what they write is never seen."""
        model, (tokens, lengths, sources, clocks) = self.backbone.model, numbers
        clock, columns = clocks[:1], self._columns(window[0])
        visible = (columns <= clock) & (columns >= clock - lengths[:, None])
        mask = attention_masks(model, visible[:, None], (clock - columns)[None, None])
        cache = Cache(layers=_layers(self.own, len(tokens), window[0], clock))
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
        states = torch.zeros((), device=numbers.device, dtype=model.dtype)
        across = Cache(layers=_layers(self.cross, len(tokens), window[1]))
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

    def _make_room(self, rows: Tensor, slots: Sequence[int], width: int) -> None:
        """Have these slots, `width` columns before the clock, and some from the clock on."""
        longest = max(self.lengths, default=0)
        needed = max(longest, width) + SPARE_COLUMNS
        self._reserve(self.own, rows, slots, needed)
        if not longest:
            self.clock = width
        elif self.clock < width or self.clock >= _rounded(needed):
            self._move(max(longest, width))

    def _move(self, clock: int) -> None:
        """Move all rows, so that their columns end at another clock."""
        longest = max(self.lengths)
        used = self.own.numbers[..., self.clock - longest : self.clock, :].clone()
        self.own.numbers[..., clock - longest : clock, :] = used
        self.clock = clock

    def _reserve(self, buffer: Buffer, rows: Tensor, slots: Sequence[int], columns: int) -> None:
        columns = _rounded(columns)
        if not self.lengths and buffer.columns > TOO_LARGE * columns:
            buffer.numbers = buffer.numbers[:, :0, :, :0]
        needed = max(slots) + 1
        count = min(padded_rows(needed), max(self.most, needed))
        size = columns * rows[:, 0, :, 0].nbytes
        if count * size > self.most_bytes:
            count = max(needed, self.most_bytes // size)
        if buffer.reserve(rows, count, columns):
            self._version = next(_versions)

    def _columns(self, count: int) -> Tensor:
        return torch.arange(count, device=self.backbone.device)

    def _index(self, numbers: Sequence[int]) -> Tensor:
        return to_device(torch.tensor(list(numbers), dtype=torch.long), self.backbone.device)


def _rounded(columns: int) -> int:
    return -(-columns // COLUMNS) * COLUMNS


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


def _layers(
    buffer: Buffer, rows: int, columns: int, clock: Tensor | None = None
) -> list[RecordedLayer]:
    parts = [part[:rows, :, :columns] for part in buffer.numbers]
    return [
        RecordedLayer(keys, values, clock)
        for keys, values in zip(parts[::2], parts[1::2], strict=True)
    ]
