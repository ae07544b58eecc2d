"""Index: summaries of one backbone's prompts in one file, to compare thousands at once.

It is a cache. Each prompt has a stamp, which changes with its files: prompts that were added,
removed or replaced since are noticed. A missing or corrupted index is computed again.
"""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..artifacts.library_folder import INDEX_FORMAT, LibraryFolder
from ..errors import UserError
from .search import SIMILARITIES

Summary = Tensor | str | None
"""A prompt's summaries [S, H]; None for another backbone's prompt; an error if it has none."""


@dataclass(frozen=True)
class Index:
    """Prompts by name, in order, each with one row per similarity."""

    fingerprint: str
    names: list[str]
    stamps: list[str]
    rows: Tensor
    """[S, N, H] for S similarities and N prompts."""
    skipped: dict[str, tuple[str, str]]
    """Folders without a row: their stamps, and an error or ''."""

    @classmethod
    def read(cls, folder: LibraryFolder, fingerprint: str) -> "Index":
        """The index of a backbone; an empty one if its file is missing or corrupted."""
        try:
            tensors, note = folder.read_index(fingerprint)
            skipped = {name: tuple(other) for name, other in note["others"].items()}
            index = cls(fingerprint, note["names"], note["stamps"], tensors["rows"], skipped)
            if (
                note != index._note()
                or index.rows.dtype != torch.float32
                or index.rows.shape[:2] != (len(SIMILARITIES), len(index.names))
            ):
                raise ValueError
        except (UserError, KeyError, TypeError, ValueError, AttributeError):
            return cls(fingerprint, [], [], _stacked([]), {})
        return index

    def write(self, folder: LibraryFolder) -> None:
        folder.write_index(self.fingerprint, {"rows": self.rows}, self._note())

    def _note(self) -> dict[str, object]:
        note = {
            "version": INDEX_FORMAT,
            "similarities": list(SIMILARITIES),
            "fingerprint": self.fingerprint,
            "names": self.names,
            "stamps": self.stamps,
            "others": {name: list(other) for name, other in self.skipped.items()},
        }
        digest = zlib.crc32(self.rows.contiguous().numpy().data)
        return {**note, "digest": zlib.crc32(json.dumps(note).encode(), digest)}

    def updated(
        self, stamps: Mapping[str, str], summarize: Callable[[str], tuple[str, Summary]]
    ) -> "Index":
        """The index of the folders with these stamps; itself if nothing changed.

        `summarize` gives the current stamp and the summary of a folder.
        """
        known = dict(zip(self.names, self.stamps, strict=True))
        known |= {name: stamp for name, (stamp, _) in self.skipped.items()}
        if known == stamps:
            return self
        unchanged = {name for name, stamp in stamps.items() if known.get(name) == stamp}
        rows = dict(zip(self.names, self.rows.unbind(1), strict=True))
        rows = {name: row for name, row in rows.items() if name in unchanged}
        skipped = {name: other for name, other in self.skipped.items() if name in unchanged}
        current = dict(known)
        for name in (name for name in stamps if name not in unchanged):
            current[name], summary = summarize(name)
            if isinstance(summary, Tensor):
                rows[name] = summary
            else:
                skipped[name] = (current[name], summary or "")
        widths = Counter(rows[name].shape[1] for name in sorted(rows))
        names = sorted(n for n in rows if rows[n].shape[1] == max(widths, key=widths.__getitem__))
        for name in rows.keys() - set(names):
            # Without a stamp it is checked again: the other prompts may change.
            error = (
                f"The vectors of {name} have another width than those of the other prompts of its "
                "backbone; the prompt is corrupted; copy it again, or remove it."
            )
            skipped[name] = ("", error)
        return Index(
            self.fingerprint,
            names,
            [current[name] for name in names],
            _stacked([rows[name] for name in names]),
            skipped,
        )


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(rows), 1) if rows else torch.zeros(len(SIMILARITIES), 0, 0)
