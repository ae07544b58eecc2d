"""Models that write. They read a row once; every candidate answer, or the greedy one, goes on from what was read."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from .backbone import Backbone
from .device import sent
from .memory import Memory, Reading
from .rows import Candidates, Losses, Text, each_row

ROOM = 2**32
"""Bytes of keys and values for candidates that are scored together; one for each row has room always."""


class Writer(Backbone):
    """What the families that write share; how a row is read, and what comes after it, is their own."""

    @abstractmethod
    def read(self, prompt: Tensor | Memory, text: Text) -> Reading:
        """[prompt; text], up to where the answer begins."""

    @abstractmethod
    def go_on(self, reading: Reading, tokens: Tensor) -> Tensor:
        """The logits after each of `tokens` [B, N]: [B, N, V]; the reading has them in it from now on."""

    @torch.no_grad()
    def scores(self, prompt: Tensor | Memory, text: Text, candidates: Candidates) -> Tensor:
        """Prompt and text are read once, whatever the number of candidates; as many of these as there is room for go on together."""
        reading = self.read(prompt, text)
        rows = each_row(candidates, len(text.mask))
        first = reading.logits.float().log_softmax(-1)
        scores = first.new_full((len(rows), max(map(len, rows))), -torch.inf)
        for row, column, ids in _together(rows, max(len(rows), ROOM // reading.size())):
            tokens, kept = (sent(part, self.device) for part in self.collate(ids))
            where, which = (sent(torch.tensor(part), self.device) for part in (row, column))
            told = first[where, tokens[:, 0]]
            if tokens.shape[1] > 1:
                logits = self.go_on(reading.rows(where), tokens[:, :-1])
                told = told - Losses.of(logits, tokens[:, 1:], kept[:, 1:]).nll
            scores[where, which] = told
        return scores

    @torch.no_grad()
    def generate(
        self, prompt: Tensor | Memory, text: Text, max_new_tokens: int | Sequence[int]
    ) -> Tensor:
        """The likeliest token again and again, each from the keys and values of all before.

        Written out, because transformers' generate mixes a model's own penalties and minimum lengths into any config it is given.
        """
        reading = self.read(prompt, text)
        rows = len(reading.logits)
        limits = [max_new_tokens] * rows if isinstance(max_new_tokens, int) else max_new_tokens
        last, ends = (sent(torch.tensor(part), self.device) for part in (limits, sorted(self.ends)))
        open_rows = torch.ones(rows, dtype=torch.bool, device=self.device)
        written: list[Tensor] = []
        logits, step = reading.logits, self.stepper(reading, max(limits))
        while True:
            tokens = torch.where(open_rows, logits.argmax(-1), self.filler)
            written.append(tokens)
            open_rows = open_rows & ~torch.isin(tokens, ends) & (last > len(written))
            if len(written) == max(limits) or not bool(open_rows.any()):
                return torch.stack(written, dim=1)
            logits = step(tokens[:, None])

    def stepper(self, reading: Reading, more: int) -> Callable[[Tensor], Tensor]:
        """What gives the logits [B, V] after one more token [B, 1], up to `more` times."""
        return lambda tokens: self.go_on(reading, tokens)[:, -1]

    @property
    def filler(self) -> int:
        """What stands after a row's end: a pad, or another end where the tokenizer has no pad; it is never read as a word."""
        own = getattr(self.tokenizer, "pad_token_id", None)
        return (
            self.pad
            if own is not None or self.tokenizer is None
            else min(self.ends, default=self.pad)
        )


def _together(
    rows: Sequence[Sequence[Sequence[int]]], most: int
) -> Iterator[tuple[list[int], list[int], list[Sequence[int]]]]:
    """All rows' candidates, those of like length together, at most so many at a time: their rows, their columns, their ids."""
    places = [(row, column) for row, own in enumerate(rows) for column in range(len(own))]
    places.sort(key=lambda place: len(rows[place[0]][place[1]]))
    for begin in range(0, len(places), most):
        some = places[begin : begin + most]
        yield (
            [row for row, _ in some],
            [column for _, column in some],
            [rows[row][column] for row, column in some],
        )
