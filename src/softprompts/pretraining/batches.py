"""The batch of a step, made on the device from the seed and the step alone, so that a run that goes on sees what it would have seen."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..backbone.device import sent
from ..errors import UserError
from .config import PretrainConfig, noise_counts, span_lengths
from .corpus import Corpus
from .objectives import cut, noise_runs, prefix_lm, span_corruption
from .tokenizer import sentinel_ids

ROOM = 0.3
"""The share of the GPU's free memory that token ids may take; larger ones stay in their file, and rows are sent as they are needed."""


def mixed(*numbers: int) -> int:
    """One seed out of several numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) & (2**63 - 1)


class Tokens:
    """A corpus's ids, where rows can be taken from them: on the device if there is room."""

    def __init__(self, ids: Any, device: torch.device) -> None:
        self.device = device
        self.wide = ids.dtype != np.uint16
        held = torch.from_numpy(
            np.asarray(ids) if self.wide else np.asarray(ids).view(np.int16)
        )  # torch indexes no unsigned numbers
        fits = device.type != "cuda" or ids.nbytes < ROOM * torch.cuda.mem_get_info(device)[0]
        self.ids = held.to(device) if fits else held

    def take(self, starts: Tensor, lengths: Tensor, width: int) -> Tensor:
        """[B, width]: the ids from `starts` [B] on, pads after `lengths` [B]."""
        home = self.ids.device
        begin, size = sent(starts, home)[:, None], sent(lengths, home)[:, None]
        places = torch.arange(width, device=home)
        rows = sent(
            self.ids[(begin + places).clamp(max=len(self.ids) - 1)].masked_fill(places >= size, 0),
            self.device,
        ).long()
        return rows if self.wide else rows & 0xFFFF


class Order:
    """An endless order of `count` things; every pass over them is shuffled anew."""

    def __init__(self, count: int, *seed: int) -> None:
        self.count, self.seed = count, seed
        self.passes: dict[int, Tensor] = {}

    def at(self, first: int, rows: int) -> tuple[Tensor, Tensor]:
        """The things in `rows` places from `first` on, and the pass that each is of."""
        places = torch.arange(first, first + rows)
        turns = places // self.count
        return torch.cat(
            [
                self._pass(turn)[places[turns == turn] % self.count]
                for turn in range(int(turns[0]), int(turns[-1]) + 1)
            ]
        ), turns

    def _pass(self, turn: int) -> Tensor:
        if turn not in self.passes:
            while len(self.passes) > 1:
                del self.passes[next(iter(self.passes))]
            self.passes[turn] = torch.randperm(
                self.count, generator=torch.Generator().manual_seed(mixed(*self.seed, turn))
            )
        return self.passes[turn]


class Windows:
    """A stretch of the text cut into windows of one length, in a random order; every pass cuts at other places."""

    def __init__(
        self, tokens: Tokens, begin: int, end: int, length: int, seed: tuple[int, ...]
    ) -> None:
        room = end - begin
        if room < length:
            raise UserError(
                f"The text holds too few tokens: {len(tokens.ids)}, of which {room} for this use, and one window takes {length}; "
                "give more text, or a shorter --input-length."
            )
        count = max(1, (room - length + 1) // length)
        self.tokens, self.begin, self.length, self.seed = tokens, begin, length, seed
        self.shift = min(length, room - count * length + 1)
        self.order = Order(count, *seed)

    def at(self, first: int, rows: int) -> Tensor:
        slots, turns = self.order.at(first, rows)
        shifts = {turn: mixed(*self.seed, turn, 1) % self.shift for turn in set(turns.tolist())}
        starts = (
            self.begin
            + slots * self.length
            + torch.tensor([shifts[turn] for turn in turns.tolist()])
        )
        return self.tokens.take(starts, torch.full((rows,), self.length), self.length)


class Batches:
    """`at(step)` is a batch: inputs [B, T] and targets [B, N], padded with 0, the objectives' rows one after the other."""

    def __init__(
        self,
        config: PretrainConfig,
        corpora: dict[str, Corpus],
        tokens: dict[str, Tokens],
        tokenizer: Any,
        held: bool,
    ) -> None:
        """Of what is learned from, or of what is `held` out."""
        self.config, self.held, self.eos = config, held, int(tokenizer.eos_token_id)
        self.tokens, self.device = tokens, next(iter(tokens.values())).device
        self.generator = torch.Generator(self.device)
        self.makers: dict[str, Callable[[int, int], tuple[Tensor, Tensor]]] = {}
        if "span" in config.shares:
            self._prepare_span(sentinel_ids(tokenizer))
        if "prefix" in config.shares:
            self.passages = self._windows(config.input_length - 1 + config.written, 1)
            self.makers["prefix"] = self._prefix
        if "tasks" in config.shares:
            self._prepare_tasks(corpora["tasks"])

    @property
    def seed(self) -> int:
        return 2 * self.config.seed + self.held

    def at(self, step: int) -> tuple[Tensor, Tensor]:
        parts = []
        for number, (name, rows) in enumerate(self.config.rows_of.items()):
            self.generator.manual_seed(mixed(self.seed, step, number))
            parts.append(self.makers[name](step * rows, rows))
        return torch.cat([inputs for inputs, _ in parts]), torch.cat(
            [targets for _, targets in parts]
        )

    def _windows(self, length: int, number: int) -> Windows:
        """The end of the text is held out, at least a window of the longest kind."""
        config, tokens = self.config, self.tokens["text"]
        longest = max(
            span_lengths(config.input_length, config.noise, config.span)[0],
            config.input_length - 1 + config.written,
        )
        edge = len(tokens.ids) - (
            max(longest, int(len(tokens.ids) * config.held_out)) if config.held_out else 0
        )
        begin, end = (edge, len(tokens.ids)) if self.held else (0, edge)
        return Windows(tokens, begin, end, length, (self.seed, 7, number))

    def _prepare_span(self, sentinels: list[int]) -> None:
        config = self.config
        length, _ = span_lengths(config.input_length, config.noise, config.span)
        spans = noise_counts(length, config.noise, config.span)[1]
        config.check_sentinels(len(sentinels), "take a tokenizer with more")
        self.sentinels = torch.tensor(sentinels[:spans], device=self.device)
        self.texts = self._windows(length, 0)
        self.makers["span"] = self._span

    def _span(self, first: int, rows: int) -> tuple[Tensor, Tensor]:
        config, length = self.config, self.texts.length
        runs = noise_runs(rows, length, config.noise, config.span, self.generator)
        counts = noise_counts(length, config.noise, config.span)
        inputs, targets = span_corruption(
            self.texts.at(first, rows), runs, counts, self.sentinels, self.eos
        )
        return inputs, F.pad(targets, (0, config.written - targets.shape[1]))

    def _prefix(self, first: int, rows: int) -> tuple[Tensor, Tensor]:
        longest = self.config.input_length - 1
        lengths = torch.randint(
            1, longest + 1, (rows,), generator=self.generator, device=self.device
        )
        return prefix_lm(
            self.passages.at(first, rows), lengths, longest + 1, self.config.written, self.eos
        )

    def _prepare_tasks(self, corpus: Corpus) -> None:
        """Examples are held out by lot, because files go task by task."""
        self.starts, self.ends = (
            torch.from_numpy(corpus.starts),
            torch.from_numpy(np.asarray(corpus.ends)),
        )
        count = len(self.ends) // 2
        lots = torch.randperm(count, generator=torch.Generator().manual_seed(0))
        away = max(1, int(count * self.config.held_out)) if self.config.held_out else 0
        if count <= away:
            raise UserError(f"The tasks hold {count} examples, which is too few; give more.")
        self.examples = lots[:away] if self.held else lots[away:]
        self.example_order = Order(len(self.examples), self.seed, 7, 2)
        self.makers["tasks"] = self._tasks

    def _tasks(self, first: int, rows: int) -> tuple[Tensor, Tensor]:
        chosen = self.examples[self.example_order.at(first, rows)[0]]
        return self._sides(2 * chosen, self.config.input_length), self._sides(
            2 * chosen + 1, self.config.written
        )

    def _sides(self, chosen: Tensor, width: int) -> Tensor:
        starts, lengths = self.starts[chosen], self.ends[chosen] - self.starts[chosen]
        return cut(
            self.tokens["tasks"].take(starts, lengths, width), sent(lengths, self.device), self.eos
        )
