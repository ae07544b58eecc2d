"""Frozen models on a CPU: matrix products by oneDNN, and gated GELUs and attention in few passes
over memory. The numbers are the same, up to rounding.

Shape letters: N packed positions, L columns, G rows of a group, D numbers of a head, F numbers of
a feed-forward layer; the others as in `backbone.py`.
"""

import math
import platform
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from .layout import Layout

MIN_WIDTH = 192
"""Rows and columns of a matrix below which oneDNN does not pay off."""
MAX_PACKED = 2**25
"""Numbers in the matrices of a model up to which two copies of them are kept, for oneDNN."""
MAX_COLUMNS = 128
"""Columns of a row up to which the weights of its attention are kept for the backward pass."""
HAS_ONEDNN = (
    platform.machine() in ("x86_64", "AMD64")
    and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
)

Forward = Callable[[Tensor], Tensor]


# -- modules ---------------------------------------------------------------------------------------


def fast_forwards(model: nn.Module) -> list[tuple[nn.Module, Forward]]:
    """Modules of a frozen model in fp32 on a CPU, each with a faster forward function."""
    linears = [module for module in model.modules() if type(module) is nn.Linear and _fits(module)]
    gated = [module for module in model.modules() if linears and _is_gated_gelu(module)]
    packed = sum(module.weight.numel() for module in linears) <= MAX_PACKED
    return [
        *((module, frozen_linear(module, packed)) for module in linears),
        *((module, partial(gated_gelu, module)) for module in gated),
    ]


def _fits(module: nn.Linear) -> bool:
    """Whether a linear layer is wide, frozen, in fp32 on a CPU that has oneDNN, and as torch made
    it."""
    weight = module.weight
    on_cpu = weight.device.type == "cpu" and weight.dtype == torch.float32
    plain = not weight.requires_grad and "forward" not in vars(module)
    return HAS_ONEDNN and on_cpu and plain and min(weight.shape) >= MIN_WIDTH


def frozen_linear(module: nn.Linear, packed: bool) -> Forward:
    """[..., H] -> [..., F] by oneDNN, which is faster than MKL on some CPUs. `packed` copies the
    matrix and its transpose into the order that oneDNN reads them in."""
    weight = module.weight.detach()
    matrices = [weight, weight.t()]
    if packed:
        matrices = [torch.ops.mkldnn._reorder_linear_weight(matrix) for matrix in matrices]
    return lambda states: cast(Tensor, _Linear.apply(states, *matrices, module.bias))  # type: ignore[no-untyped-call]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, transposed: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.transposed = transposed
        return _product(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _product(gradient[0], ctx.transposed), None, None, None


def _product(states: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    return cast(Tensor, torch.ops.mkldnn._linear_pointwise(states, matrix, bias, "none", [], ""))


def _is_gated_gelu(module: Any) -> bool:
    """Whether it is T5's feed-forward layer with the tanh approximation of GELU."""
    activation = getattr(module, "act", None)
    return (
        hasattr(module, "wi_1") and type(activation) is nn.GELU and activation.approximate == "tanh"
    )


def gated_gelu(module: Any, states: Tensor) -> Tensor:
    """[..., H] -> [..., H]."""
    product = _GatedGelu.apply(module.wi_0(states), module.wi_1(states))  # type: ignore[no-untyped-call]
    return cast(Tensor, module.wo(product))


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
        y = (states * states).mul_(CUBE * SLOPE).add_(SLOPE).mul_(states)
        sigmoid = y.sigmoid()
        y.mul_(3).sub_(states, alpha=2 * SLOPE)
        derivative = torch.ops.aten.sigmoid_backward(y, sigmoid).add_(sigmoid)
        activated = sigmoid.mul_(states)
        ctx.save_for_backward(derivative.mul_(gate), activated)
        return torch.mul(activated, gate, out=y)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, Tensor]:
        by_states, by_gate = ctx.saved_tensors
        return gradient[0] * by_states, gradient[0] * by_gate


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
