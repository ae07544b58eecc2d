"""One token after another without launching a model's kernels one by one: the step is recorded once for its sizes and replayed.

Everything a step reads or changes stays where it is: the token, its position, the mask of what it sees, keys and values.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .memory import Reading

KEPT = 4
"""Recorded steps that are kept, each with room for the keys and values of its rows."""
COLUMNS = 128
"""The room for these is a multiple of so many columns."""


class Stepping:
    """The next token's logits of up to so many rows and columns: [B, 1] -> [B, V], again and again."""

    def __init__(self, model: Any, rows: int, columns: int, dtype: torch.dtype) -> None:
        from transformers import StaticCache

        self.model, self.cache = model, StaticCache(config=model.config, max_cache_len=columns)
        device = model.device
        self.tokens, self.places = (
            torch.zeros(rows, 1, dtype=torch.long, device=device) for _ in range(2)
        )
        self.mask = torch.zeros(rows, 1, 1, columns, dtype=dtype, device=device)
        self.seen = torch.zeros(rows, 1, 1, 1, dtype=dtype, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits = torch.empty(0)

    def begin(self, reading: Reading) -> None:
        """Go on from what was read."""
        width = reading.mask.shape[1]
        self.mask.fill_(torch.finfo(self.mask.dtype).min)
        self.mask[:, 0, 0, :width].masked_fill_(reading.mask.bool(), 0)
        self.places.copy_(reading.mask.sum(1, keepdim=True) - 1)
        for own, read in zip(self.cache.layers, reading.cache.layers, strict=True):
            own.cumulative_length.zero_()
            own.update(read.keys, read.values)
        if self.tokens.is_cuda and self.graph is None:
            self._record()

    def __call__(self, tokens: Tensor) -> Tensor:
        self.tokens.copy_(tokens)
        if self.graph is not None:
            self.graph.replay()
            return self.logits
        return self._step()

    def _step(self) -> Tensor:
        """The token is seen from now on, at the next column and the next position."""
        column = self.cache.layers[0].cumulative_length.view(1)
        self.mask.index_copy_(3, column, self.seen)
        self.places.add_(1)
        asked = {"input_ids": self.tokens, "position_ids": self.places, "attention_mask": self.mask}
        logits: Tensor = self.model(**asked, past_key_values=self.cache, use_cache=True).logits
        return logits[:, -1]

    def _record(self) -> None:
        """What the steps before it change is put back."""
        held = [self.mask, self.places, *(layer.cumulative_length for layer in self.cache.layers)]
        before = [tensor.clone() for tensor in held]
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(2):
                self._step()
                torch._foreach_copy_(held, before)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.logits = self._step()
        torch._foreach_copy_(held, before)
        self.graph = graph


class Steps:
    """The recorded steps of a model, by the sizes they were recorded for."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.kept: OrderedDict[tuple[int, int], Stepping] = OrderedDict()

    def after(self, reading: Reading, more: int) -> Callable[[Tensor], Tensor] | None:
        """What gives the logits of up to `more` tokens after a reading; None where its cache is not keys and values in order."""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        if not isinstance(reading.cache, DynamicCache) or any(
            type(layer) is not DynamicLayer for layer in reading.cache.layers
        ):
            return None
        rows, width = reading.mask.shape
        key = rows, -(-(width + more) // COLUMNS) * COLUMNS
        stepping = self.kept.pop(key, None) or Stepping(
            self.model, *key, reading.cache.layers[0].keys.dtype
        )
        stepping.begin(reading)
        self.kept[key] = stepping
        while len(self.kept) > KEPT:
            self.kept.popitem(last=False)
        return stepping
