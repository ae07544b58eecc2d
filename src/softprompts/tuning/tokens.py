"""Token ids of texts, tokenised when they are first read and cached by content: a large task is
tokenised once per tokenizer, however many runs read it, and only the rows that are read. While a
GPU trains, a thread tokenises the rows of later steps.
"""

import contextlib
import hashlib
import heapq
import itertools
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence, Sized
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedTokenizerBase

from ..backbone import Backbone
from ..errors import UserError
from ..files import cache_folder
from ..files.tensors import read_tensors, write_tensors
from ..tasks import Example, prepend_sentinel

MIN_TEXTS = 2000
"""Fewer texts than this are not worth a file."""
MAX_TOKENS = 2**27
"""Tokens that stay in memory, for the next run of a cohort with the same texts."""
LONGEST = 64
"""Texts with the most characters, of which one probably has the most tokens."""
_memory: "OrderedDict[str, TokenIds]" = OrderedDict()


class TokenIds:
    """The ids of texts, tokenised when they are first read. Once complete, they are saved."""

    def __init__(self, texts: Sequence[str], path: Path | None = None) -> None:
        """`path`: where they are saved, if they are to be."""
        self.texts, self.path = texts, path
        self.tokens, self._missing = 0, len(texts)
        self._rows: list[npt.NDArray[np.int32] | None] = [None] * len(texts)
        self._lock = threading.Lock()
        if path is not None and path.exists():
            with contextlib.suppress(UserError, KeyError, RuntimeError):  # corrupted: written again
                tensors, _ = read_tensors(path)
                ids, ends = tensors["ids"].numpy(), tensors["ends"].numpy()
                if len(ends) == len(texts) and ends[-1] == len(ids):
                    self._rows, self._missing = np.split(ids, ends[:-1]), 0
                    self.tokens = len(ids)

    def read(self, backbone: Backbone, rows: Iterable[int]) -> list[npt.NDArray[np.int32]]:
        """The ids of these texts, not truncated; `backbone` tokenises those not read before."""
        rows = list(rows)
        new = [row for row in dict.fromkeys(rows) if self._rows[row] is None]
        if new:
            self._add(new, backbone.token_ids([self.texts[row] for row in new]))
        return [array for row in rows if (array := self._rows[row]) is not None]

    def _add(self, rows: Sequence[int], ids: Sequence[Sequence[int]]) -> None:
        with self._lock:  # another thread may have read some of the same rows
            before = self._missing
            for row, row_ids in zip(rows, ids, strict=True):
                if self._rows[row] is None:
                    self._rows[row] = np.array(row_ids, np.int32)
                    self.tokens += len(row_ids)
                    self._missing -= 1
            completed = before > 0 and not self._missing
        if completed and self.path is not None:
            self._save(self.path)

    def _save(self, path: Path) -> None:
        rows = [ids for ids in self._rows if ids is not None]
        ends = np.cumsum([len(ids) for ids in rows])
        tensors = {"ids": torch.from_numpy(np.concatenate(rows)), "ends": torch.from_numpy(ends)}
        with contextlib.suppress(UserError):  # a full or read-only disk costs time, not the run
            write_tensors(path, tensors)


def cached_ids(backbone: Backbone, texts: Sequence[str]) -> TokenIds:
    """The ids of `texts`, as far as they are known; the same object for the same texts."""
    tokenizer = getattr(backbone.tokenizer, "backend_tokenizer", None)
    if tokenizer is None:
        return TokenIds(texts)
    kind = type(backbone).__name__ + backbone.chat_template
    digest = hashlib.sha256(f"{kind}\0{tokenizer.to_str()}\0".encode())
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    key = digest.hexdigest()[:40]
    if key not in _memory:
        path = cache_folder() / "tokens" / f"{key}.safetensors"
        _memory[key] = TokenIds(texts, path if len(texts) >= MIN_TEXTS else None)
    _memory.move_to_end(key)
    while len(_memory) > 1 and sum(ids.tokens for ids in _memory.values()) > MAX_TOKENS:
        _memory.popitem(last=False)
    return _memory[key]


class Rows(Sized, Iterable[list[int]]):
    """Rows of ids, tokenised when they are first read; many at a time is fastest."""

    @abstractmethod
    def read(self, rows: Iterable[int]) -> list[list[int]]:
        """The rows of these numbers."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.read(range(len(self))))


class TextRows(Rows):
    """A run's texts, truncated to `budget` tokens."""

    def __init__(self, backbone: Backbone, tasks: Sequence[Sequence[Example]], budget: int) -> None:
        """`tasks`: the examples of each task of a mixture, in order."""
        self.backbone, self.budget = backbone, budget
        self._parts = [cached_ids(backbone, [e.input for e in examples]) for examples in tasks]
        self._ends = np.cumsum([len(examples) for examples in tasks])
        self._ahead: dict[int, Future[object]] = {}
        """The rows that are tokenised in the background."""

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, rows: Iterable[int]) -> list[list[int]]:
        untruncated = self._untruncated(rows)
        return [self.backbone.truncate(row.tolist(), self.budget) for row in untruncated]

    def lengths(self, rows: Iterable[int]) -> list[int]:
        """The tokens of these rows."""
        return [min(len(row), self.budget) for row in self._untruncated(rows)]

    def count_truncated(self, rows: Iterable[int]) -> int:
        """How many of these rows are truncated."""
        return sum(len(row) > self.budget for row in self._untruncated(rows))

    def share(self, token: int, rows: Iterable[int]) -> float:
        """The share of a token among the tokens of these rows, special ones left out."""
        opening, closing = self.backbone.special_token_counts
        texts = [row[opening : len(row) - closing] for row in self._untruncated(rows)]
        return sum(int((ids == token).sum()) for ids in texts) / max(1, sum(map(len, texts)))

    def longest(self) -> int:
        """The tokens of the longest row, judged by characters before anything is tokenised."""
        texts = list(itertools.chain.from_iterable(part.texts for part in self._parts))
        return max(
            self.lengths(heapq.nlargest(LONGEST, range(len(texts)), lambda row: len(texts[row])))
        )

    def read_ahead(self, rows: Sequence[int], pool: Executor) -> None:
        """Have these rows tokenised in `pool`; whoever reads one of them waits for all of them."""
        if rows and rows[0] not in self._ahead:
            self._ahead |= dict.fromkeys(rows, pool.submit(self._tokenise, rows))

    def _untruncated(self, rows: Iterable[int]) -> list[npt.NDArray[np.int32]]:
        rows = list(rows)
        for future in {self._ahead.pop(row) for row in rows if row in self._ahead}:
            future.result()
        return self._tokenise(rows)

    def _tokenise(self, rows: Sequence[int]) -> list[npt.NDArray[np.int32]]:
        numbers = np.array(rows, np.int64)
        part_of = np.searchsorted(self._ends, numbers, side="right")
        ids: dict[int, npt.NDArray[np.int32]] = {}
        for part in np.unique(part_of).tolist():
            positions = np.flatnonzero(part_of == part)
            start = int(self._ends[part]) - len(self._parts[part].texts)
            found = self._parts[part].read(self.backbone, (numbers[positions] - start).tolist())
            ids |= zip(positions.tolist(), found, strict=True)
        return [ids[position] for position in range(len(numbers))]


@contextmanager
def reading_ahead(orders: Sequence[Sequence[tuple[TextRows, Sequence[int]]]]) -> Iterator[None]:
    """Inside, one thread tokenises chunks of rows in these orders, those of all runs in turn.

    Nothing else changes: who reads a row waits for its chunk, and gets the chunk's error. On a CPU,
    where training needs the cores, rows are tokenised when they are read.
    """
    if not (orders and _can_read_ahead(orders[0][0][0].backbone)):
        yield
        return
    pool = ThreadPoolExecutor(1, "softprompts-tokens")
    try:
        for chunks in itertools.zip_longest(*orders):
            for texts, rows in filter(None, chunks):
                texts.read_ahead(rows, pool)
        yield
    finally:
        pool.shutdown(cancel_futures=True)
        for texts, _ in itertools.chain.from_iterable(orders):
            texts._ahead.clear()


def _can_read_ahead(backbone: Backbone) -> bool:
    """Whether a second thread has a core, and may use the tokenizer: it must release the GIL, and
    targets must not change it (as in mBART, where they switch the language)."""
    tokenizer, switch = type(backbone.tokenizer), "_switch_to_target_mode"
    return (
        backbone.device.type != "cpu"
        and hasattr(tokenizer, "backend_tokenizer")
        and getattr(tokenizer, switch, None) is getattr(PreTrainedTokenizerBase, switch, None)
    )


class TargetRows(Rows):
    """A run's targets; each distinct one is tokenised once."""

    def __init__(self, backbone: Backbone, examples: Sequence[Example], sentinel: bool) -> None:
        self.backbone, self.examples, self.sentinel = backbone, examples, sentinel
        self._ids: dict[str, list[int]] = {}

    def __len__(self) -> int:
        return len(self.examples)

    def read(self, rows: Iterable[int]) -> list[list[int]]:
        words = [self.examples[row].target for row in rows]
        new = [word for word in dict.fromkeys(words) if word not in self._ids]
        if new:
            ids = prepend_sentinel(
                self.backbone.tokenise_targets(new),
                self.backbone.tokenizer,
                self.backbone.name,
                self.sentinel,
            )
            self._ids |= zip(new, ids, strict=True)
        return [self._ids[word] for word in words]
