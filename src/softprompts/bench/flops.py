"""How many floating-point operations a T5 needs, counted from its tokens without pads.

FORMULA says it in words. Work that an implementation does beyond it (pads, keys and values of the decoder's attention where a few target
tokens can do without, activations computed again) does not count as achieved.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

FORMULA = (
    "Of each row with L encoder tokens (prompt and text, no pads) and n target tokens: 2 operations for every weight of every matrix that "
    "a token goes through (encoder: q, k, v, o and feed-forward for L; decoder: the same and the cross-attention's q and o for n; the head "
    "for n), 4 L L a for each encoder layer's and 4 n n a for each decoder layer's attention (a: heads times their size), and for each "
    "cross-attention the cheaper of making keys and values (4 L d a + 4 n L a) and of carrying the queries to the states (4 n d a + "
    "4 n L d heads). Backward by inputs only: a frozen matrix once more, a product of two activations twice more."
)


class Flops(NamedTuple):
    """Operations of a forward pass, and of a training step: forward, and backward by inputs only."""

    forward: float
    step: float


def t5_flops(config: Any, sources: Sequence[int], targets: Sequence[int]) -> Flops:
    """Of rows with so many encoder tokens, prompt included, and target tokens."""
    width, heads = config.d_model, config.num_heads
    inner = heads * config.d_kv
    attention = 4 * width * inner
    feed = (3 if config.is_gated_act else 2) * width * config.d_ff
    frozen = products = 0.0
    for source, target in zip(sources, targets, strict=True):
        frozen += 2 * source * config.num_layers * (attention + feed)
        products += 4 * source**2 * inner * config.num_layers
        by_keys = (4 * source * width * inner, 4 * target * source * inner)
        by_queries = (4 * target * width * inner, 4 * target * source * width * heads)
        cross = min(by_keys, by_queries, key=sum)
        frozen += config.num_decoder_layers * (
            2 * target * (attention + feed + 2 * width * inner) + cross[0]
        )
        products += config.num_decoder_layers * (4 * target**2 * inner + cross[1])
        frozen += 2 * target * width * config.vocab_size
    return Flops(frozen + products, 2 * frozen + 3 * products)
