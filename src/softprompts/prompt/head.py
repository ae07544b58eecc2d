"""head: how does an encoder-only backbone predict labels?

By filling a mask with a label word, or by a small classifier that is part of the prompt. This is
not a fourth choice of what a prompt is: models that generate always answer in words.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..config import Settings, heads


class LinearHead(nn.Module):
    """Logits of C labels from pooled hidden states: [B, F] -> [B, C]."""

    def __init__(
        self,
        classes: int,
        features: int,
        rng: torch.Generator,
        pool: Literal["mean", "first"],
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, features).normal_(0.0, 0.02, generator=rng))
        self.bias = nn.Parameter(torch.zeros(classes))
        self.pool = pool

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight, self.bias)


@dataclass(frozen=True)
class Head(Settings):
    """Base of all heads."""

    def build(self, classes: int, features: int, rng: torch.Generator) -> LinearHead | None:
        """The classifier, or None if the model answers with label words."""
        return None


@heads.register("auto")
@dataclass(frozen=True)
class Auto(Head):
    """`words` if the model can fill a mask and every label is a single token; else `linear`."""


@heads.register("words")
@dataclass(frozen=True)
class Words(Head):
    """The label word that fills the mask best."""


@heads.register("linear")
@dataclass(frozen=True)
class Linear(Head):
    """A linear classifier on the mean of the last hidden states, or on the text's first token
    ([CLS])."""

    pool: Literal["mean", "first"] = "mean"

    def build(self, classes: int, features: int, rng: torch.Generator) -> LinearHead:
        return LinearHead(classes, features, rng, self.pool)
