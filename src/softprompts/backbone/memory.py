"""What a model keeps of what it has read: keys and values, which any number of answers go on from.

Shape letters: N prompts, A attention heads, D numbers of a head, W columns read; the others as in `backbone.py`.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Memory(NamedTuple):
    """Prompts that need no reading any more, because they stand before every text: their keys and values."""

    layers: list[tuple[Tensor, Tensor]]
    """Of each layer: [N, A, P, D]."""
    given: Tensor
    """How many of the P are each prompt's own: [N]."""
    room: int | None
    """The most columns a row may have, its answer included, for the model to see all of it; None: no limit."""

    def rows(self, which: Tensor, longest: int) -> "Memory":
        """Some of the prompts, as often as they are named, `longest` columns of them."""
        return self._replace(
            layers=[(k[which, :, :longest], v[which, :, :longest]) for k, v in self.layers],
            given=self.given[which],
        )

    def mask(self) -> Tensor:
        """The columns that are each prompt's own: [N, P]."""
        return (
            torch.arange(self.layers[0][0].shape[2], device=self.given.device) < self.given[:, None]
        ).long()

    def cache(self) -> Any:
        """As a model takes it."""
        from transformers import DynamicCache

        return DynamicCache(self.layers)

    @classmethod
    def of(cls, caches: list[Any], given: Tensor) -> "Memory | None":
        """From what a model kept of some prompts; None where it is not all their keys and values, in order."""
        from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

        layers = [
            layer for cache in caches if isinstance(cache, DynamicCache) for layer in cache.layers
        ]
        if not layers or not all(
            type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) and layer.is_initialized
            for layer in layers
        ):
            return None
        room = min(
            (
                layer.sliding_window
                for layer in layers
                if isinstance(layer, DynamicSlidingWindowLayer)
            ),
            default=None,
        )
        if any(
            layer.keys.shape[2] != layer.get_seq_length() for layer in layers
        ):  # a window that has begun to forget
            return None
        kept = zip(*(cache.layers for cache in caches), strict=True)
        return cls(
            [
                (
                    torch.cat([part.keys for part in parts]),
                    torch.cat([part.values for part in parts]),
                )
                for parts in kept
            ],
            given,
            room,
        )


@dataclass
class Reading:
    """Rows read up to where their answers begin, or as far as an answer has been written."""

    logits: Tensor
    """Of the next token: [B, V]."""
    cache: Any
    mask: Tensor
    """Of what attention sees: [B, W]."""
    states: Tensor | None = None
    """The encoder's, where there is one: [B, W, H]."""

    def size(self) -> int:
        """The bytes of one row's keys and values."""
        caches = (
            [self.cache]
            if self.states is None
            else [self.cache.self_attention_cache, self.cache.cross_attention_cache]
        )
        kept = [
            part
            for cache in caches
            for layer in cache.layers
            for part in vars(layer).values()
            if torch.is_tensor(part)
        ]
        return sum(part.nbytes for part in kept) // len(self.mask)

    def rows(self, which: Tensor) -> "Reading":
        """A copy of some rows, as often as they are named, for answers to go on from."""
        cache = copy.deepcopy(self.cache)
        cache.reorder_cache(which)
        states = None if self.states is None else self.states[which]
        return replace(
            self, logits=self.logits[which], cache=cache, mask=self.mask[which], states=states
        )
