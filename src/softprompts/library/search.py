"""Similarity of tasks by their prompts (Vu 2022, SPoT §3.1). Prompts are [P, H]; lengths may differ.

Both similarities are means over pairs of tokens, so each is a dot product of two summaries [H] that a prompt has by itself: thousands
of prompts are compared by one product. The rule for mixtures and for different lengths is the same: all tokens of all K prompts count
alike, whichever prompt and place they come from, and a router does not count.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize


def cosine_of_average_tokens(one: Tensor, other: Tensor) -> float:
    """cos(mean_i e1_i, mean_j e2_j)."""
    return float(cosine_similarity(one.mean(0), other.mean(0), dim=0))


def per_token_average_cosine(one: Tensor, other: Tensor) -> float:
    """The mean of cos(e1_i, e2_j) over all pairs of tokens; the better of the two in the paper."""
    return float((normalize(one, dim=1) @ normalize(other, dim=1).T).mean())


SIMILARITIES: dict[str, Callable[[Tensor, Tensor], float]] = {
    "cosine_of_average_tokens": cosine_of_average_tokens,
    "per_token_average_cosine": per_token_average_cosine,
}


def summary(vectors: Tensor) -> Tensor:
    """A prompt [..., H] as two rows [2, H], in the order of SIMILARITIES: a dot product of two prompts' rows is their similarity.

    The mean token, of length 1; and the mean of the tokens, each of length 1. In float64, where sums of any float32 numbers are finite.
    """
    tokens = vectors.double().reshape(-1, vectors.shape[-1])
    return torch.stack([normalize(tokens.mean(0), dim=0), normalize(tokens, dim=1).mean(0)])
