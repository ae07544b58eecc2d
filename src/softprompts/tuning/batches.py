"""The order of a run's training rows: a pure function of seed and position, so that a resumed run needs no state to go on."""

import random
from collections.abc import Sequence

_CHUNK = 50
"""The most batches sorted by length together; an epoch has at least four such chunks, or rows would meet the same rows again."""


class Batches:
    """Every epoch all rows once, in random batches of like length, so that little is spent on padding."""

    def __init__(self, lengths: Sequence[int], size: int, seed: int) -> None:
        self.lengths, self.size, self.seed = lengths, size, seed
        self.per_epoch = -(-len(lengths) // size)
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
        rows = list(range(len(self.lengths)))
        rng.shuffle(rows)
        batches = []
        together = max(1, min(_CHUNK, self.per_epoch // 4)) * self.size
        for begin in range(0, len(rows), together):
            chunk = sorted(rows[begin : begin + together], key=lambda row: self.lengths[row])
            batches += [chunk[i : i + self.size] for i in range(0, len(chunk), self.size)]
        rng.shuffle(batches)
        return batches


def by_length(lengths: Sequence[int], size: int) -> list[list[int]]:
    """All rows once, longest first, in batches of like length: for evaluation, where order does not matter."""
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    return [order[i : i + size] for i in range(0, len(order), size)]
