"""Token ids of texts, cached by content: a large task is tokenised once per tokenizer, however many
runs read it."""

import contextlib
import hashlib
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..backbone import Backbone
from ..errors import UserError
from ..files import cache_folder
from ..files.tensors import read_tensors, write_tensors

MIN_TEXTS = 2000
"""Fewer texts than this are not worth a file."""
MAX_TOKENS = 2**27
"""Tokens that stay in memory, for the next run of a cohort with the same texts."""
_memory: OrderedDict[str, list[list[int]]] = OrderedDict()


def cached_ids(backbone: Backbone, texts: Sequence[str]) -> list[list[int]]:
    """`backbone.token_ids(texts)`, from the cache if they are in it."""
    tokenizer = getattr(backbone.tokenizer, "backend_tokenizer", None)
    if tokenizer is None:
        return backbone.token_ids(texts)
    kind = type(backbone).__name__ + backbone.chat_template
    digest = hashlib.sha256(f"{kind}\0{tokenizer.to_str()}\0".encode())
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    key = digest.hexdigest()[:40]
    if key not in _memory:
        path = cache_folder() / "tokens" / f"{key}.safetensors"
        large = len(texts) >= MIN_TEXTS
        _memory[key] = _from_disk(backbone, texts, path) if large else backbone.token_ids(texts)
    _memory.move_to_end(key)
    while len(_memory) > 1 and sum(sum(map(len, rows)) for rows in _memory.values()) > MAX_TOKENS:
        _memory.popitem(last=False)
    return _memory[key]


def _from_disk(backbone: Backbone, texts: Sequence[str], path: Path) -> list[list[int]]:
    if path.exists():
        with contextlib.suppress(UserError, KeyError, RuntimeError):  # corrupted: written again
            tensors, _ = read_tensors(path)
            ids, ends = tensors["ids"], tensors["ends"]
            if len(ends) == len(texts) and ends[-1] == len(ids):
                return _rows(ids, ends)
    rows = backbone.token_ids(texts)
    ids = torch.from_numpy(np.fromiter(itertools.chain.from_iterable(rows), np.int32))
    ends = torch.tensor([len(row) for row in rows]).cumsum(0)
    with contextlib.suppress(UserError):  # a full or read-only disk costs time, not the run
        write_tensors(path, {"ids": ids, "ends": ends})
    return _rows(ids, ends)


def _rows(ids: Tensor, ends: Tensor) -> list[list[int]]:
    """The ids up to each end.

    Equal ids are one object, which takes a fifth of the memory of one object per token.
    """
    integers = np.arange(int(ids.max()) + 1).astype(object)
    tokens, stops = integers[ids.numpy()].tolist(), ends.tolist()
    return [tokens[start:stop] for start, stop in zip([0, *stops], stops, strict=False)]
