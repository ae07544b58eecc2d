"""Rows as a backbone takes them and answers for them: embedded texts with a place for a prompt, candidates, losses.

Shape letters as in `backbone.py`; V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from .device import sent

Place = Literal["prefix", "after-bos", "suffix"]
"""Where a prompt stands: before all; after the tokens a tokenizer opens a text with; after the text, before the tokens that close it."""


class Text(NamedTuple):
    """Embedded texts: embeds [B, T, H], mask and ids [B, T], rows laid out as [text; pad]; a prompt goes in at column `at` [B]."""

    embeds: Tensor
    mask: Tensor
    at: Tensor | None = None
    """None: before all."""
    ids: Tensor | None = None
    given: Tensor | None = None
    """How many of the P prompt vectors are each row's own [B], where prompts of several lengths meet; None: all."""
    sizes: Tensor | None = None
    """The tokens of each row [B]. Like `at` and `given`, these stay where they were made, so that nobody waits for a GPU to read them."""

    def rows(self, which: Sequence[int] | slice) -> "Text":
        """Some of the rows."""
        if isinstance(which, slice):
            parts: list[Any] = [part if part is None else part[which] for part in self]
            return Text(*parts)
        here = torch.tensor(list(which))
        there = sent(here, self.mask.device)
        parts = [
            part if part is None else part[there if part.device == there.device else here]
            for part in self
        ]
        return Text(*parts)

    def joined(self, prompt: Tensor) -> tuple[Tensor, Tensor]:
        """The prompt [B, P, H] in its place among each row's tokens, pads at the end: [B, P + T, H] and its mask."""
        embeds = torch.cat([prompt.to(self.embeds), self.embeds], dim=1)
        own = self.mask.new_ones(prompt.shape[:2])
        if self.given is not None:
            own = sent(
                torch.arange(prompt.shape[1]).to(self.given) < self.given[:, None], self.mask.device
            ).to(self.mask)
        mask = torch.cat([own, self.mask], dim=1)
        if self.at is None and self.given is None:
            return embeds, mask
        order = self.columns(prompt.shape[1]).argsort(dim=1)
        return embeds.gather(1, order.unsqueeze(-1).expand_as(embeds)), mask.gather(1, order)

    def columns(self, length: int) -> Tensor:
        """The columns of `length` prompt vectors and of the text after joining: [B, P + T]; vectors that are not a row's own stand last."""
        batch, width = self.mask.shape
        own, given = (
            torch.arange(size, device=self.mask.device).expand(batch, -1)
            for size in (width, length)
        )
        at = (
            self.mask.new_zeros(batch, 1)
            if self.at is None
            else sent(self.at, self.mask.device)[:, None]
        )
        kept = (
            self.mask.new_full((batch, 1), length)
            if self.given is None
            else sent(self.given, self.mask.device)[:, None]
        )
        return torch.cat(
            [
                torch.where(given < kept, given + at, given + width),
                torch.where(own < at, own, own + kept),
            ],
            dim=1,
        )


Candidates = Sequence[Sequence[int]] | Sequence[Sequence[Sequence[int]]]
"""The ids of each candidate: one list for all rows, or one for each row."""


def each_row(candidates: Candidates, rows: int) -> Sequence[Sequence[Sequence[int]]]:
    """Every row's own candidates."""
    shared = isinstance(candidates[0][0], int)
    return cast("Sequence[Sequence[Sequence[int]]]", [candidates] * rows if shared else candidates)


class Losses(NamedTuple):
    """Per row [B]: summed negative log-likelihood of the target, summed squared log-normaliser (for z-loss), and target tokens."""

    nll: Tensor
    z: Tensor
    tokens: Tensor

    @classmethod
    def of(cls, logits: Tensor, ids: Tensor, mask: Tensor) -> "Losses":
        """From the logits [B, N, V] that should have told `ids` [B, N], where `mask` [B, N] is 1."""
        logits = logits.float()
        normaliser = logits.logsumexp(-1)
        nll = normaliser - logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        return cls((nll * mask).sum(1), (normaliser.square() * mask).sum(1), mask.sum(1))
