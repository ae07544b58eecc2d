"""Texts as ids, kept on disk by content: a large task is tokenised once for each tokenizer, however many runs read it."""

import contextlib
import hashlib
import itertools
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..backbone import Backbone
from ..errors import UserError
from ..files.tensors import read_tensors, write_tensors

FROM = 2000
"""Fewer texts than this are not worth a file."""


KEPT = 2**27
"""Tokens of texts that stay in memory, for the next run of a cohort on the same ones."""
_kept: OrderedDict[str, list[list[int]]] = OrderedDict()


def cache_folder() -> Path:
    """SOFTPROMPTS_CACHE, or the user's cache folder."""
    own = os.environ.get("SOFTPROMPTS_CACHE")
    return (
        Path(own)
        if own
        else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softprompts"
    )


def whole(backbone: Backbone, texts: Sequence[str]) -> list[list[int]]:
    """`backbone.whole(texts)`, from the cache where it is there."""
    words = getattr(backbone.tokenizer, "backend_tokenizer", None)
    if words is None:
        return backbone.whole(texts)
    digest = hashlib.sha256(f"{type(backbone).__name__}\0{words.to_str()}\0".encode())
    for text in texts:
        digest.update(text.encode("utf-8", "surrogatepass"))
        digest.update(b"\0")
    name = digest.hexdigest()[:40]
    if name not in _kept:
        _kept[name] = (
            backbone.whole(texts)
            if len(texts) < FROM
            else _from_disk(backbone, texts, cache_folder() / "tokens" / f"{name}.safetensors")
        )
    _kept.move_to_end(name)
    while len(_kept) > 1 and sum(sum(map(len, rows)) for rows in _kept.values()) > KEPT:
        _kept.popitem(last=False)
    return _kept[name]


def _from_disk(backbone: Backbone, texts: Sequence[str], path: Path) -> list[list[int]]:
    if path.exists():
        try:
            tensors, _ = read_tensors(path)
            ids, ends = tensors["ids"], tensors["ends"]
            if len(ends) == len(texts) and ends[-1] == len(ids):
                return _rows(ids, ends)
        except (UserError, KeyError, RuntimeError):
            pass  # damaged: made again
    rows = backbone.whole(texts)
    ids = torch.from_numpy(np.fromiter(itertools.chain.from_iterable(rows), np.int32))
    ends = torch.tensor([len(row) for row in rows]).cumsum(0)
    with contextlib.suppress(UserError):  # a full or read-only disk costs time, not the run
        write_tensors(path, {"ids": ids, "ends": ends})
    return _rows(ids, ends)


def _rows(ids: Tensor, ends: Tensor) -> list[list[int]]:
    """Ids up to each end; every id is one object, which takes a fifth of the memory of as many as there are tokens."""
    each = np.arange(int(ids.max()) + 1).astype(object)
    words, stops = each[ids.numpy()].tolist(), ends.tolist()
    return [words[begin:end] for begin, end in zip([0, *stops], stops, strict=False)]
