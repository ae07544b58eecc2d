"""The order of a run's training rows: a pure function of seed and position, so that a resumed run needs no state to go on."""

import math
import random
from collections.abc import Sequence

_CHUNK = 50
"""The most batches sorted by length together; an epoch has at least four such chunks, or rows would meet the same rows again."""


FEW = 1024
"""Tokens of a batch that is not worth splitting for its padding."""


class Batches:
    """Every epoch all rows once, in random batches of like length, so that little is spent on padding.

    Of a mixture's `parts` (numbers of rows, in order), one larger than `limit` gives `limit` rows to an epoch, the next ones to the next.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        size: int,
        seed: int,
        parts: Sequence[int] | None = None,
        limit: int | None = None,
    ) -> None:
        self.lengths, self.size, self.seed = lengths, size, seed
        self.parts, self.limit = parts or [len(lengths)], limit
        self.per_epoch = -(-sum(min(part, limit or part) for part in self.parts) // size)
        self._epoch = -1
        self._order: list[list[int]] = []

    def __getitem__(self, index: int) -> list[int]:
        """Rows of the batch at `index`, counted through all epochs."""
        epoch, place = divmod(index, self.per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._shuffled(epoch)
        return self._order[place]

    def _shuffled(self, epoch: int) -> list[list[int]]:
        rng = random.Random(f"{self.seed}/{epoch}")
        rows = self._of_epoch(epoch)
        rng.shuffle(rows)
        batches = []
        together = max(1, min(_CHUNK, self.per_epoch // 4)) * self.size
        for begin in range(0, len(rows), together):
            chunk = sorted(rows[begin : begin + together], key=lambda row: self.lengths[row])
            batches += [chunk[i : i + self.size] for i in range(0, len(chunk), self.size)]
        rng.shuffle(batches)
        return batches

    def _of_epoch(self, epoch: int) -> list[int]:
        """The rows of an epoch, part by part."""
        rows: list[int] = []
        begin = 0
        for number, part in enumerate(self.parts):
            own = range(begin, begin + part)
            begin += part
            if self.limit is None or part <= self.limit:
                rows += own
                continue
            order = random.Random(f"{self.seed}/part/{number}").sample(own, part)
            first = epoch * self.limit
            rows += [order[(first + place) % part] for place in range(self.limit)]
        return rows


def by_length(
    lengths: Sequence[int], size: int, waste: float = math.inf, waits: Sequence[int] | None = None
) -> list[list[int]]:
    """All rows once, longest first, in batches of like length: for evaluation, where order does not matter.

    `waste` is the most that padding may make of a batch's tokens, from `FEW` on; rows that keep others waiting (`waits`) come first.
    """
    batches: list[list[int]] = []
    tokens = 0
    for row in sorted(
        range(len(lengths)), key=lambda row: (-(waits[row] if waits else 0), -lengths[row])
    ):
        own = batches[-1] if batches else []
        padded = (len(own) + 1) * max(lengths[own[0]], lengths[row]) if own else 0
        if (
            not own
            or len(own) == size
            or (tokens >= FEW and padded > waste * (tokens + lengths[row]))
        ):
            batches.append([])
            tokens = 0
        batches[-1].append(row)
        tokens += lengths[row]
    return batches
