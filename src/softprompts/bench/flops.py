"""Floating-point operations that a T5 needs for its tokens without pads.

FORMULA states the rules. Work beyond them (pads, keys and values of the cross-attention where a few
target tokens need none, recomputed activations) does not count as achieved.
"""

from collections.abc import Sequence
from typing import NamedTuple

from ..analysis.flops import Architecture
from ..backbone import Backbone
from .workload import RunBatches

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


def t5_flops(model: Architecture, inputs: Sequence[int], targets: Sequence[int]) -> Flops:
    """For rows with these numbers of encoder tokens, prompt included, and of target tokens."""
    frozen = products = 0.0
    layers, width, inner = model.decoder_layers, model.width, model.attention
    for source, target in zip(inputs, targets, strict=True):
        matrices, attention = model.forward(source, target)
        by_keys = (2 * source * model.cross_weights, 4 * target * source * inner * layers)
        by_queries = (
            4 * target * width * inner * layers,
            4 * target * source * width * model.heads * layers,
        )
        cross = min(by_keys, by_queries, key=sum)
        frozen += matrices - by_keys[0] + cross[0]
        products += attention - by_keys[1] + cross[1]
    return Flops(frozen + products, 2 * frozen + 3 * products)


def step_flops(
    backbone: Backbone, batches: Sequence[RunBatches], prompt: int, warmup: int
) -> Flops:
    """Those of an average timed step of one run of a T5, without a router's few."""
    inputs = [batch for run in batches for batch in run.inputs[warmup:]]
    targets = [batch for run in batches for batch in run.targets[warmup:]]
    total = t5_flops(
        Architecture.of(backbone.model, backbone.family),
        [len(text) + prompt for batch in inputs for text in batch],
        [len(target) for batch in targets for target in batch],
    )
    return Flops(total.forward / len(inputs), total.step / len(inputs))
