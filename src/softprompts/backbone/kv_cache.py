"""Keys and values that a model has computed, for any number of continuations.

Shape letters: N prompts, A attention heads, D numbers of a head, W columns; the others as in
`backbone.py`.
"""

import copy
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer


def stretches_positions(config: Any) -> bool:
    """Whether rotary positions depend on a text's length, so that no prompt can be cached."""
    rotary = str(getattr(config, "rope_parameters", None))
    return "dynamic" in rotary or "longrope" in rotary


class PromptCache(NamedTuple):
    """The keys and values of prompts that precede every text."""

    layers: list[tuple[Tensor, Tensor]]  # keys and values [N, A, P, D] of each layer
    lengths: Tensor  # how many of the P columns each prompt uses [N]
    max_columns: int | None
    """The most columns of a row, answer included, that the model attends to; None: no limit."""

    def rows(self, indices: Tensor, columns: int) -> "PromptCache":
        """A selection of prompts, repeats allowed, limited to the first `columns` columns."""
        return self._replace(
            layers=[
                (k[of_layer, :, :columns], v[of_layer, :, :columns])
                for k, v in self.layers
                for of_layer in [indices.to(k.device)]
            ],
            lengths=self.lengths[indices],
        )

    def mask(self) -> Tensor:
        """The columns that each prompt uses: [N, P]."""
        columns = torch.arange(self.layers[0][0].shape[2], device=self.lengths.device)
        return (columns < self.lengths[:, None]).long()

    @classmethod
    def from_caches(cls, caches: list[Any], lengths: Tensor) -> "PromptCache | None":
        """From a model's caches of prompts; None unless they hold all keys and values in order."""
        layers = [
            layer for cache in caches if isinstance(cache, DynamicCache) for layer in cache.layers
        ]
        if not layers or not all(
            type(layer) in (DynamicLayer, DynamicSlidingWindowLayer)
            and layer.is_initialized
            and layer.keys.shape[2] == layer.get_seq_length()  # else a window has left the first
            for layer in layers
        ):
            return None
        windows = (
            layer.sliding_window for layer in layers if isinstance(layer, DynamicSlidingWindowLayer)
        )
        keys_values = [
            (torch.cat([part.keys for part in parts]), torch.cat([part.values for part in parts]))
            for parts in zip(*(cache.layers for cache in caches), strict=True)
        ]
        return cls(keys_values, lengths, min(windows, default=None))


@dataclass
class DecodingState:
    """Rows that the model has processed up to their next token."""

    logits: Tensor  # of the next token [B, V]
    cache: Any
    mask: Tensor  # of the columns that attention sees [B, W]
    states: Tensor | None = None  # the encoder's, if there is one [B, W, H]

    def bytes_per_row(self) -> int:
        """The size of one row's keys and values."""
        caches = [self.cache]
        if self.states is not None:
            caches = [self.cache.self_attention_cache, self.cache.cross_attention_cache]
        parts = (p for cache in caches for layer in cache.layers for p in vars(layer).values())
        return sum(part.nbytes for part in parts if torch.is_tensor(part)) // len(self.mask)

    def rows(self, indices: Tensor) -> "DecodingState":
        """A copy of a selection of rows, repeats allowed, to continue from."""
        cache = copy.deepcopy(self.cache)
        cache.reorder_cache(indices)
        states = None if self.states is None else self.states[indices]
        return DecodingState(self.logits[indices], cache, self.mask[indices], states)
