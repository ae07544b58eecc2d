"""Index: the summaries of one backbone's prompts in one file, so that thousands are compared without opening theirs.

It is a cache. Each prompt's stamp says whether its files are still those that were summed up; what came, went or was replaced since is
noticed, and an index that is missing or damaged is made anew.
"""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserError
from ..files.tensors import read_tensors, write_tensors
from .search import SIMILARITIES

FORM = {"version": 2, "similarities": list(SIMILARITIES)}
"""An index of another form is made anew."""

Told = Tensor | str | None
"""What is to be known of a prompt: its summaries [S, H]; None for another backbone's; a sentence for one that cannot be read."""


@dataclass(frozen=True)
class Index:
    """Prompts by name, in order, and a row of numbers for each similarity."""

    fingerprint: str
    names: list[str]
    stamps: list[str]
    rows: Tensor
    """[S, N, H] for S similarities and N prompts."""
    others: dict[str, tuple[str, str]]
    """The folders that have no row here: their stamps, and a sentence where one is due."""

    @classmethod
    def read(cls, path: Path, fingerprint: str) -> "Index":
        """As it was written; an empty one where there is none that can be trusted."""
        try:
            tensors, note = read_tensors(path)
            index = cls(
                fingerprint,
                note["names"],
                note["stamps"],
                tensors["rows"],
                {k: tuple(v) for k, v in note["others"].items()},
            )
            if (
                note != index._note()
                or index.rows.dtype != torch.float32
                or index.rows.shape[:2] != (len(SIMILARITIES), len(index.names))
            ):
                raise ValueError
        except (UserError, KeyError, TypeError, ValueError, AttributeError):
            return cls(fingerprint, [], [], torch.zeros(len(SIMILARITIES), 0, 0), {})
        return index

    def write(self, path: Path) -> None:
        write_tensors(path, {"rows": self.rows}, self._note())

    def _note(self) -> dict[str, object]:
        told = {name: list(other) for name, other in self.others.items()}
        held = {
            **FORM,
            "fingerprint": self.fingerprint,
            "names": self.names,
            "stamps": self.stamps,
            "others": told,
        }
        return {
            **held,
            "digest": zlib.crc32(
                json.dumps(held).encode(), zlib.crc32(self.rows.contiguous().numpy().data)
            ),
        }

    def updated(
        self, stamps: Mapping[str, str], look: Callable[[str], tuple[str, Told]]
    ) -> "Index":
        """The index of the folders with these stamps; itself where nothing changed. `look` tells a folder's stamp and what is in it."""
        known = {
            **dict(zip(self.names, self.stamps, strict=True)),
            **{name: stamp for name, (stamp, _) in self.others.items()},
        }
        if known == stamps:
            return self
        same = {name for name, stamp in stamps.items() if known.get(name) == stamp}
        rows = {
            name: row
            for name, row in zip(self.names, self.rows.unbind(1), strict=True)
            if name in same
        }
        now, others = (
            dict(known),
            {name: other for name, other in self.others.items() if name in same},
        )
        for name in stamps:
            if name in same:
                continue
            now[name], told = look(name)
            if isinstance(told, Tensor):
                rows[name] = told
            else:
                others[name] = (now[name], told or "")
        widths = Counter(rows[name].shape[1] for name in sorted(rows))
        for name in [
            name
            for name, row in rows.items()
            if row.shape[1] != max(widths, key=widths.__getitem__)
        ]:
            del rows[name]
            others[name] = (
                "",
                _misfit(name),
            )  # without a stamp it is looked at again: the others may change
        names = sorted(rows)
        return Index(
            self.fingerprint,
            names,
            [now[name] for name in names],
            _stacked(rows[name] for name in names),
            others,
        )


def _stacked(rows: Iterable[Tensor]) -> Tensor:
    found = list(rows)
    return torch.stack(found, 1) if found else torch.zeros(len(SIMILARITIES), 0, 0)


def _misfit(name: str) -> str:
    return f"The vectors of {name} are not as wide as those of the other prompts of its backbone; take a whole copy of it, or remove it."
