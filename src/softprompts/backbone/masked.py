"""Encoder-only models: BERT, RoBERTa, DeBERTa. They fill a mask with a label word.

A linear head predicts labels where there are no such words. A row is [prompt; text; mask; pad],
with the mask where the text itself has one, or after its last word. Positions are the model's own,
from the row's first token, as for a plain text of the same length.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call

from ..errors import UserError, setting
from .backbone import Backbone, Classifier
from .batch import Candidates, Losses, Place, Text, to_device
from .causal import Causal
from .families import register_family
from .kv_cache import PromptCache
from .modules import only_columns
from .speed.packed_rows import MASKED_TYPES, Head, PackedRows

_CONTEXT = 16  # tokens before a mask that truncation keeps with it


@register_family("encoder-only")
class Masked(Backbone):
    """Predicts the single-token label word that fills the mask best."""

    peft_task_type = "FEATURE_EXTRACTION"
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
        if config.is_encoder_decoder or Causal.fits(config):
            return False
        auto_map = getattr(config, "auto_map", None) or {}
        return (
            type(config) in transformers.AutoModelForMaskedLM._model_mapping
            or "AutoModelForMaskedLM" in auto_map
        )

    @classmethod
    def auto_class(cls, config: Any) -> str:
        """With the output layer for words, if the checkpoint was trained with one."""
        has_words = any(
            name.endswith("ForMaskedLM")
            or (name.endswith("ForPreTraining") and config.model_type == "bert")
            for name in config.architectures or []
        )
        return "AutoModelForMaskedLM" if has_words else "AutoModel"

    @property
    def fills_masks(self) -> bool:
        return (
            self.model.get_output_embeddings() is not None
            and self.tokenizer.mask_token_id is not None
        )

    def default_head(self, labels: Sequence[str]) -> str:
        """Words, if each label is a known token of its own."""
        pieces = [tuple(self.word_pieces(label)) for label in labels]
        single = all(len(ids) == 1 and ids[0] != self.unk_id for ids in pieces)
        distinct = len(set(pieces)) == len(pieces)
        return "words" if self.fills_masks and single and distinct else "linear"

    def with_head(self, head: Classifier | None, labels: Sequence[str]) -> Backbone:
        if head is not None:
            return MaskedWithHead(self, head, labels)
        if not self.fills_masks:
            raise UserError(
                f"{self.name} has no output layer to fill a mask with; use a linear head: "
                f"{setting('prompt.head', 'linear')}."
            )
        return self

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """A text without a mask gets one after its last word."""
        mask, closing = self.tokenizer.mask_token_id, self.special_token_counts[1]
        return [
            row if mask in row else [*row[: len(row) - closing], mask, *row[len(row) - closing :]]
            for row in super().token_ids(texts)
        ]

    def truncate(self, row: Sequence[int], budget: int) -> list[int]:
        """Keeps the mask and some of its context, at the expense of words far before it."""
        truncated = super().truncate(row, budget)
        mask = self.tokenizer.mask_token_id
        if mask in truncated:
            return truncated
        half = max(2, budget // 2)
        context = max(0, min(_CONTEXT, half - 1 - self.special_token_counts[1]))
        around_mask = super().truncate(row[row.index(mask) - context :], half)
        return [*row[: budget - len(around_mask)], *around_mask]

    def prompt_columns(self, ids: Tensor, mask: Tensor, place: Place) -> Tensor | None:
        """A suffix precedes the mask at a text's end, as the words "It was" would."""
        columns = super().prompt_columns(ids, mask, place)
        if columns is None or place != "suffix" or self.tokenizer.mask_token_id is None:
            return columns
        last = ids.gather(1, columns[:, None] - 1)[:, 0]
        return torch.where(last == self.tokenizer.mask_token_id, columns - 1, columns)

    def logits(self, prompt: Tensor, text: Text) -> Tensor:
        """The logits of each row's first mask [B, 1, V]; no other position gets any."""
        column = self.answer_columns(text, prompt.shape[1])
        with only_columns(self.model.base_model, column) as select:
            return select(self.model(**self.join(prompt, text)).logits)

    def answer_columns(self, text: Text, length: int) -> Tensor:
        """The column of each row's first mask after joining `length` prompt vectors: [B, 1]."""
        assert text.ids is not None
        in_text = (text.ids == self.tokenizer.mask_token_id).int().argmax(1, keepdim=True)
        return text.joined_columns(length)[:, length:].gather(1, in_text)

    def losses(self, prompt: Tensor, text: Text, targets: Sequence[Sequence[int]]) -> Losses:
        ids, mask = (to_device(part, self.device) for part in self.collate(targets))
        return Losses.from_logits(self.logits(prompt, text), ids, mask)

    def packed_options(
        self, vectors: Tensor, text: Text, targets: Sequence[Sequence[int]]
    ) -> dict[str, Any]:
        return {"columns": self.answer_columns(text, vectors.shape[1]), "head": self.packed_head}

    @cached_property
    def packed(self) -> PackedRows | None:
        if self.model.config.model_type not in MASKED_TYPES:
            return None
        return PackedRows(self.model, causal=False, first_position=self.first_position)

    @property
    def packed_head(self) -> Head | None:
        """What predicts instead of the model's own output layer."""
        return None

    @torch.no_grad()
    def scores(self, prompt: Tensor | PromptCache, text: Text, candidates: Candidates) -> Tensor:
        assert isinstance(prompt, Tensor)
        words = [[ids[0] for ids in row] for row in candidates]
        ids, mask = (to_device(part, self.device) for part in self.collate(words))
        log_probs = self.logits(prompt, text)[:, 0].float().log_softmax(-1)
        return log_probs.gather(1, ids * mask).masked_fill(mask == 0, -torch.inf)

    def generate(
        self, prompt: Tensor | PromptCache, text: Text, max_new_tokens: int | Sequence[int]
    ) -> Tensor:
        raise UserError(
            f"{self.name} fills masks and cannot generate text; use "
            f"{setting('tuning.scoring', 'labels')}."
        )

    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        rows = {text: self.word_pieces(text) for text in texts}
        long = next((text for text, ids in rows.items() if len(ids) != 1), None)
        if long is not None:
            raise UserError(
                f"{self.name} fills one mask with one token, and {long!r} has {len(rows[long])}; "
                f"give it another word with {setting('task.labels')}, or use a linear head: "
                f"{setting('prompt.head', 'linear')}."
            )
        return [rows[text] for text in texts]

    @property
    def max_positions(self) -> int | None:
        limit = super().max_positions
        return None if limit is None else limit - self.first_position

    @property
    def first_position(self) -> int:
        """RoBERTa and its relatives count positions from the pad's id on."""
        embeddings = getattr(self.model.base_model, "embeddings", None)
        pad = getattr(getattr(embeddings, "position_embeddings", None), "padding_idx", None)
        return 0 if pad is None else pad + 1


class MaskedWithHead(Masked):
    """The same frozen model with a head on its last hidden states; targets are label indices."""

    def __init__(self, base: Masked, head: Classifier, labels: Sequence[str]) -> None:
        self.__dict__ |= base.__dict__
        self.base, self.head, self.labels = base, head, list(labels)

    @property
    def frozen(self) -> bool:  # type: ignore[override]
        return self.base.frozen

    @property
    def packed(self) -> PackedRows | None:
        return self.base.packed

    def with_head(self, head: Classifier | None, labels: Sequence[str]) -> Backbone:
        return self.base.with_head(head, labels)

    def with_heads(self, heads: Sequence[Classifier | None], counts: Sequence[int]) -> Backbone:
        combined = CombinedHeads([head for head in heads if head is not None], counts)
        return MaskedWithHead(self.base, combined, [])

    token_ids = Backbone.token_ids  # without a mask
    truncate = Backbone.truncate

    def answer_columns(self, text: Text, length: int) -> Tensor:
        """The column of the text's first token."""
        return text.joined_columns(length)[:, length, None]

    @property
    def packed_head(self) -> Head:
        module = cast(nn.Module, self.head)
        named = dict(module.named_parameters())

        def logits(features: Tensor, values: Sequence[Tensor]) -> Tensor:
            return functional_call(module, dict(zip(named, values, strict=True)), features)  # type: ignore[no-any-return]

        kind = self.head.pool, getattr(module, "counts", None)
        return Head(list(named.values()), logits, self.head.pool, kind)

    def logits(self, prompt: Tensor, text: Text) -> Tensor:
        """From the mean over prompt and text, or from the text's first token: [B, 1, C]."""
        inputs = self.join(prompt, text)
        states: Tensor = self.model.base_model(**inputs).last_hidden_state.float().to(self.device)
        if self.head.pool == "first":
            first = self.answer_columns(text, prompt.shape[1]).unsqueeze(-1)
            pooled = states.gather(1, first.expand(-1, 1, states.shape[2]))[:, 0]
        else:
            weight = inputs["attention_mask"].unsqueeze(-1).to(states)
            pooled = (states * weight).sum(1) / weight.sum(1)
        return self.head(pooled).unsqueeze(1)

    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        return [[self.labels.index(text)] for text in texts]

    def decode(self, ids: Tensor) -> list[str]:
        return [self.labels[int(row[0])] for row in ids]

    @property
    def unk_id(self) -> int | None:
        return None


class CombinedHeads(nn.Module):
    """The heads of several runs on one batch: each reads its run's `counts` rows, in order."""

    def __init__(self, heads: Sequence[Classifier], counts: Sequence[int]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(cast("Sequence[nn.Module]", heads))
        self.counts, self.pool = tuple(counts), heads[0].pool

    def forward(self, features: Tensor, /) -> Tensor:
        """[B, F] -> [B, C]; a head with fewer labels gives the others the lowest logit."""
        by_head = torch.split(features, list(self.counts))
        logits = [head(rows) for head, rows in zip(self.heads, by_head, strict=True)]
        labels = max(part.shape[1] for part in logits)
        return torch.cat(
            [
                nn.functional.pad(p, (0, labels - p.shape[1]), value=torch.finfo(p.dtype).min)
                for p in logits
            ]
        )
