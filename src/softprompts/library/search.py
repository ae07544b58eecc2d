"""Similarity of tasks by their prompts (Vu 2022, SPoT §3.1).

Prompts are [P, H]; lengths may differ. Both similarities are means over pairs of tokens, so each is
a dot product of two summaries [H], one per prompt: one matrix product compares thousands of
prompts. Mixtures and different lengths follow one rule: all tokens of all K prompts count alike,
and a router does not count.
"""

from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

Name = TypeVar("Name", str, tuple[str, int])


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

DECIMALS = 6
"""Similarities that agree to this many decimals are equal: the rest is rounding in float32."""


def rank(similarities: Mapping[Name, float]) -> list[Name]:
    """Names by similarity, the most similar first; equally similar ones by name."""
    return sorted(similarities, key=lambda name: (-round(similarities[name], DECIMALS), name))


def summary(vectors: Tensor) -> Tensor:
    """A prompt [..., H] as two rows [2, H], in the order of SIMILARITIES.

    The dot product of two prompts' rows is their similarity. The rows are the mean token,
    normalised, and the mean of the normalised tokens, in float64, where sums of any float32
    numbers are finite.
    """
    tokens = vectors.double().reshape(-1, vectors.shape[-1])
    return torch.stack([normalize(tokens.mean(0), dim=0), normalize(tokens, dim=1).mean(0)])
