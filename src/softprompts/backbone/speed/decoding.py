"""Decoding steps recorded as CUDA graphs, so that kernels are not launched one by one.

A step is recorded once for its sizes and replayed. All that it reads or changes stays in place: the
token, its position, the attention mask, keys and values.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, StaticCache

from ..kv_cache import DecodingState

MAX_GRAPHS = 4  # recorded steps to keep, each with memory for the keys and values of its rows
COLUMNS = 128  # a step's key-value cache has a multiple of this many


class DecodingGraph:
    """The logits of the next token for a fixed number of rows: [B, 1] -> [B, V], repeatedly."""

    def __init__(self, model: Any, rows: int, columns: int, dtype: torch.dtype) -> None:
        self.model, self.cache = model, StaticCache(config=model.config, max_cache_len=columns)
        device = model.device
        self.tokens, self.positions = (
            torch.zeros(rows, 1, dtype=torch.long, device=device) for _ in range(2)
        )
        self.mask = torch.zeros(rows, 1, 1, columns, dtype=dtype, device=device)
        self.visible = torch.zeros(rows, 1, 1, 1, dtype=dtype, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits = torch.empty(0)

    def begin(self, state: DecodingState) -> None:
        width = state.mask.shape[1]
        self.mask.fill_(torch.finfo(self.mask.dtype).min)
        self.mask[:, 0, 0, :width].masked_fill_(state.mask.bool(), 0)
        self.positions.copy_(state.mask.sum(1, keepdim=True) - 1)
        for static, dynamic in zip(self.cache.layers, state.cache.layers, strict=True):
            static.cumulative_length.zero_()
            static.update(dynamic.keys, dynamic.values)
        if self.tokens.is_cuda and self.graph is None:
            self._record()

    def __call__(self, tokens: Tensor) -> Tensor:
        self.tokens.copy_(tokens)
        if self.graph is not None:
            self.graph.replay()
            return self.logits
        return self._step()

    def _step(self) -> Tensor:
        """Make the token visible, at the next column and position, and decode."""
        column = self.cache.layers[0].cumulative_length.view(1)
        self.mask.index_copy_(3, column, self.visible)
        self.positions.add_(1)
        output = self.model(
            input_ids=self.tokens,
            position_ids=self.positions,
            attention_mask=self.mask,
            past_key_values=self.cache,
            use_cache=True,
        )
        return cast(Tensor, output.logits[:, -1])

    def _record(self) -> None:
        """Record a step, and restore what the warm-up steps and the recording change."""
        changed = [
            self.mask,
            self.positions,
            *(layer.cumulative_length for layer in self.cache.layers),
        ]
        saved = [tensor.clone() for tensor in changed]
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step()
                torch._foreach_copy_(changed, saved)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.logits = self._step()
        torch._foreach_copy_(changed, saved)
        self.graph = graph


class DecodingGraphs:
    """The recorded decoding steps of a model, by their sizes."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.graphs: OrderedDict[tuple[int, int], DecodingGraph] = OrderedDict()

    def step_after(self, state: DecodingState, steps: int) -> Callable[[Tensor], Tensor] | None:
        """A function for the logits of up to `steps` tokens after `state`; None unless its cache
        holds plain keys and values in order."""
        if not isinstance(state.cache, DynamicCache) or any(
            type(layer) is not DynamicLayer for layer in state.cache.layers
        ):
            return None
        rows, width = state.mask.shape
        key = rows, -(-(width + steps) // COLUMNS) * COLUMNS
        graph = self.graphs.pop(key, None) or DecodingGraph(
            self.model, *key, state.cache.layers[0].keys.dtype
        )
        graph.begin(state)
        self.graphs[key] = graph
        while len(self.graphs) > MAX_GRAPHS:
            self.graphs.popitem(last=False)
        return graph
