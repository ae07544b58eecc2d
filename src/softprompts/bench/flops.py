"""Floating-point operations of a T5, counted from its tokens without pads.

FORMULA states the rules. Work beyond them (pads, keys and values of the cross-attention where a few
target tokens need none, recomputed activations) does not count as achieved.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

FORMULA = (
    "For each row with L encoder tokens (prompt and text, no pads) and n target tokens: 2 "
    "operations for every weight of every matrix that a token passes (encoder: q, k, v, o and "
    "feed-forward for L; decoder: the same, and q and o of the cross-attention, for n; the head "
    "for n), 4 L L a for each encoder layer's and 4 n n a for each decoder layer's attention (a: "
    "number of heads times their size), and for each cross-attention the cheaper of computing keys "
    "and values (4 L d a + 4 n L a) and of projecting the queries onto the states (4 n d a + "
    "4 n L d heads). Backward through inputs only: a frozen matrix once more, a product of two "
    "activations twice more."
)


class Flops(NamedTuple):
    """Operations of a forward pass, and of a training step with its backward through inputs."""

    forward: float
    step: float


def t5_flops(config: Any, inputs: Sequence[int], targets: Sequence[int]) -> Flops:
    """For rows with these numbers of encoder tokens, prompt included, and of target tokens."""
    width, heads = config.d_model, config.num_heads
    inner = heads * config.d_kv
    attention = 4 * width * inner
    feed_forward = (3 if config.is_gated_act else 2) * width * config.d_ff
    frozen = products = 0.0
    for source, target in zip(inputs, targets, strict=True):
        frozen += 2 * source * config.num_layers * (attention + feed_forward)
        products += 4 * source**2 * inner * config.num_layers
        by_keys = (4 * source * width * inner, 4 * target * source * inner)
        by_queries = (4 * target * width * inner, 4 * target * source * width * heads)
        cross = min(by_keys, by_queries, key=sum)
        frozen += config.num_decoder_layers * (
            2 * target * (attention + feed_forward + 2 * width * inner) + cross[0]
        )
        products += config.num_decoder_layers * (4 * target**2 * inner + cross[1])
        frozen += 2 * target * width * config.vocab_size
    return Flops(frozen + products, 2 * frozen + 3 * products)
