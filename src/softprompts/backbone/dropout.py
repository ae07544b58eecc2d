"""Dropout that depends only on a row's own seed and on the position of a number within the row.

So a row gets the same dropout alone or in any batch, however wide the batch is padded and however
many processes share it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from .modules import replaced_forwards

_STRIDES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)
_RATES = ("p", "dropout", "activation_dropout", "attention_dropout", "hidden_dropout")
"""Attributes under which transformers' modules keep their dropout rates."""


@contextmanager
def dropout_enabled(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in training mode with every dropout on; outside, in evaluation mode."""
    for module in model.modules():
        for name in _RATES:
            if isinstance(getattr(module, name, None), (int, float)):
                setattr(module, name, 0.5)  # any rate but 0: `RowDropout` applies the rows' own
        if hasattr(module, "layerdrop"):
            module.layerdrop = 0.0  # type: ignore[assignment]
    model.train()
    try:
        yield
    finally:
        model.eval()


class RowDropout(TorchFunctionMode):
    """Inside, every dropout of a model in training uses the rows' `rates` [B] and `seeds` [B].

    The first dimension of a tensor is its rows.
    """

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
        """Eager attention, because the fused kernels draw their own dropout."""
        if enable_gqa:
            key, value = (
                part.repeat_interleave(query.shape[1] // part.shape[1], dim=1)
                for part in (key, value)
            )
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        scores = query @ key.transpose(-2, -1) * scale
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        lowest = torch.finfo(scores.dtype).min  # not -inf: a pad may attend to nothing
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, lowest)
        elif attn_mask is not None:
            scores = (scores + attn_mask).clamp(min=lowest)
        return self.drop(scores.softmax(-1)) @ value

    def drop(self, states: Tensor) -> Tensor:
        """Drop numbers of every row and scale up the rest.

        What all rows share (DeBERTa's distances) is left as it is.
        """
        self.calls += 1
        if states.dim() < 3:
            return states
        heads = states.shape[0] // len(self.seeds)  # models may fold heads into the rows
        seeds, rates = (
            (part.repeat_interleave(heads) if heads > 1 else part).to(states.device)
            for part in (self.seeds, self.rates)
        )
        head = torch.arange(len(seeds), device=states.device) % heads
        seeds = seeds + (self.calls * _STRIDES[3] & 0xFFFFFFFF) + head * _STRIDES[0]
        noise = row_uniforms(seeds, states.shape[1:])
        rates = rates.view(-1, *[1] * (states.dim() - 1))
        return states * ((noise >= rates) / (1 - rates)).to(states.dtype)


def row_uniforms(seeds: Tensor, shape: Sequence[int]) -> Tensor:
    """Uniform numbers in [0, 1) for every position of `shape` in every row: [B] -> [B, *shape]."""
    hashed = _hash(seeds)
    for size, stride in zip(shape, _STRIDES, strict=False):
        positions = torch.arange(size, device=seeds.device) * stride
        hashed = _hash(hashed.unsqueeze(-1) + positions)
    return hashed.to(torch.float32) * 2.0**-32


def _hash(number: Tensor) -> Tensor:
    """A 32-bit integer hash, computed in 64 bits so that shifts are unsigned."""
    number = number & 0xFFFFFFFF
    number = ((number ^ (number >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    number = ((number ^ (number >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return number ^ (number >> 16)


def recompute_activations(
    layers: Sequence[nn.Module], dropout: RowDropout | None = None
) -> AbstractContextManager[None]:
    """Inside, layers keep no activations: the backward pass recomputes them, dropout included."""

    def checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(calls: int, *args: Any, **kwargs: Any) -> Any:
            if dropout is None:
                return forward(*args, **kwargs)
            dropout.calls = calls
            with dropout:  # the backward pass runs outside of it
                return forward(*args, **kwargs)

        return lambda *args, **kwargs: checkpoint(
            run,
            dropout.calls if dropout else 0,
            *args,
            use_reentrant=False,
            preserve_rng_state=False,
            **kwargs,
        )

    return replaced_forwards([(layer, checkpointed(layer.forward)) for layer in layers])
