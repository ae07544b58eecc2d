"""Encoder-only models: BERT, RoBERTa, DeBERTa. They fill in a mask with a label word; or a linear head answers, where there are no words.

A row is [prompt; text; mask; pad], with the mask where the text itself has one, or after its last word. Every position is the model's own
count from the row's first token, so that [prompt; text] stands where a plain text of that length would.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from .backbone import Backbone, Head, only
from .device import sent
from .memory import Memory
from .rows import Candidates, Losses, Place, Text, each_row

_NEAR = 16
"""The words before a mask that are kept with it."""


class Masked(Backbone):
    """The label word of one token that fills the mask best."""

    family = "encoder-only"
    generates = False
    size_keys = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "embedding_size",
        "type_vocab_size",
    )

    @classmethod
    def fits(cls, config: Any) -> bool:
        from transformers import AutoModelForMaskedLM

        return type(config) in AutoModelForMaskedLM._model_mapping or "AutoModelForMaskedLM" in (
            getattr(config, "auto_map", None) or {}
        )

    @classmethod
    def auto_class(cls, config: Any) -> str:
        """With the words the checkpoint was trained with, or without any."""
        names = config.architectures or []
        spoken = any(
            name.endswith("ForMaskedLM")
            or (name.endswith("ForPreTraining") and config.model_type == "bert")
            for name in names
        )
        return "AutoModelForMaskedLM" if spoken else "AutoModel"

    @property
    def speaks(self) -> bool:
        """Whether the model can fill in a mask."""
        return (
            self.model.get_output_embeddings() is not None
            and self.tokenizer.mask_token_id is not None
        )

    def best_head(self, labels: Sequence[str]) -> str:
        pieces = [self.word_pieces(label) for label in labels]
        one_each = all(len(ids) == 1 and ids[0] != self.unknown for ids in pieces) and len(
            {ids[0] for ids in pieces}
        ) == len(pieces)
        return "words" if self.speaks and one_each else "linear"

    def answering(self, head: Head | None, labels: Sequence[str]) -> Backbone:
        if head is not None:
            return Headed(self, head, labels)
        if not self.speaks:
            raise UserError(
                f"{self.name} has no words to fill a mask with; let a linear head answer with --prompt.head linear."
            )
        return self

    def whole(self, texts: Sequence[str]) -> list[list[int]]:
        """A text that has no mask of its own gets one after its last word."""
        mask, closing = self.tokenizer.mask_token_id, self.surround[1]
        return [
            row if mask in row else [*row[: len(row) - closing], mask, *row[len(row) - closing :]]
            for row in super().whole(texts)
        ]

    def cut(self, row: Sequence[int], budget: int) -> list[int]:
        """The mask stays, with some words around it; where it would go, the words far before it go instead."""
        kept = super().cut(row, budget)
        mask = self.tokenizer.mask_token_id
        if mask in kept:
            return kept
        half = max(2, budget // 2)
        near = max(0, min(_NEAR, half - 1 - self.surround[1]))
        last = super().cut(row[row.index(mask) - near :], half)
        return [*row[: budget - len(last)], *last]

    def at(self, ids: Tensor, mask: Tensor, place: Place) -> Tensor | None:
        """A suffix stands before the mask that closes a text, as the words "It was" would."""
        at = super().at(ids, mask, place)
        if at is None or place != "suffix" or self.tokenizer.mask_token_id is None:
            return at
        closed = ids.gather(1, at[:, None] - 1)[:, 0] == self.tokenizer.mask_token_id
        moved: Tensor = at - closed.to(at)
        return moved

    def logits(self, prompt: Tensor, text: Text) -> Tensor:
        """What the model would fill each row's first mask with: [B, 1, V]. No other position gets logits."""
        assert text.ids is not None
        length = prompt.shape[1]
        spot = (text.ids == self.tokenizer.mask_token_id).int().argmax(1, keepdim=True)
        column = text.columns(length)[:, length:].gather(1, spot)  # [B, 1]
        with only(self.model.base_model, column) as kept:
            logits: Tensor = self.model(**self.join(prompt, text)).logits
        return kept(logits)

    def losses(self, prompt: Tensor, text: Text, targets: Sequence[Sequence[int]]) -> Losses:
        ids = sent(torch.tensor([list(target) for target in targets]), self.device)
        return Losses.of(self.logits(prompt, text), ids, torch.ones_like(ids))

    @torch.no_grad()
    def scores(self, prompt: Tensor | Memory, text: Text, candidates: Candidates) -> Tensor:
        assert isinstance(prompt, Tensor)
        words = [[ids[0] for ids in own] for own in each_row(candidates, len(prompt))]
        ids, own = (sent(part, self.device) for part in self.collate(words))
        told: Tensor = self.logits(prompt, text)[:, 0].float().log_softmax(-1)
        return told.gather(1, ids * own).masked_fill(own == 0, -torch.inf)

    def generate(
        self, prompt: Tensor | Memory, text: Text, max_new_tokens: int | Sequence[int]
    ) -> Tensor:
        raise UserError(
            f"{self.name} fills in a mask and cannot write freely; choose among the labels with --scoring labels."
        )

    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        rows = {text: self.word_pieces(text) for text in texts}
        long = next((text for text, ids in rows.items() if len(ids) != 1), None)
        if long is not None:
            raise UserError(
                f"{self.name} fills one mask with one token, and {long!r} is {len(rows[long])}; "
                f"give it another word with --labels {long}=WORD, or let a linear head answer with --prompt.head linear."
            )
        return [rows[text] for text in texts]

    def last_block(self) -> nn.Module:
        return self.blocks()[-1]

    @property
    def longest(self) -> int | None:
        """RoBERTa and its like count positions from after their pad's."""
        most = getattr(self.model.config, "max_position_embeddings", None)
        table = getattr(
            getattr(self.model.base_model, "embeddings", None), "position_embeddings", None
        )
        pad = getattr(table, "padding_idx", None)
        return None if most is None else most - (0 if pad is None else pad + 1)


class Headed(Masked):
    """The same frozen model with a head that reads its last hidden states: targets are the numbers of the labels."""

    def __init__(self, base: Masked, head: Head, labels: Sequence[str]) -> None:
        self.__dict__ |= base.__dict__
        self.base, self.head, self.labels = base, head, list(labels)

    def answering(self, head: Head | None, labels: Sequence[str]) -> Backbone:
        return self.base.answering(head, labels)

    def whole(self, texts: Sequence[str]) -> list[list[int]]:
        return Backbone.whole(self, texts)

    def cut(self, row: Sequence[int], budget: int) -> list[int]:
        return Backbone.cut(self, row, budget)

    def logits(self, prompt: Tensor, text: Text) -> Tensor:
        """From the mean over prompt and text, or from the text's first token: [B, 1, C]."""
        joined = self.join(prompt, text)
        states: Tensor = self.model.base_model(**joined).last_hidden_state.float()
        if self.head.pool == "first":
            first = text.columns(prompt.shape[1])[:, prompt.shape[1], None, None]
            pooled = states.gather(1, first.expand(-1, 1, states.shape[2]))[:, 0]
        else:
            weight = joined["attention_mask"].unsqueeze(-1).to(states)
            pooled = (states * weight).sum(1) / weight.sum(1)
        return self.head(pooled).unsqueeze(1)

    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.labels.index(text)] for text in texts]

    def decode(self, ids: Tensor) -> list[str]:
        return [self.labels[int(row[0])] for row in ids]

    @property
    def unknown(self) -> int | None:
        return None


class Heads:
    """The heads of several runs on one batch: each reads its own rows, `counts` of them, one run's after another's."""

    def __init__(self, heads: Sequence[Head], counts: Sequence[int]) -> None:
        self.heads, self.counts = heads, list(counts)
        self.pool = heads[0].pool

    def __call__(self, features: Tensor, /) -> Tensor:
        """[B, F] -> [B, C], where a head with fewer labels than the others gives the rest no chance."""
        logits = [
            head(own)
            for head, own in zip(self.heads, torch.split(features, self.counts), strict=True)
        ]
        most = max(part.shape[1] for part in logits)
        return torch.cat(
            [
                nn.functional.pad(
                    part, (0, most - part.shape[1]), value=torch.finfo(part.dtype).min
                )
                for part in logits
            ]
        )
