"""A model and its tokenizer: from texts to rows of ids, and back.

Shape letters as in `backbone.py`.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError, setting
from .batch import Place
from .vocabulary import common_pieces


class TokenizedModel(ABC):
    """What a backbone knows of tokens: ids of texts and targets, special tokens, limits."""

    vocab_size: int

    def __init__(self, model: Any, tokenizer: Any, name: str) -> None:
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self._common_pieces: dict[int, Tensor] = {}  # by population; every run of a cohort asks

    # -- vocabulary ------------------------------------------------------------------------------

    def common_pieces(self, population: int) -> Tensor:
        """Ids of the most common usable tokens, by the rules of `vocabulary.py` [N]; 0: all."""
        if population not in self._common_pieces:
            self._common_pieces[population] = torch.tensor(
                common_pieces(self.tokenizer, self.vocab_size, population)
            )
        return self._common_pieces[population]

    def pieces(self, text: str) -> list[int]:
        """Ids of a text without special tokens."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def word_pieces(self, text: str) -> list[int]:
        """Ids of a text as it is tokenised after a space."""
        return self.pieces(f"x {text}")[len(self.pieces("x")) :]

    @cached_property
    def special_token_counts(self) -> tuple[int, int]:
        """How many special tokens the tokenizer puts before a text and after it."""
        special = self.tokenizer("x", return_special_tokens_mask=True)["special_tokens_mask"]
        return special.index(0), special[::-1].index(0)

    @property
    def pad_id(self) -> int:
        pad = getattr(self.tokenizer, "pad_token_id", None)
        if pad is None:
            pad = getattr(self.model.config, "pad_token_id", None) or 0
        return int(pad)

    @property
    def unk_id(self) -> int | None:
        return getattr(self.tokenizer, "unk_token_id", None)

    @property
    def eos_ids(self) -> set[int]:
        """The ids that end a sequence: the tokenizer's and the model's."""
        of_model = getattr(self.model.generation_config, "eos_token_id", None)
        ids = [
            getattr(self.tokenizer, "eos_token_id", None),
            *(of_model if isinstance(of_model, list) else [of_model]),
        ]
        return {int(index) for index in ids if index is not None}

    # -- texts ---------------------------------------------------------------------------------

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text with its special tokens, not truncated."""
        if not texts:
            return []
        only_ids = {"return_attention_mask": False, "return_token_type_ids": False}
        encoded = self.tokenizer(list(texts), verbose=False, **only_ids)
        return [list(ids) for ids in encoded["input_ids"]]

    def truncate(self, row: Sequence[int], budget: int) -> list[int]:
        """A row truncated to `budget` tokens; its closing special tokens stay."""
        if budget < 2:
            raise UserError(
                f"The prompt leaves {max(budget, 0)} tokens for the text; raise "
                f"{setting('tuning.max_length')} or shorten the prompt."
            )
        if len(row) <= budget:
            return row if isinstance(row, list) else list(row)  # runs on the same texts share them
        closing = self.special_token_counts[1]
        return [*row[: budget - closing], *row[len(row) - closing :]]

    def tokenise(self, texts: Sequence[str], budget: int) -> list[list[int]]:
        """Ids of each text, truncated to `budget` tokens."""
        return [self.truncate(row, budget) for row in self.token_ids(texts)]

    @abstractmethod
    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each target as the model must produce them, end of sequence included."""

    def decode(self, ids: Tensor) -> list[str]:
        return [t.strip() for t in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]

    def collate(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Rows of ids as [B, T] and their mask, right-padded whatever the tokenizer's side is."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        mask = np.arange(lengths.max()) < lengths[:, None]
        ids = np.full(mask.shape, self.pad_id, np.int64)
        ids[mask] = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(lengths.sum()))
        return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))

    def prompt_columns(self, ids: Tensor, mask: Tensor, place: Place) -> Tensor | None:
        """The column that a prompt at `place` starts at in each row [B]; None: before the text."""
        if place == "prefix":
            return None
        opening, closing = self.special_token_counts
        if place == "after-bos":
            return torch.full_like(mask[:, 0], opening)
        return mask.sum(1) - closing

    def check_place(self, place: Place) -> None:
        """A prompt can follow the opening token only if the tokenizer adds one."""
        if place == "after-bos" and self.special_token_counts[0] == 0:
            raise UserError(
                f"The tokenizer of {self.name} adds no token before a text, so a prompt cannot "
                f"follow it; leave out {setting('prompt.place')}."
            )

    @property
    def max_positions(self) -> int | None:
        """The model's limit on tokens; None: no limit, as in T5, which has relative positions."""
        config = self.model.config
        if not config.is_encoder_decoder:
            config = config.get_text_config()
        rotary = getattr(config, "rope_parameters", None) or {}
        if rotary.get("rope_type") == "longrope":  # a longer row changes the positions of others
            return int(rotary["original_max_position_embeddings"])
        names = ("max_position_embeddings", "max_encoder_position_embeddings", "max_seq_len")
        limits = (getattr(config, name, None) for name in names)
        return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)

    @property
    def default_max_length(self) -> int:
        """The default limit on the tokens of a text and its prompt."""
        return min(512, self.max_positions or 512)

    def text_budget(self, prompt_length: int, max_length: int, target_length: int) -> int:
        """The tokens left for a text: `max_length` counts the prompt too, and the target where it
        is in the same sequence."""
        if self.max_positions is not None and max_length > self.max_positions:
            raise UserError(
                f"{self.name} takes at most {self.max_positions} tokens; lower "
                f"{setting('tuning.max_length')} from {max_length}."
            )
        return max_length - prompt_length
