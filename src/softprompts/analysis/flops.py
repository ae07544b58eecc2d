"""Floating-point operations of a transformer, from the sizes of its matrices.

FORMULA states the rules. They count products of matrices, as torch's FlopCounterMode does, with
which tests compare them: not norms, activations or look-ups.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from torch import nn
from transformers.pytorch_utils import Conv1D

from ..backbone.modules import transformer_layers

FORMULA = (
    "For a row of L tokens (prompt and text) and N target tokens: 2 operations for every weight of "
    "every matrix that a token passes, and 4 a q k for the attention of q queries to k keys in "
    "each layer (a: heads times their size). An encoder's tokens are the L, a decoder's the N, "
    "whose cross-attention has L keys; a decoder-only model has L + N. The output layer reads N. "
    "A training step adds the same again for frozen matrices (gradients of their inputs), twice as "
    "much for trained ones and for attention; the first decoder layer's self-attention and queries "
    "need no gradient under a frozen model. An answer is N tokens, generated greedily with a cache "
    "of keys and values. A route adds 2 K H + 2 K P H for a row, a shape 2 operations for every "
    "weight and prompt token of a step; both thrice in training."
)
KEYS_AND_VALUES = ("k", "v", "k_proj", "v_proj", "key", "value")
CROSS_ATTENTION = ("EncDecAttention", "encoder_attn", "crossattention")


class Work(NamedTuple):
    """Operations of a forward pass."""

    matrices: float
    """Products with weights."""
    attention: float
    """Products of activations."""

    @property
    def total(self) -> float:
        return self.matrices + self.attention


@dataclass(frozen=True)
class Architecture:
    """What the formula needs of a model: its weights in matrices, and its attention's width."""

    family: str
    width: int
    heads: int
    attention: int
    """The heads times their size, a."""
    layers: int
    """Of the encoder, or of the only stack."""
    layer_weights: int
    """In all these layers."""
    head_weights: int
    """After the last layer."""
    decoder_layers: int = 0
    decoder_weights: int = 0
    """In all layers of an encoder-decoder's decoder, but for the next two."""
    cross_weights: int = 0
    """Keys and values of the cross-attention, which the encoder's tokens pass."""
    ungraded_weights: int = 0
    """Part of `decoder_weights`: the first layer's, before any state that a prompt influences."""

    @classmethod
    def of(cls, model: Any, family: str) -> Self:
        """The architecture of a Hugging Face model, which may be on the meta device."""
        config = model.config if model.config.is_encoder_decoder else model.config.get_text_config()
        heads, width = config.num_attention_heads, config.hidden_size
        size = getattr(config, "d_kv", None) or getattr(config, "head_dim", None) or width // heads
        layers, decoder = transformer_layers(model), list[nn.Module]()
        if family == "encoder-decoder":
            decoder = transformer_layers(model.get_decoder())
            layers = transformer_layers(model.get_encoder())
        inside = {id(part) for layer in (*layers, *decoder) for part in layer.modules()}
        outside = [part for part in model.modules() if id(part) not in inside]
        cross = [_split_cross(layer) for layer in decoder]
        cross_weights = sum(keys_and_values for keys_and_values, _ in cross)
        return cls(
            family=family,
            width=width,
            heads=heads,
            attention=heads * size,
            layers=len(layers),
            layer_weights=sum(_weights(layer.modules()) for layer in layers),
            head_weights=_weights(outside),
            decoder_layers=len(decoder),
            decoder_weights=sum(_weights(layer.modules()) for layer in decoder) - cross_weights,
            cross_weights=cross_weights,
            ungraded_weights=cross[0][1] if cross else 0,
        )

    def forward(self, length: int, target: int) -> Work:
        """For a row of `length` tokens, prompt included, and `target` ones."""
        return self._work(length, target, length + target, (length + target) ** 2, target**2)

    def answer(self, length: int, target: int) -> Work:
        """Generating `target` tokens greedily after `length` ones, with a cache; an encoder-only
        model fills one mask."""
        further = target - 1  # the first is read off the prompt and text
        pairs = length**2 + further * length + further * target // 2
        return self._work(length, target, length + further, pairs, target * (target + 1) // 2)

    def step(self, length: int, target: int, trains_model: bool = False) -> float:
        """Forward and backward, through a frozen model or also to its weights."""
        matrices, attention = self.forward(length, target)
        if trains_model:
            return 3 * (matrices + attention)
        skipped = 2 * target * self.ungraded_weights
        if self.decoder_layers:
            skipped += self.attention * (8 * target**2 + 2 * target * length)
        return 2 * matrices + 3 * attention - skipped

    def _work(self, length: int, target: int, row: int, row_pairs: int, target_pairs: int) -> Work:
        """`row` and `row_pairs`: tokens of a decoder-only row, and its pairs of query and key;
        `target_pairs`: those of a decoder's self-attention."""
        tokens, pairs = length, self.layers * length**2
        if self.family == "decoder-only":
            tokens, pairs = row, self.layers * row_pairs
        pairs += self.decoder_layers * (target_pairs + target * length)
        matrices = (
            tokens * self.layer_weights
            + length * self.cross_weights
            + target * (self.decoder_weights + self.head_weights)
        )
        return Work(2 * matrices, 4 * self.attention * pairs)


def _split_cross(layer: nn.Module) -> tuple[int, int]:
    """Of a decoder layer: the weights of the cross-attention's keys and values; those of the
    self-attention and of the cross-attention's queries."""
    keys_and_values = before = 0
    for name, module in layer.named_modules():
        leaf, weights = name.rpartition(".")[2], _weights([module])
        if not any(part in name for part in CROSS_ATTENTION):
            before += weights if "attn" in name.lower() or "SelfAttention" in name else 0
        elif leaf in KEYS_AND_VALUES:
            keys_and_values += weights
        elif leaf in ("q", "q_proj", "query"):
            before += weights
    return keys_and_values, before


def _weights(modules: Iterable[nn.Module]) -> int:
    """Weights in matrices, without biases."""
    return sum(part.weight.numel() for part in modules if isinstance(part, nn.Linear | Conv1D))
