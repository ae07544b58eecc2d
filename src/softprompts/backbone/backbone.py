"""Backbone: a frozen Hugging Face model and its tokenizer. It embeds text, takes prompt vectors, answers with losses, scores or text.

What all families share stands here; what differs (where the target goes, how a prompt joins a text) stands in a family's own file.
Shape letters: B batch, T text tokens, P prompt tokens, H hidden, N target tokens, C candidates.
"""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..errors import UserError
from .vocabulary import common_pieces

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Text(NamedTuple):
    """Embedded texts: embeds [B, T, H] and mask [B, T], rows laid out as [text; pad]."""

    embeds: Tensor
    mask: Tensor


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


class Backbone(ABC):
    """A frozen model of one family. No gradient is ever allocated for it and no byte of it changes."""

    auto_class: ClassVar[str]
    """The transformers Auto class that loads this family."""

    size_keys: ClassVar[tuple[str, ...]]
    """The settings of the config that are part of the fingerprint."""

    @classmethod
    @abstractmethod
    def fits(cls, config: Any) -> bool:
        """Whether a transformers config is of this family."""

    def __init__(self, model: Any, tokenizer: Any, name: str = "") -> None:
        self.model = model.requires_grad_(False).eval()
        self.tokenizer = tokenizer
        self.name = name
        self.embedding: nn.Module = model.get_input_embeddings()
        self.vocabulary, self.hidden = (int(side) for side in cast(Tensor, self.embedding.weight).shape)

    # -- words ---------------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.model.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> str:
        return next((name for name, dtype in DTYPES.items() if dtype == self.model.dtype), str(self.model.dtype))

    def vectors(self, ids: Tensor) -> Tensor:
        """Input embeddings in float32 on the CPU, as the model sees them (BART scales its own): [...] -> [..., H]."""
        embedded: Tensor = self.embedding(ids.to(self.device))
        return embedded.float().cpu()

    def common_pieces(self, population: int) -> Tensor:
        """Ids of the commonest usable pieces, by the rule of `vocabulary.py` [N]; all usable ones when `population` is 0."""
        return torch.tensor(common_pieces(self.tokenizer, self.vocabulary, population))

    def pieces(self, text: str) -> list[int]:
        """Ids of a text without the special tokens around it."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @cached_property
    def unit(self) -> float:
        """The scale of the embeddings: the RMS over common pieces, as the nearest power of two, so that dividing by it is exact."""
        sample = self.vectors(self.common_pieces(5000))
        rms = float(sample.square().mean().sqrt())
        return 2.0 ** round(math.log2(rms)) if rms > 0 and math.isfinite(rms) else 1.0

    @cached_property
    def fingerprint(self) -> str:
        """What a prompt was tuned on: sizes, input embeddings and last block, hashed as bf16, so that the load dtype does not matter."""
        digest = hashlib.sha256(json.dumps(self.sizes(), sort_keys=True).encode())
        parts = {"embeddings": cast(Tensor, self.embedding.weight), **dict(self.last_block().named_parameters())}
        for name, tensor in sorted(parts.items()):
            digest.update(name.encode())
            digest.update(tensor.detach().to(torch.bfloat16).contiguous().view(torch.uint8).cpu().numpy().tobytes())
        return digest.hexdigest()[:32]

    def sizes(self) -> dict[str, Any]:
        """The settings that make two models of one type differ; a family names them, because other keys come and go with versions."""
        config = self.model.config.to_dict()
        return {key: config[key] for key in ("model_type", "vocab_size", *self.size_keys) if isinstance(config.get(key), (int, str))}

    # -- rows ----------------------------------------------------------------------------------------------------------------

    def tokenise(self, texts: Sequence[str], budget: int) -> list[list[int]]:
        """Ids of each text with its special tokens, cut to `budget` tokens (the end of sequence stays)."""
        if budget < 2:
            raise UserError(f"The prompt leaves {max(budget, 0)} tokens for the text; raise --max-length or shorten the prompt.")
        return [list(ids) for ids in self.tokenizer(list(texts), truncation=True, max_length=budget)["input_ids"]]

    def collate(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Ids of different lengths as [B, T] and their mask, pads at the end whatever side the tokenizer prefers."""
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.pad)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        for row, (tokens, kept) in enumerate(zip(rows, (len(r) for r in rows), strict=True)):
            ids[row, :kept] = torch.tensor(tokens, dtype=torch.long)
            mask[row, :kept] = 1
        return ids, mask

    def embed(self, ids: Tensor, mask: Tensor) -> Text:
        """[B, T] -> embeddings; pads on the left or inside are moved to the end, so that rows are always [text; pad]."""
        order = mask.argsort(dim=1, descending=True, stable=True)
        ids, mask = ids.gather(1, order).to(self.device), mask.gather(1, order).to(self.device)
        with torch.no_grad():
            return Text(self.embedding(ids), mask)

    def embed_rows(self, rows: Sequence[Sequence[int]]) -> Text:
        return self.embed(*self.collate(rows))

    @property
    def pad(self) -> int:
        pad = getattr(self.tokenizer, "pad_token_id", None)
        return int(pad if pad is not None else self.model.config.pad_token_id or 0)

    @property
    def unknown(self) -> int | None:
        """The id that stands for what the vocabulary lacks, where there is one."""
        return getattr(self.tokenizer, "unk_token_id", None)

    @property
    @abstractmethod
    def longest(self) -> int | None:
        """The most positions the model can take; None where there is no limit."""

    def budget(self, prompt_length: int, max_length: int, target_length: int) -> int:
        """The tokens left for a text: `max_length` counts the prompt, and the target where it stands in the same sequence."""
        if self.longest is not None and max_length > self.longest:
            raise UserError(f"{self.name} takes at most {self.longest} tokens; lower --max-length from {max_length}.")
        return max_length - prompt_length

    # -- answers -------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def losses(self, prompt: Tensor, text: Text, targets: Sequence[Sequence[int]]) -> Losses:
        """The loss of each row's target after [prompt; text]: prompt [B, P, H]."""

    @abstractmethod
    def scores(self, prompt: Tensor, text: Text, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Summed log-probability of every candidate target, with its end of sequence: [B, C]."""

    @abstractmethod
    def generate(self, prompt: Tensor, text: Text, max_new_tokens: int) -> Tensor:
        """Greedy ids [B, N], through the key-value cache."""

    @abstractmethod
    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each target as the model must produce them, end of sequence included."""

    @abstractmethod
    def last_block(self) -> nn.Module:
        """The block nearest the output; part of the fingerprint."""

    def greedy(self, logits: Tensor, step: Callable[[Tensor], Tensor], max_new_tokens: int) -> Tensor:
        """The likeliest token again and again [B, N]: from `logits` [B, V], then from `step(tokens [B, 1])`; pads after a row's end.

        Written out, because transformers' generate mixes a model's own penalties and minimum lengths into any config it is given.
        """
        ends = torch.tensor(sorted(self.ends), device=self.device)
        written: list[Tensor] = []
        open_rows = torch.ones(len(logits), dtype=torch.bool, device=self.device)
        while True:
            tokens = torch.where(open_rows, logits.argmax(-1), self.pad)
            written.append(tokens)
            open_rows = open_rows & ~torch.isin(tokens, ends)
            if len(written) == max_new_tokens or not bool(open_rows.any()):
                return torch.stack(written, dim=1)
            logits = step(tokens[:, None])

    @property
    def ends(self) -> set[int]:
        """The ids that end a sequence: the tokenizer's and the model's."""
        own = getattr(self.model.generation_config, "eos_token_id", None)
        ids = [getattr(self.tokenizer, "eos_token_id", None), *(own if isinstance(own, list) else [own])]
        return {int(index) for index in ids if index is not None}

    def decode(self, ids: Tensor) -> list[str]:
        decoded: list[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [text.strip() for text in decoded]

    @contextmanager
    def dropout(self, rate: float) -> Iterator[None]:
        """Inside: the model's own dropout at `rate`, as the papers train; outside: none."""
        if rate == 0:
            yield
            return
        for module in self.model.modules():
            for name in ("p", "dropout", "activation_dropout", "attention_dropout"):
                if isinstance(getattr(module, name, None), (int, float)):
                    setattr(module, name, rate)
            if hasattr(module, "layerdrop"):
                module.layerdrop = 0.0
        self.model.train()
        try:
            yield
        finally:
            self.model.eval()
