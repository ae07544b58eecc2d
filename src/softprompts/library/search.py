"""Similarity of tasks by their prompts (Vu 2022, SPoT §3.1). Prompts are [P, H]; lengths may differ."""

from collections.abc import Callable

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
