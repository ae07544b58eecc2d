"""The batch of a step, drawn on the device from the seed and the step alone.

So a resumed run sees the batches it would have seen without the interruption.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..backbone import to_device
from ..errors import UserError, setting
from .config import PretrainConfig, noise_counts, span_lengths
from .corpus import Corpus
from .objectives import end_truncated, noise_runs, prefix_lm, span_corruption
from .tokenizer import sentinel_ids

MEMORY_SHARE = 0.3
"""Fraction of the GPU's free memory for token ids; a larger corpus stays in its file."""


def combined_seed(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) & (2**63 - 1)


class Tokens:
    """The ids of a corpus, on the device if they fit."""

    def __init__(self, ids: Any, device: torch.device) -> None:
        self.device = device
        self.unsigned = ids.dtype == np.uint16
        array = np.asarray(ids)
        # torch cannot index uint16, so the ids are stored as int16 and masked when read
        tensor = torch.from_numpy(array.view(np.int16) if self.unsigned else array)
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else np.inf
        self.ids = tensor.to(device) if ids.nbytes < MEMORY_SHARE * free else tensor

    def take(self, starts: Tensor, lengths: Tensor, width: int) -> Tensor:
        """[B, width]: the ids from `starts` [B] on, padded with 0 after `lengths` [B]."""
        stored_on = self.ids.device
        begin, size = to_device(starts, stored_on)[:, None], to_device(lengths, stored_on)[:, None]
        offsets = torch.arange(width, device=stored_on)
        rows = self.ids[(begin + offsets).clamp(max=len(self.ids) - 1)]
        rows = to_device(rows.masked_fill(offsets >= size, 0), self.device).long()
        return rows & 0xFFFF if self.unsigned else rows


class Order:
    """An endless sequence of the numbers below `count`, shuffled anew for each epoch."""

    def __init__(self, count: int, *seed: int) -> None:
        self.count, self.seed = count, seed
        self.epoch = lru_cache(maxsize=2)(self._shuffled)

    def at(self, first: int, rows: int) -> tuple[Tensor, Tensor]:
        """`rows` numbers from position `first` on, and the epoch of each."""
        positions = torch.arange(first, first + rows)
        epochs = positions // self.count
        numbers = [
            self.epoch(epoch)[positions[epochs == epoch] % self.count]
            for epoch in range(int(epochs[0]), int(epochs[-1]) + 1)
        ]
        return torch.cat(numbers), epochs

    def _shuffled(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(combined_seed(*self.seed, epoch))
        return torch.randperm(self.count, generator=generator)


class Windows:
    """Tokens `begin` to `end` cut into windows of one length, in random order.

    Each epoch shifts the cuts.
    """

    def __init__(
        self, tokens: Tokens, begin: int, end: int, length: int, seed: tuple[int, ...]
    ) -> None:
        available = end - begin
        if available < length:
            raise UserError(
                f"The text has too few tokens: {len(tokens.ids)}, {available} of them for this "
                f"use, and one window takes {length}; add text, or lower "
                f"{setting('input_length')}."
            )
        count = max(1, (available - length + 1) // length)
        self.tokens, self.begin, self.length, self.seed = tokens, begin, length, seed
        self.shifts = min(length, available - count * length + 1)
        self.order = Order(count, *seed)

    def at(self, first: int, rows: int) -> Tensor:
        """[B, length]: `rows` windows from position `first` of the sequence on."""
        windows, epochs = self.order.at(first, rows)
        shifts = {
            epoch: combined_seed(*self.seed, epoch, 1) % self.shifts
            for epoch in set(epochs.tolist())
        }
        shift = torch.tensor([shifts[epoch] for epoch in epochs.tolist()])
        starts = self.begin + windows * self.length + shift
        return self.tokens.take(starts, torch.full((rows,), self.length), self.length)


class Batches:
    """`at(step)` is a batch of training or of `held_out` data: inputs [B, T] and targets [B, N],
    padded with 0.

    The rows of each objective follow one another, as in `config.rows_by_objective`.
    """

    def __init__(
        self,
        config: PretrainConfig,
        corpora: dict[str, Corpus],
        tokens: dict[str, Tokens],
        tokenizer: Any,
        held_out: bool,
    ) -> None:
        self.config, self.held_out, self.eos = config, held_out, int(tokenizer.eos_token_id)
        self.tokens, self.device = tokens, next(iter(tokens.values())).device
        self.generator = torch.Generator(self.device)
        self.makers = {"span": self._span, "prefix": self._prefix, "tasks": self._tasks}
        self.seed = 2 * config.seed + held_out
        if "span" in config.shares:
            self._prepare_span(sentinel_ids(tokenizer))
        if "prefix" in config.shares:
            self.prefix_windows = self._windows(config.row_tokens - 1, 1)
        if "tasks" in config.shares:
            self._prepare_tasks(corpora["tasks"])

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        parts = []
        for number, (name, rows) in enumerate(self.config.rows_by_objective.items()):
            self.generator.manual_seed(combined_seed(self.seed, step, number))
            parts.append(self.makers[name](step * rows, rows))
        inputs, targets = zip(*parts, strict=True)
        return torch.cat(inputs), torch.cat(targets)

    def _windows(self, length: int, number: int) -> Windows:
        """The end of the text is held out, at least one window of the longer kind."""
        config, tokens = self.config, self.tokens["text"]
        span_text, _ = span_lengths(config.input_length, config.noise, config.span)
        longest = max(span_text, config.row_tokens - 1)
        total = len(tokens.ids)
        border = total - max(longest, int(total * config.held_out)) if config.held_out else total
        begin, end = (border, total) if self.held_out else (0, border)
        return Windows(tokens, begin, end, length, (self.seed, 7, number))

    def _prepare_span(self, sentinels: list[int]) -> None:
        config = self.config
        length, _ = span_lengths(config.input_length, config.noise, config.span)
        _, spans = noise_counts(length, config.noise, config.span)
        config.check_sentinels(len(sentinels), "use a tokenizer with more")
        self.sentinels = torch.tensor(sentinels[:spans], device=self.device)
        self.span_windows = self._windows(length, 0)

    def _span(self, first: int, rows: int) -> tuple[Tensor, Tensor]:
        config, length = self.config, self.span_windows.length
        runs = noise_runs(rows, length, config.noise, config.span, self.generator)
        counts = noise_counts(length, config.noise, config.span)
        inputs, targets = span_corruption(
            self.span_windows.at(first, rows), runs, counts, self.sentinels, self.eos
        )
        return inputs, F.pad(targets, (0, config.target_tokens - targets.shape[1]))

    def _prefix(self, first: int, rows: int) -> tuple[Tensor, Tensor]:
        longest = self.config.input_length - 1
        lengths = torch.randint(
            1, longest + 1, (rows,), generator=self.generator, device=self.device
        )
        windows = self.prefix_windows.at(first, rows)
        return prefix_lm(windows, lengths, longest + 1, self.config.target_tokens, self.eos)

    def _prepare_tasks(self, corpus: Corpus) -> None:
        """Held-out examples are a random sample, because files go task by task."""
        self.starts = torch.from_numpy(corpus.starts)
        self.ends = torch.from_numpy(np.asarray(corpus.ends))
        count = len(self.ends) // 2
        shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        held_out = max(1, int(count * self.config.held_out)) if self.config.held_out else 0
        if count <= held_out:
            raise UserError(f"The tasks have {count} examples, which is too few; add some.")
        self.examples = shuffled[:held_out] if self.held_out else shuffled[held_out:]
        self.example_order = Order(len(self.examples), self.seed, 7, 2)

    def _tasks(self, first: int, rows: int) -> tuple[Tensor, Tensor]:
        examples = self.examples[self.example_order.at(first, rows)[0]]
        return (
            self._example_texts(2 * examples, self.config.input_length),
            self._example_texts(2 * examples + 1, self.config.target_tokens),
        )

    def _example_texts(self, texts: Tensor, width: int) -> Tensor:
        """[B, width]: the texts of these numbers, truncated to `width` tokens."""
        starts, lengths = self.starts[texts], self.ends[texts] - self.starts[texts]
        rows = self.tokens["tasks"].take(starts, lengths, width)
        return end_truncated(rows, to_device(lengths, self.device), self.eos)
