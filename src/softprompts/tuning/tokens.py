"""Texts as ids, kept on disk by content: a large task is tokenised once for each tokenizer, however many runs read it."""

import contextlib
import hashlib
import os
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import torch

from ..backbone import Backbone
from ..errors import UserError
from ..files import read_tensors, write_tensors

FROM = 2000
"""Fewer texts than this are not worth a file."""


KEPT = 8
"""Lists of texts whose ids stay in memory, for the next run of a cohort on the same ones."""
_kept: OrderedDict[str, list[list[int]]] = OrderedDict()


def cache_folder() -> Path:
    """SOFTPROMPTS_CACHE, or the user's cache folder."""
    own = os.environ.get("SOFTPROMPTS_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softprompts"


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
            backbone.whole(texts) if len(texts) < FROM else _from_disk(backbone, texts, cache_folder() / "tokens" / f"{name}.safetensors")
        )
    _kept.move_to_end(name)
    while len(_kept) > KEPT:
        _kept.popitem(last=False)
    return _kept[name]


def _from_disk(backbone: Backbone, texts: Sequence[str], path: Path) -> list[list[int]]:
    if path.exists():
        try:
            tensors, _ = read_tensors(path)
            ids, ends = tensors["ids"].tolist(), tensors["ends"].tolist()
            if len(ends) == len(texts) and ends[-1] == len(ids):
                return [ids[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        except (UserError, KeyError, RuntimeError):
            pass  # damaged: made again
    rows = backbone.whole(texts)
    flat = torch.tensor([index for row in rows for index in row], dtype=torch.int32)
    with contextlib.suppress(OSError):  # a full or read-only disk costs time, not the run
        write_tensors(path, {"ids": flat, "ends": torch.tensor([len(row) for row in rows]).cumsum(0)})
    return rows
