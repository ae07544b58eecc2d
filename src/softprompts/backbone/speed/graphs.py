"""Steps recorded as CUDA graphs, so that kernels are not launched one by one.

A step is recorded once for the sizes of its inputs and replayed.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

MAX_GRAPHS = 64
"""Recorded steps to keep; they share their memory."""

Step = Callable[..., tuple[Tensor, ...]]
"""From tensors to tensors."""


class StepGraphs:
    """The recorded steps of a model, by the sizes of their inputs."""

    def __init__(self, most: int = MAX_GRAPHS) -> None:
        self.most = most
        self.graphs: OrderedDict[tuple[Any, ...], _Graph] = OrderedDict()
        self.buffers: dict[tuple[str, int, torch.dtype], Tensor] = {}
        """Inputs and outputs of all graphs, which share them: only one is replayed at a time."""
        self.recorded = 0  # steps so far, discarded ones included
        self.seconds = 0.0  # that compiling and recording them took

    def __call__(
        self, step: Step, inputs: Sequence[Tensor], kind: object = None
    ) -> tuple[Tensor, ...]:
        """`step(*inputs)`, by the graph for these sizes, which is recorded if there is none.

        Steps that differ in more than their inputs differ in `kind`.
        """
        key = (kind, *(tensor.shape for tensor in inputs))
        if key not in self.graphs:
            began = time.monotonic()
            pool = next(iter(self.graphs.values())).graph.pool() if self.graphs else None
            self.graphs[key] = _Graph(step, inputs, self, pool)
            self.recorded += 1
            self.seconds += time.monotonic() - began
        self.graphs.move_to_end(key)
        if len(self.graphs) > self.most:
            self.graphs.popitem(last=False)
        return self.graphs[key](inputs)

    def clear(self) -> None:
        """Discard all graphs, and the memory they share."""
        self.graphs.clear()
        self.buffers.clear()

    @cached_property
    def stream(self) -> Any:
        """The stream for recording: one for all graphs, because cuBLAS keeps memory for each."""
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def buffers_like(self, purpose: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Buffers of the same shapes; their sizes grow to the next power of two."""
        return [
            self._buffer((purpose, index, tensor.dtype), tensor)[: tensor.numel()].view(
                tensor.shape
            )
            for index, tensor in enumerate(tensors)
        ]

    def _buffer(self, key: tuple[str, int, torch.dtype], tensor: Tensor) -> Tensor:
        if key not in self.buffers or len(self.buffers[key]) < tensor.numel():
            self.buffers[key] = tensor.new_empty(1 << max(0, tensor.numel() - 1).bit_length())
        return self.buffers[key]


class _Graph:
    """One recorded step; inputs are copied in before its replay, outputs are copied out after."""

    def __init__(self, step: Step, inputs: Sequence[Tensor], graphs: StepGraphs, pool: Any) -> None:
        self.inputs = graphs.buffers_like("inputs", inputs)
        torch._foreach_copy_(self.inputs, list(inputs))
        stream = graphs.stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2 if pool is None else 1):
                outputs = step(*self.inputs)
        torch.cuda.current_stream().wait_stream(stream)
        self.outputs = graphs.buffers_like("outputs", outputs)
        del outputs
        torch.cuda.empty_cache()  # of the warm-up; the graph has a pool of its own
        self.graph = torch.cuda.CUDAGraph()
        # what other threads do to the GPU meanwhile is no part of the step
        with torch.cuda.graph(
            self.graph, pool=pool, stream=stream, capture_error_mode="thread_local"
        ):
            torch._foreach_copy_(self.outputs, list(step(*self.inputs)))

    def __call__(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        torch._foreach_copy_(self.inputs, list(inputs))
        self.graph.replay()
        return tuple(tensor.clone() for tensor in self.outputs)
