"""Frozen models on a CPU: matrix products by oneDNN, and gated GELUs and attention in few passes
over memory. The numbers are the same, up to rounding.

Shape letters: N packed positions, L columns, G rows of a group, D numbers of a head, F numbers of
a feed-forward layer; the others as in `backbone.py`.
"""

import math
import platform
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.pytorch_utils import Conv1D

from .layout import Layout

MIN_WIDTH = 192
"""Rows and columns of a matrix below which oneDNN does not pay off."""
MAX_PACKED = 150_000_000
"""Numbers in the matrices of a model up to which copies in oneDNN's order are kept; few rows at a
time, as in decoding, gain most from it."""
MAX_PACKED_TRANSPOSES = 2**25
"""The same for the transposed matrices, which gradients need."""
MAX_COLUMNS = 128
"""Columns of a row up to which the weights of its attention are kept for the backward pass."""
HAS_ONEDNN = (
    platform.machine() in ("x86_64", "AMD64")
    and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
)


# -- modules ---------------------------------------------------------------------------------------


def speed_up(model: nn.Module) -> None:
    """Give wide matrices of a frozen model in fp32 on a CPU, and gated GELUs, faster classes. They
    act as before once the model is trained, moved or converted."""
    matrices = [module for module in model.modules() if _is_wide_matrix(module)]
    size = sum(_weight(module).numel() for module in matrices)
    for module in matrices:
        module.__class__ = FASTER[type(module)]
        cast(OneDnn, module).packs = size <= MAX_PACKED, size <= MAX_PACKED_TRANSPOSES
    for module in list(model.modules()) if matrices else ():
        if _is_gated_gelu(module) and not isinstance(module, GatedGelu):
            module.__class__ = _faster_gated_gelu(cast(Any, type(module)))


def slow_down(model: nn.Module) -> None:
    """Undo `speed_up`."""
    for module in model.modules():
        if isinstance(module, OneDnn | GatedGelu):
            for name in ("packs", "_copies"):
                module.__dict__.pop(name, None)
            module.__class__ = type(module).__bases__[1]


def _weight(module: nn.Module) -> Tensor:
    return cast(Tensor, module.weight)


def _is_wide_matrix(module: nn.Module) -> bool:
    """Whether it is a wide layer of a kind that oneDNN speeds up, and as torch made it."""
    if not HAS_ONEDNN or type(module) not in FASTER or "forward" in vars(module):
        return False
    return _by_onednn(_weight(module)) and min(_weight(module).shape) >= MIN_WIDTH


def _by_onednn(weight: Tensor) -> bool:
    frozen_in_fp32 = weight.dtype == torch.float32 and not weight.requires_grad
    return frozen_in_fp32 and weight.device.type == "cpu"


class OneDnn(nn.Module):
    """[..., H] -> [..., F] by oneDNN, which is faster than MKL on some CPUs."""

    weight: Any
    bias: Any
    packs: tuple[bool, bool]
    """Whether copies of the matrix, and of its transpose, are kept in oneDNN's order."""

    def matrix(self) -> Tensor:
        """[F, H]."""
        return cast(Tensor, self.weight)

    def forward(self, states: Tensor) -> Tensor:
        if not _by_onednn(self.weight):
            self.__dict__.pop("_copies", None)
            return cast(Tensor, super().forward(states))
        if states.dtype != torch.float32 or not states.numel():
            return cast(Tensor, super().forward(states))
        if torch.is_grad_enabled() and states.requires_grad:
            return cast(Tensor, _Linear.apply(states, self))  # type: ignore[no-untyped-call]
        return self.product(states)

    def product(self, states: Tensor) -> Tensor:
        matrix = self._packed("matrix", self.matrix()) if self.packs[0] else self.matrix()
        return _product(states, matrix, self.bias)

    def gradient(self, upstream: Tensor) -> Tensor:
        """[..., F] -> [..., H]."""
        matrix = self.matrix().t()
        return _product(upstream, self._packed("transpose", matrix) if self.packs[1] else matrix)

    def _packed(self, name: str, matrix: Tensor) -> Tensor:
        """A copy of a matrix in oneDNN's order, made when it is first needed."""
        key = self.weight.data_ptr(), self.weight._version
        copies: dict[str, Any] = self.__dict__.setdefault("_copies", {})
        if copies.get(name, (None,))[0] != key:
            copies[name] = key, torch.ops.mkldnn._reorder_linear_weight(matrix.detach())
        return cast(Tensor, copies[name][1])

    def __getstate__(self) -> dict[str, Any]:
        """For copies of the layer: without those of its matrix, which cannot be copied."""
        return {name: value for name, value in vars(self).items() if name != "_copies"}


class OneDnnLinear(OneDnn, nn.Linear):
    """torch's linear layer."""


class OneDnnConv1D(OneDnn, Conv1D):  # type: ignore[misc]
    """GPT-2's linear layer, whose matrix is [H, F]."""

    def matrix(self) -> Tensor:
        return cast(Tensor, self.weight.t())


FASTER: dict[type[nn.Module], type[OneDnn]] = {nn.Linear: OneDnnLinear, Conv1D: OneDnnConv1D}


class _Linear(torch.autograd.Function):
    """Keeps neither the input nor another reference to the matrix."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, layer: OneDnn) -> Tensor:
        ctx.layer = layer
        return layer.product(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.layer.gradient(gradient[0]), None


def linear(states: Tensor, matrix: Tensor) -> Tensor:
    """[..., H] and [F, H] -> [..., F], by oneDNN if it fits."""
    fits = HAS_ONEDNN and matrix.device.type == "cpu" and matrix.dtype == torch.float32
    if fits and states.dtype == torch.float32 and states.numel():
        return _product(states, matrix)
    return nn.functional.linear(states, matrix)


def _product(states: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(states, matrix, bias, "none", [], ""))


def _is_gated_gelu(module: Any) -> bool:
    """Whether it is T5's feed-forward layer with the tanh approximation of GELU."""
    activation = getattr(module, "act", None)
    return (
        hasattr(module, "wi_1") and type(activation) is nn.GELU and activation.approximate == "tanh"
    )


class GatedGelu(nn.Module):
    """[..., H] -> [..., H]."""

    wi_0: nn.Module
    wi_1: nn.Module
    wo: nn.Module

    def forward(self, states: Tensor) -> Tensor:
        if self.training or states.device.type != "cpu" or states.dtype != torch.float32:
            return cast(Tensor, super().forward(states))
        hidden, gate = self.wi_0(states), self.wi_1(states)
        if torch.is_grad_enabled() and hidden.requires_grad:
            product = _GatedGelu.apply(hidden, gate)  # type: ignore[no-untyped-call]
        else:
            product = _sigmoid_argument(hidden).sigmoid_().mul_(hidden).mul_(gate)
        return cast(Tensor, self.wo(product))

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle, which finds no class by the name of this one."""
        return _new_gated_gelu, (type(self).__bases__[1],), vars(self)


@cache
def _faster_gated_gelu(original: type[nn.Module]) -> type[GatedGelu]:
    """Models each have a class of their own for it."""
    return type(f"Faster{original.__name__}", (GatedGelu, original), {})


def _new_gated_gelu(original: Any) -> GatedGelu:
    faster = _faster_gated_gelu(original)
    return faster.__new__(faster)


CUBE = 0.044715
SLOPE = 2 * math.sqrt(2 / math.pi)


class _GatedGelu(torch.autograd.Function):
    """gelu(x) gate: [..., F] each -> [..., F].

    The tanh approximation of gelu(x) is x s(y), where s is the sigmoid and y = SLOPE (x + CUBE
    x^3). Its derivative is s + s (1 - s) (3 y - 2 SLOPE x). Torch computes tanh in the forward and
    in the backward pass, each time for longer than one sigmoid takes.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, gate: Tensor) -> Tensor:
        y = _sigmoid_argument(states)
        sigmoid = y.sigmoid()
        y.mul_(3).sub_(states, alpha=2 * SLOPE)
        derivative = torch.ops.aten.sigmoid_backward(y, sigmoid).add_(sigmoid)
        activated = sigmoid.mul_(states)
        ctx.save_for_backward(derivative.mul_(gate), activated)
        return torch.mul(activated, gate, out=y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, Tensor]:
        by_states, by_gate = ctx.saved_tensors
        return gradient[0] * by_states, gradient[0] * by_gate


def _sigmoid_argument(states: Tensor) -> Tensor:
    """SLOPE (x + CUBE x^3)."""
    return (states * states).mul_(CUBE * SLOPE).add_(SLOPE).mul_(states)


# -- attention -------------------------------------------------------------------------------------


class Cells(NamedTuple):
    """Where the heads of packed rows are in groups of padded rows, each [G, heads, L], one after
    the other.

    columns: the position of each cell times the number of heads, plus its head
    positions: the cell of each position and head [N * heads]; the first for positions not used
    used: the number of positions that rows use, times the number of heads
    shapes: of the groups
    """

    columns: Tensor
    positions: Tensor
    used: int
    shapes: list[tuple[int, int, int]]


def attention_cells(layout: Layout, heads: int) -> Cells | None:
    """None if the weights of the attention are too many to keep."""
    if max(width for _, width in layout.groups) > MAX_COLUMNS:
        return None
    head, begin = torch.arange(heads), 0
    columns, cells = [], []
    parts = torch.split(layout.padded, [rows * width for rows, width in layout.groups])
    for padded, (rows, width) in zip(parts, layout.groups, strict=True):
        columns.append(padded.view(rows, 1, width) * heads + head[:, None])
        count = rows * heads * width
        cell = torch.arange(begin, begin + count).view(rows, heads, width)
        cells.append(cell.transpose(1, 2).reshape(rows * width, heads))
        begin += count
    return Cells(
        torch.cat([part.flatten() for part in columns]),
        torch.cat(cells)[layout.inverse].flatten(),
        layout.used * heads,
        [(rows, heads, width) for rows, width in layout.groups],
    )


def attention(
    inputs: Sequence[Tensor], cells: Cells, biases: Sequence[Tensor], scaling: float
) -> Tensor:
    """Each row attends to itself alone: queries, keys and values [N, heads, D], a bias [G, heads,
    L, L] for each group -> [N, heads, D]."""
    return cast(Tensor, _Attention.apply(cells, biases, scaling, *inputs))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    """Keeps the weights, so that they are not computed again; biases have no gradient."""

    @staticmethod
    def forward(
        ctx: Any, cells: Cells, biases: Sequence[Tensor], scaling: float, *packed: Tensor
    ) -> Tensor:
        inputs = [part.reshape(-1, part.shape[2]).index_select(0, cells.columns) for part in packed]
        output, weights = torch.empty_like(inputs[2]), []
        groups = zip(*(_groups(part, cells) for part in (*inputs, output)), biases, strict=True)
        for q, k, v, attended, bias in groups:
            scores = torch.baddbmm(bias.flatten(0, 1), q, k.transpose(1, 2), alpha=scaling)
            weights.append(scores.softmax(-1))
            torch.bmm(weights[-1], v, out=attended)
        ctx.save_for_backward(*inputs, *weights)
        ctx.cells, ctx.scaling = cells, scaling
        return output.index_select(0, cells.positions).view_as(packed[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved: Sequence[Tensor] = ctx.saved_tensors
        inputs, weights, cells = saved[:3], saved[3:], ctx.cells
        by_output = torch.zeros_like(inputs[2])
        by_position = gradient[0].reshape(-1, by_output.shape[1])[: cells.used]
        by_output.index_copy_(0, cells.positions[: cells.used], by_position)
        gradients = [torch.empty_like(part) for part in inputs]
        parts = (_groups(part, cells) for part in (*inputs, by_output, *gradients))
        for q, k, v, by_attended, by_q, by_k, by_v, weight in zip(*parts, weights, strict=True):
            torch.bmm(weight.transpose(1, 2), by_attended, out=by_v)
            by_weight = torch.bmm(by_attended, v.transpose(1, 2))
            by_score = torch._softmax_backward_data(by_weight, weight, -1, weight.dtype)
            by_score.mul_(ctx.scaling)
            torch.bmm(by_score, k, out=by_q)
            torch.bmm(by_score.transpose(1, 2), q, out=by_k)
        packed = (part.index_select(0, cells.positions) for part in gradients)
        return None, None, None, *(part.view_as(gradient[0]) for part in packed)


def _groups(columns: Tensor, cells: Cells) -> list[Tensor]:
    """[cells, D] -> [G * heads, L, D] for each group."""
    parts = torch.split(columns, [math.prod(shape) for shape in cells.shapes])
    return [
        part.view(rows * heads, width, -1)
        for part, (rows, heads, width) in zip(parts, cells.shapes, strict=True)
    ]
