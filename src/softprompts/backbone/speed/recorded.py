"""Steps that are recorded once for their sizes and replayed, so that a GPU does not wait for its kernels to be launched one by one."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

GRAPHS = 64
"""Recorded steps that are kept; they share their memory."""

Step = Callable[..., tuple[Tensor, Tensor]]
"""From tensors to each row's loss and the gradient."""


class Recorded:
    """The recorded steps of a model, by the sizes of what they are given."""

    def __init__(self) -> None:
        self.graphs: OrderedDict[tuple[int, ...], _Graph] = OrderedDict()
        self.held = _Held()
        self.made = 0
        """Steps that were recorded so far, those that are gone again too."""

    def __call__(self, step: Step, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """What `step` makes of `given`, by the one that was recorded for these sizes; where there is none, `step` is recorded."""
        key = tuple(size for tensor in given for size in tensor.shape)
        if key not in self.graphs:
            pool = next(iter(self.graphs.values())).graph.pool() if self.graphs else None
            self.graphs[key] = _Graph(step, given, self.held, pool)
            self.made += 1
        self.graphs.move_to_end(key)
        if len(self.graphs) > GRAPHS:
            self.graphs.popitem(last=False)
        return self.graphs[key](given)

    def forget(self) -> None:
        """Give up all steps, and the memory they share."""
        self.graphs.clear()
        self.held.kept.clear()


class _Held:
    """Memory that recorded steps share, because one is replayed at a time: what they are given and what they made."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], Tensor] = {}

    @cached_property
    def beside(self) -> Any:
        """The stream that steps are recorded in."""
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def like(self, what: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Room for such tensors; where more is needed than there is, twice as much is taken."""
        return [
            self._room((what, place), tensor)[: tensor.numel()].view(tensor.shape)
            for place, tensor in enumerate(tensors)
        ]

    def _room(self, key: tuple[str, int], tensor: Tensor) -> Tensor:
        if key not in self.kept or len(self.kept[key]) < tensor.numel():
            self.kept[key] = tensor.new_empty(1 << (tensor.numel() - 1).bit_length())
        return self.kept[key]


class _Graph:
    """A step that was recorded once; to replay it, what it reads is copied in and what it made is copied out."""

    def __init__(self, step: Step, given: Sequence[Tensor], room: _Held, pool: Any) -> None:
        self.held = room.like("given", given)
        torch._foreach_copy_(self.held, list(given))
        beside = room.beside  # one for all, because cuBLAS keeps memory for every stream
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(2 if pool is None else 1):
                made = step(*self.held)
        torch.cuda.current_stream().wait_stream(beside)
        self.made = room.like("made", made)
        del made
        torch.cuda.empty_cache()  # what the steps before took; the recorded one has memory of its own
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=beside):
            torch._foreach_copy_(self.made, list(step(*self.held)))

    def __call__(self, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        torch._foreach_copy_(self.held, list(given))
        self.graph.replay()
        nll, gradient = (tensor.clone() for tensor in self.made)
        return nll, gradient
