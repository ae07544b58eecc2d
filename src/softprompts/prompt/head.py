"""head: how are labels told by a backbone that only encodes? By the model's own words, or by a small classifier that is part of the prompt.

Not a fourth choice of what a prompt is: models that write answer in words, always.
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn


def auto() -> None:
    """Words where the model has them and every label is one of them; a linear head otherwise."""


def words() -> None:
    """The label word that fills the mask best."""


class Linear(nn.Module):
    """Logits of C labels from the mean of the last hidden states, or from the text's first token ([CLS]): [B, F] -> [B, C]."""

    def __init__(
        self,
        classes: int,
        features: int,
        rng: torch.Generator,
        *,
        pool: Literal["mean", "first"] = "mean",
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features).normal_(0.0, 0.02, generator=rng))
        self.bias = nn.Parameter(torch.zeros(classes))
        self.pool = pool

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight, self.bias)


HEADS: dict[str, Callable[..., Linear | None]] = {"auto": auto, "words": words, "linear": Linear}
