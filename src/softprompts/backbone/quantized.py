"""Frozen weights in 8 or 4 bits: a model that is only read needs no exact weights.

Matrices of the layers are stored as integers with scales, and are multiplied in the precision of
their inputs: each is restored where it is used, in the forward pass and again in the backward pass,
and never kept. Embeddings, norms, biases and the output layer stay as they are. Written by hand
because it is short, and works on CPUs and GPUs, in cohorts and in recorded steps, without another
package.

Shape letters: O output and I input numbers of a matrix, G groups of a row.
"""

from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from ..errors import UserError, setting
from .modules import transformer_layers
from .speed import cpu

Bits = Literal[4, 8]
QUANTIZED: dict[str, Bits] = {"int8": 8, "int4": 4}
GROUP = 64  # numbers that share a scale in 4 bits


def quantize_model(model: Any, bits: Bits, device: torch.device) -> Any:
    """Replace the matrices of all layers in place, one at a time on `device`."""
    check_matrices(model)
    for layer in transformer_layers(model):
        for module in list(layer.modules()):
            for name, child in module.named_children():
                if isinstance(child, (nn.Linear, Conv1D)):
                    setattr(module, name, QuantizedLinear(child, bits, device))
    return model


def check_matrices(model: Any) -> None:
    """Refuse a model that would stay almost as large: many store their experts in one tensor."""
    modules = [part for layer in transformer_layers(model) for part in layer.modules()]
    sizes = [(part, p.numel()) for part in modules for p in part.parameters(recurse=False)]
    exact = sum(size for part, size in sizes if not isinstance(part, (nn.Linear, Conv1D)))
    if exact > sum(size for _, size in sizes) / 5:
        raise UserError(
            f"Many weights of {model.config.model_type} models are not plain matrices (experts, "
            f"for example) and cannot be quantised; set {setting('dtype')} to bf16 or fp32."
        )


class QuantizedLinear(nn.Module):
    """[..., I] -> [..., O], like the layer it was made from."""

    integers: Tensor
    scale: Tensor
    levels: Tensor | None
    bias: Tensor | None

    def __init__(self, layer: nn.Linear | Conv1D, bits: Bits, device: torch.device) -> None:
        super().__init__()
        matrix = layer.weight.detach().to(device)
        if isinstance(layer, Conv1D):
            matrix = matrix.T.contiguous()
        levels = four_bit_levels(device) if bits == 4 else None
        integers, scale = quantize(matrix, levels)
        self.columns = matrix.shape[1]
        self.register_buffer("integers", integers)
        self.register_buffer("scale", scale)
        self.register_buffer("levels", levels)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach())

    @property
    def weight(self) -> Tensor:
        """The matrix [O, I], for models that ask for it."""
        return restore(self.integers, self.scale, self.levels, self.scale.dtype, self.columns)

    def forward(self, states: Tensor) -> Tensor:
        product: Tensor = _Product.apply(states, self.integers, self.scale, self.levels)  # type: ignore[no-untyped-call]
        return product if self.bias is None else product + self.bias


class _Product(torch.autograd.Function):
    """states @ matrix^T; keeps the integers, not the matrix."""

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, integers: Tensor, scale: Tensor, levels: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(integers, scale, levels)
        ctx.columns = states.shape[-1]
        return cpu.linear(states, restore(integers, scale, levels, states.dtype, ctx.columns))

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None, None]:
        integers, scale, levels = ctx.saved_tensors
        matrix = restore(integers, scale, levels, gradient[0].dtype, ctx.columns)
        return cpu.linear(gradient[0], matrix.T), None, None, None


def quantize(matrix: Tensor, levels: Tensor | None) -> tuple[Tensor, Tensor]:
    """[O, I] -> integers and scales.

    8 bits: int8 [O, I], a scale for each row [O, 1]. 4 bits, with `levels`: two per byte
    [O, I / 2, rounded up], a scale for each group of a row [O, G].
    """
    if levels is None:
        scale = (matrix.float().abs().amax(1, keepdim=True) / 127).clamp(min=1e-12)
        return (matrix.float() / scale).round().to(torch.int8), scale.to(matrix.dtype)
    rows, columns = matrix.shape
    padded = nn.functional.pad(matrix.float(), (0, -columns % GROUP))
    groups = padded.view(rows, -1, GROUP)
    scale = groups.abs().amax(2, keepdim=True).clamp(min=1e-12)
    index = torch.bucketize(groups / scale, (levels[1:] + levels[:-1]) / 2)
    index = index.to(torch.uint8).view(rows, -1)[:, : columns + columns % 2]
    return index[:, 0::2] | (index[:, 1::2] << 4), scale.squeeze(2).to(matrix.dtype)


def restore(
    integers: Tensor, scale: Tensor, levels: Tensor | None, dtype: torch.dtype, columns: int
) -> Tensor:
    """The matrix [O, I] with its I `columns`, about as it was before `quantize`."""
    if levels is None:
        return integers.to(dtype) * scale.to(dtype)
    index = torch.stack([integers & 15, integers >> 4], dim=-1).flatten(1)[:, :columns]
    by_column = scale.to(dtype).repeat_interleave(GROUP, dim=1)[:, :columns]
    return levels.to(dtype)[index.int()] * by_column


@cache
def four_bit_levels(device: torch.device) -> Tensor:
    """The 16 values of 4 bits, from -1 to 1: quantiles of a normal distribution, with an exact 0
    (NF4; Dettmers 2023, QLoRA)."""
    last = 1 - (1 / 30 + 1 / 32) / 2
    above = torch.special.ndtri(torch.linspace(0.5, last, 9, dtype=torch.float64))
    below = -torch.special.ndtri(torch.linspace(0.5, last, 8, dtype=torch.float64))
    both = torch.cat([below.flip(0), above[1:]])
    return (both / both.abs().max()).float().to(device)
