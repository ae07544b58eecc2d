"""Backbones that generate text.

They process a row once; all candidates, or the greedy answer, continue from its cache.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .backbone import Backbone
from .batch import Candidates, Losses, Text, to_device
from .kv_cache import DecodingState, PromptCache

CACHE_BYTES = 2**32
"""The most bytes of keys and values for candidates scored together, at least one per row; a CPU,
which gains nothing from more, gets a part of it."""


class Generative(Backbone):
    """What families that generate share; each has its own `prefill` and `extend`."""

    @abstractmethod
    def prefill(self, prompt: Tensor | PromptCache, text: Text) -> DecodingState:
        """Process [prompt; text], up to where the answer begins."""

    @abstractmethod
    def extend(self, state: DecodingState, tokens: Tensor) -> Tensor:
        """The logits after each of `tokens` [B, N]: [B, N, V]; `state` is updated in place."""

    @torch.no_grad()
    def scores(self, prompt: Tensor | PromptCache, text: Text, candidates: Candidates) -> Tensor:
        return self.scores_after(self.prefill(prompt, text), candidates)

    @torch.no_grad()
    def scores_after(self, state: DecodingState, candidates: Candidates) -> Tensor:
        """As many candidates as fit continue together; `state` stays as it is."""
        first = state.logits.float().log_softmax(-1)
        scores = first.new_full((len(candidates), max(map(len, candidates))), -torch.inf)
        cells = [(r, c, ids) for r, row in enumerate(candidates) for c, ids in enumerate(row)]
        cells.sort(key=lambda cell: len(cell[2]))  # so that batches have few pads
        most_bytes = CACHE_BYTES if self.device.type == "cuda" else CACHE_BYTES // 32
        most = max(len(candidates), most_bytes // state.bytes_per_row())
        for begin in range(0, len(cells), most):
            rows, columns, ids = zip(*cells[begin : begin + most], strict=True)
            tokens, mask = (to_device(part, self.device) for part in self.collate(ids))
            row, column = (to_device(torch.tensor(part), self.device) for part in (rows, columns))
            score = first[row, tokens[:, 0]]
            if tokens.shape[1] > 1:
                logits = self.extend(state.rows(row), tokens[:, :-1])
                score = score - Losses.from_logits(logits, tokens[:, 1:], mask[:, 1:]).nll
            scores[row, column] = score
        return scores

    @torch.no_grad()
    def generate(
        self, prompt: Tensor | PromptCache, text: Text, max_new_tokens: int | Sequence[int]
    ) -> Tensor:
        return self.generate_after(self.prefill(prompt, text), max_new_tokens)

    @torch.no_grad()
    def generate_after(self, state: DecodingState, max_new_tokens: int | Sequence[int]) -> Tensor:
        """Greedy decoding, which changes `state`.

        Not transformers' `generate`, which mixes a model's own penalties and minimum lengths into
        any config it is given.
        """
        rows = len(state.logits)
        limits = [max_new_tokens] * rows if isinstance(max_new_tokens, int) else max_new_tokens
        limit, eos = (
            to_device(torch.tensor(part), self.device) for part in (limits, sorted(self.eos_ids))
        )
        unfinished = torch.ones(rows, dtype=torch.bool, device=self.device)
        generated: list[Tensor] = []
        logits, next_logits = state.logits, self.decoding_step(state, max(limits))
        while True:
            tokens = torch.where(unfinished, logits.argmax(-1), self.filler_id)
            generated.append(tokens)
            unfinished = unfinished & ~torch.isin(tokens, eos) & (limit > len(generated))
            if len(generated) == max(limits) or not bool(unfinished.any()):
                return torch.stack(generated, dim=1)
            logits = next_logits(tokens[:, None])

    def decoding_step(self, state: DecodingState, steps: int) -> Callable[[Tensor], Tensor]:
        """A function of the next token [B, 1] that returns the logits after it [B, V]; it is called
        up to `steps` times."""
        return lambda tokens: self.extend(state, tokens)[:, -1]

    @property
    def filler_id(self) -> int:
        """What follows a row's end: a pad, or an end of sequence if the tokenizer has no pad, so
        that it is never decoded as a word."""
        if self.tokenizer is None or getattr(self.tokenizer, "pad_token_id", None) is not None:
            return self.pad_id
        return min(self.eos_ids, default=self.pad_id)
