"""Dropout that counts instead of drawing: what a row loses depends on its own seed and on where a number stands in it, on nothing else.

So a row meets the same dropout alone or beside a thousand others, however wide the batch is padded and however many processes share it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

_STRIDES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)


class Counted(TorchFunctionMode):
    """Inside, every dropout of a model in training drops by the rows' `rates` [B] and `seeds` [B]; rows are a tensor's first side."""

    def __init__(self, rates: Tensor, seeds: Tensor) -> None:
        super().__init__()
        self.rates, self.seeds = rates, seeds
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.dropout:
            return self._dropout(*args, **kwargs)
        if func is nn.functional.scaled_dot_product_attention and kwargs.get("dropout_p"):
            return self._attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _dropout(
        self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        return self.drop(input) if training and p else input

    def _attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Attention written out, since the fused one draws for itself."""
        if enable_gqa:
            key, value = (
                part.repeat_interleave(query.shape[1] // part.shape[1], dim=1)
                for part in (key, value)
            )
        scores = (
            query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
        )
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None:
            scores = (
                scores.masked_fill(~attn_mask, float("-inf"))
                if attn_mask.dtype == torch.bool
                else scores + attn_mask
            )
        return self.drop(scores.softmax(-1)) @ value

    def drop(self, states: Tensor) -> Tensor:
        """Some numbers of every row gone, the rest scaled up for them; what all rows share (DeBERTa's distances) stays whole."""
        self.calls += 1
        if states.dim() < 3:
            return states
        many = states.shape[0] // len(self.seeds)  # heads may have been folded into the rows
        seeds, rates = (
            part.repeat_interleave(many) if many > 1 else part for part in (self.seeds, self.rates)
        )
        within = torch.arange(len(seeds), device=states.device) % many
        chance = chances(
            seeds + _wrapped(self.calls * _STRIDES[3]) + within * _wrapped(_STRIDES[0]),
            states.shape[1:],
        )
        rates = rates.view(-1, *[1] * (states.dim() - 1))
        return states * ((chance >= rates) / (1 - rates)).to(states.dtype)


def chances(seeds: Tensor, shape: Sequence[int]) -> Tensor:
    """Numbers from 0 to 1 for every place of `shape` in every row: [B] -> [B, *shape]."""
    mixed = _mixed(seeds)
    for side, stride in zip(shape, _STRIDES, strict=False):
        mixed = _mixed(
            mixed.unsqueeze(-1) + torch.arange(side, device=seeds.device) * _wrapped(stride)
        )
    return mixed.to(torch.float32) * 2.0**-32


def _mixed(number: Tensor) -> Tensor:
    """Every bit of a 32-bit number stirred into every other; held in 64 bits, so that shifts bring no sign along."""
    number = number & 0xFFFFFFFF
    number = ((number ^ (number >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    number = ((number ^ (number >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return number ^ (number >> 16)


def _wrapped(number: int) -> int:
    return number & 0xFFFFFFFF


@contextmanager
def recomputed(blocks: Sequence[nn.Module], counted: Counted | None = None) -> Iterator[None]:
    """Inside, no block keeps what it computed: the backward pass computes it again, with the same dropout."""

    def again(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(calls: int, *args: Any, **kwargs: Any) -> Any:
            if counted is None:
                return forward(*args, **kwargs)
            counted.calls = calls
            with counted:  # the backward pass has left it
                return forward(*args, **kwargs)

        return lambda *args, **kwargs: checkpoint(
            run,
            counted.calls if counted else 0,
            *args,
            use_reentrant=False,
            preserve_rng_state=False,
            **kwargs,
        )

    for block in blocks:
        block.forward = again(block.forward)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
