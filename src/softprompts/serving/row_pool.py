"""RowPool: vectors of many prompts in one table on the model's device, which rows of a batch index.

A prompt takes any free rows of the table, so that prompts of all lengths share it without gaps.
When the table is full, the prompts that were used least recently are dropped.
"""

from collections import OrderedDict
from collections.abc import Collection, Hashable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..backbone import to_device

FIRST_ROWS = 1024
"""Rows of a new table; it doubles up to its bound."""

Rows = NDArray[np.int64]
NO_ROWS: Rows = np.zeros(0, np.int64)


def index_of(numbers: Sequence[int] | Rows, device: torch.device) -> Tensor:
    """Whole numbers as a tensor on `device`, to index others by."""
    return to_device(torch.as_tensor(numbers, dtype=torch.long), device)


class RowPool:
    """Rows [N, F] by key, in at most `limit` bytes; row 0 is zero."""

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device, limit: int) -> None:
        self.most = max(2, limit // (width * dtype.itemsize))
        """Rows of the table when it is full."""
        self.table = torch.zeros(min(self.most, FIRST_ROWS), width, dtype=dtype, device=device)
        self._rows: OrderedDict[Hashable, Rows] = OrderedDict()
        self._free = list(range(len(self.table) - 1, 0, -1))
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: Hashable) -> bool:
        return key in self._rows

    def get(self, key: Hashable) -> Rows | None:
        """The rows of a key, which is now the most recently used."""
        rows = self._rows.get(key)
        if rows is None:
            self.misses += 1
        else:
            self.hits += 1
            self._rows.move_to_end(key)
        return rows

    def rows(self, key: Hashable) -> Rows:
        """The rows of a key; none if it is not here."""
        return self._rows.get(key, NO_ROWS)

    def has_space(self, count: int) -> bool:
        """Whether `count` rows are free, or still to be had."""
        return len(self._free) + self.most - len(self.table) >= count

    def put(self, key: Hashable, vectors: Tensor, keep: Collection[Hashable] = ()) -> None:
        """Store `vectors` [M, F], unless they do not fit beside those to `keep`."""
        count = len(vectors)
        while not self.has_space(count):
            oldest = next((other for other in self._rows if other not in keep), None)
            if oldest is None:
                return
            self.drop(oldest)
        while len(self._free) < count:
            self._grow()
        rows = np.array([self._free.pop() for _ in range(count)], dtype=np.int64)
        self.table[index_of(rows, self.table.device)] = vectors.to(self.table)
        self._rows[key] = rows

    def drop(self, key: Hashable) -> None:
        rows = self._rows.pop(key, None)
        if rows is not None:
            self._free += rows.tolist()

    def gather(self, parts: Sequence[Rows], width: int | None = None) -> Tensor:
        """[B, P, F] for the rows of B keys, zeros where they are fewer than P: `width`, or those of
        the longest."""
        longest = max(map(len, parts)) if width is None else width
        index = np.zeros((len(parts), longest), dtype=np.int64)
        for target, part in zip(index, parts, strict=True):
            target[: len(part)] = part
        return self.take(index)

    def take(self, index: Rows) -> Tensor:
        """The rows at an index of any shape [...]: [..., F]."""
        return self.table[index_of(index, self.table.device)]

    def _grow(self) -> None:
        before = len(self.table)
        table = self.table.new_zeros(min(self.most, 2 * before), self.table.shape[1])
        table[:before] = self.table
        self.table = table
        self._free = [*range(len(table) - 1, before - 1, -1), *self._free]
