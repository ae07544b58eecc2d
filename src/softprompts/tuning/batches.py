"""The order of a run's training rows: a pure function of seed and position, so that resuming a run
needs no state."""

import math
import random
from collections.abc import Callable, Sequence

_CHUNK = 50
"""The most batches that are sorted by length together. An epoch has at least four such chunks, or
the same rows would meet in every epoch."""
MAX_PADDING = 1.25
"""The most tokens of a padded batch on a CPU, as a multiple of those without padding. A GPU is
faster with few batches."""
FEW_TOKENS = 1024
"""Tokens of a batch that is not worth splitting for its padding."""


class Batches:
    """All rows once per epoch, in random batches of similar length, so that padding is small.

    `lengths` returns the lengths of rows, and is asked only for rows that a batch may take. `parts`
    are the numbers of rows of a mixture's tasks, in order. A part larger than `limit` gives `limit`
    rows to an epoch, and the next ones to the next epoch.
    """

    def __init__(
        self,
        lengths: Callable[[Sequence[int]], Sequence[int]],
        size: int,
        seed: int,
        parts: Sequence[int],
        limit: int | None = None,
    ) -> None:
        self.lengths, self.size, self.seed = lengths, size, seed
        self.parts, self.limit = parts, limit
        self.per_epoch = batches_per_epoch(parts, size, limit)
        self._epoch = -1
        self._chunks: list[list[int]] = []
        self._sorted: set[int] = set()
        self._order: list[tuple[int, int]] = []

    def __getitem__(self, index: int) -> list[int]:
        """Rows of the batch at `index`, counted through all epochs."""
        batch = self._open(index)
        number, start = self._order[batch]
        chunk = self._chunks[number]
        if number not in self._sorted:
            ranks = zip(self.lengths(chunk), range(len(chunk)), strict=True)
            self._chunks[number] = chunk = [chunk[place] for _, place in sorted(ranks)]
            self._sorted.add(number)
        return chunk[start : start + self.size]

    def chunks(self, index: int, count: int) -> list[list[int]]:
        """The chunks that `count` batches from `index` on, in the same epoch, are taken from, in
        the order of their first use."""
        batch = self._open(index)
        numbers = dict.fromkeys(number for number, _ in self._order[batch : batch + count])
        return [self._chunks[number] for number in numbers if number not in self._sorted]

    def rows_before(self, index: int) -> list[int]:
        """The rows of all batches before the one at `index`, each once."""
        if index >= self.per_epoch and max(self.parts) <= (self.limit or math.inf):
            return list(range(sum(self.parts)))
        return sorted({row for before in range(index) for row in self[before]})

    def _open(self, index: int) -> int:
        """The number of a batch in its epoch, which has then been shuffled: chunks of rows, which
        are sorted when a batch is taken, and the order of batches, as the chunk of each and where
        it starts in it."""
        epoch, batch = divmod(index, self.per_epoch)
        if epoch == self._epoch:
            return batch
        rng = random.Random(f"{self.seed}/{epoch}")
        rows = self._rows(epoch)
        rng.shuffle(rows)
        chunk_size = max(1, min(_CHUNK, self.per_epoch // 4)) * self.size
        self._epoch, self._sorted = epoch, set()
        self._chunks = [rows[i : i + chunk_size] for i in range(0, len(rows), chunk_size)]
        self._order = [
            (number, start)
            for number, chunk in enumerate(self._chunks)
            for start in range(0, len(chunk), self.size)
        ]
        rng.shuffle(self._order)
        return batch

    def _rows(self, epoch: int) -> list[int]:
        rows: list[int] = []
        start = 0
        for number, size in enumerate(self.parts):
            part = range(start, start + size)
            start += size
            if self.limit is None or size <= self.limit:
                rows += part
                continue
            order = random.Random(f"{self.seed}/part/{number}").sample(part, size)
            first = epoch * self.limit
            rows += [order[(first + offset) % size] for offset in range(self.limit)]
        return rows


def batches_per_epoch(parts: Sequence[int], size: int, limit: int | None = None) -> int:
    return -(-sum(min(part, limit or part) for part in parts) // size)


def by_length(
    lengths: Sequence[int],
    size: int,
    max_padding: float = math.inf,
    priorities: Sequence[int] | None = None,
    max_tokens: float = math.inf,
) -> list[list[int]]:
    """All rows once in batches of similar length, longest first, where order does not matter.

    With padding, a batch has at most `max_tokens`, if it is more than one row; and from
    `FEW_TOKENS` on, `max_padding` times its tokens. Rows of higher priority come first.
    """
    batches: list[list[int]] = []
    tokens = 0

    def rank(row: int) -> tuple[int, int]:
        return -(priorities[row] if priorities else 0), -lengths[row]

    for row in sorted(range(len(lengths)), key=rank):
        batch = batches[-1] if batches else []
        padded = (len(batch) + 1) * max(lengths[batch[0]], lengths[row]) if batch else 0
        wasteful = tokens >= FEW_TOKENS and padded > max_padding * (tokens + lengths[row])
        if not batch or len(batch) == size or wasteful or padded > max_tokens:
            batches.append([])
            tokens = 0
        batches[-1].append(row)
        tokens += lengths[row]
    return batches
