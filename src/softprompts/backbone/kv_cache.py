"""Keys and values that a model has computed, for any number of continuations.

Shape letters: N prompts, A attention heads, D numbers of a head, W columns; the others as in
`backbone.py`.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer


class PromptCache(NamedTuple):
    """The keys and values of prompts that precede every text."""

    layers: list[tuple[Tensor, Tensor]]
    """Keys and values of each layer: [N, A, P, D]."""
    lengths: Tensor
    """How many of the P columns each prompt uses: [N]."""
    max_columns: int | None
    """The most columns of a row, answer included, that the model attends to; None: no limit."""

    def rows(self, indices: Tensor, columns: int) -> "PromptCache":
        """A selection of prompts, repeats allowed, limited to the first `columns` columns."""
        return self._replace(
            layers=[(k[indices, :, :columns], v[indices, :, :columns]) for k, v in self.layers],
            lengths=self.lengths[indices],
        )

    def mask(self) -> Tensor:
        """The columns that each prompt uses: [N, P]."""
        columns = torch.arange(self.layers[0][0].shape[2], device=self.lengths.device)
        return (columns < self.lengths[:, None]).long()

    def cache(self) -> Any:
        """As transformers takes it."""
        return DynamicCache(self.layers)

    @classmethod
    def from_caches(cls, caches: list[Any], lengths: Tensor) -> "PromptCache | None":
        """From a model's caches of prompts; None unless they hold all keys and values in order."""
        layers = [
            layer for cache in caches if isinstance(cache, DynamicCache) for layer in cache.layers
        ]
        supported = (DynamicLayer, DynamicSlidingWindowLayer)
        if not layers or not all(
            type(layer) in supported and layer.is_initialized for layer in layers
        ):
            return None
        if any(layer.keys.shape[2] != layer.get_seq_length() for layer in layers):
            return None  # the first columns have left a sliding window
        windows = (
            layer.sliding_window for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)
        )
        by_layer = zip(*(cache.layers for cache in caches), strict=True)
        keys_values = [
            (torch.cat([part.keys for part in parts]), torch.cat([part.values for part in parts]))
            for parts in by_layer
        ]
        return cls(keys_values, lengths, min(windows, default=None))


@dataclass
class DecodingState:
    """Rows that the model has processed up to their next token."""

    logits: Tensor
    """Of the next token: [B, V]."""
    cache: Any
    mask: Tensor
    """Of the columns that attention sees: [B, W]."""
    states: Tensor | None = None
    """The encoder's, if there is one: [B, W, H]."""

    def bytes_per_row(self) -> int:
        """The size of one row's keys and values."""
        caches = [self.cache]
        if self.states is not None:
            caches = [self.cache.self_attention_cache, self.cache.cross_attention_cache]
        tensors = [
            part
            for cache in caches
            for layer in cache.layers
            for part in vars(layer).values()
            if torch.is_tensor(part)
        ]
        return sum(tensor.nbytes for tensor in tensors) // len(self.mask)

    def rows(self, indices: Tensor) -> "DecodingState":
        """A copy of a selection of rows, repeats allowed, to continue from."""
        cache = copy.deepcopy(self.cache)
        cache.reorder_cache(indices)
        states = None if self.states is None else self.states[indices]
        return replace(
            self, logits=self.logits[indices], cache=cache, mask=self.mask[indices], states=states
        )
