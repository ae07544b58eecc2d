"""A backbone's inputs and losses: embedded texts that take a prompt, candidates, losses; and
moving tensors to a device.

Shape letters as in `backbone.py`; V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

Place = Literal["prefix", "after-bos", "suffix"]
"""Where a prompt is inserted: before everything; after the tokenizer's opening special tokens;
after the text, before its closing special tokens."""


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on `device`; a copy to a GPU does not wait for the GPU's queued work."""
    if device.type == "cuda" and not tensor.is_cuda:
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


class Text(NamedTuple):
    """Embedded texts as rows [text; pad], and where a prompt is inserted into each.

    `insert_at`, `prompt_lengths`, `lengths` and `prompt_of` stay on the device they were made on,
    so that reading them does not wait for the GPU.
    """

    embeds: Tensor  # [B, T, H]
    mask: Tensor  # [B, T]
    insert_at: Tensor | None = None  # the column of each row's prompt [B]; None: before the text
    ids: Tensor | None = None  # [B, T]
    prompt_lengths: Tensor | None = None  # how many of the P vectors each row uses [B]; None: all
    lengths: Tensor | None = None  # the number of tokens of each row [B]
    prompt_of: Tensor | None = None  # which of the prompts each row uses [B]; None: its own

    def rows(self, indices: Sequence[int] | slice) -> "Text":
        device = self.mask.device
        on_cpu: Any = indices if isinstance(indices, slice) else torch.tensor(list(indices))
        on_device = on_cpu if isinstance(indices, slice) else to_device(on_cpu, device)
        parts: list[Any] = [
            part if part is None else part[on_device if part.device == device else on_cpu]
            for part in self
        ]
        return Text(*parts)

    def with_prompt(self, prompt: Tensor) -> tuple[Tensor, Tensor]:
        """Rows with the prompt [B, P, H] inserted, pads last: [B, P + T, H] and their mask."""
        if self.prompt_of is not None:
            prompt = prompt[to_device(self.prompt_of, prompt.device)]
        embeds = torch.cat([prompt.to(self.embeds), self.embeds], dim=1)
        prompt_mask = self.mask.new_ones(prompt.shape[:2])
        if self.prompt_lengths is not None:
            lengths = self.prompt_lengths[:, None]
            used = torch.arange(prompt.shape[1]).to(lengths) < lengths
            prompt_mask = to_device(used, self.mask.device).to(self.mask)
        mask = torch.cat([prompt_mask, self.mask], dim=1)
        if self.insert_at is None and self.prompt_lengths is None:
            return embeds, mask
        order = self.joined_columns(prompt.shape[1]).argsort(dim=1)
        return embeds.gather(1, order.unsqueeze(-1).expand_as(embeds)), mask.gather(1, order)

    def joined_columns(self, length: int) -> Tensor:
        """The columns of `length` prompt vectors and of the text after joining: [B, P + T].

        Vectors that a row does not use come last.
        """
        device, (batch, width) = self.mask.device, self.mask.shape
        text_columns, prompt_columns = (
            torch.arange(size, device=device).expand(batch, -1) for size in (width, length)
        )
        start, used = (
            self.mask.new_full((batch, 1), default)
            if by_row is None
            else to_device(by_row, device)[:, None]
            for by_row, default in ((self.insert_at, 0), (self.prompt_lengths, length))
        )
        return torch.cat(
            [
                torch.where(prompt_columns < used, prompt_columns + start, prompt_columns + width),
                torch.where(text_columns < start, text_columns, text_columns + used),
            ],
            dim=1,
        )


Candidates = Sequence[Sequence[Sequence[int]]]
"""The ids of each row's candidates."""


class Losses(NamedTuple):
    """Per row [B]: the target's summed negative log-likelihood, the summed squared log-normaliser
    (for z-loss), and the number of target tokens."""

    nll: Tensor
    z: Tensor
    tokens: Tensor

    @classmethod
    def from_logits(cls, logits: Tensor, ids: Tensor, mask: Tensor) -> "Losses":
        """From the logits [B, N, V] that predict `ids` [B, N], where `mask` [B, N] is 1."""
        logits = logits.float()
        normaliser = logits.logsumexp(-1)
        nll = normaliser - logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        return cls((nll * mask).sum(1), (normaliser.square() * mask).sum(1), mask.sum(1))
