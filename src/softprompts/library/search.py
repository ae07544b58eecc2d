"""Similarity of tasks by their prompts (Vu 2022, SPoT §3.1), and an index to search many by.

Prompts are [P, H]; lengths may differ. Both similarities are means over pairs of tokens, so each is
a dot product of two summaries [H], one per prompt: one matrix product compares thousands of
prompts. Mixtures and different lengths follow one rule: all tokens of all K prompts count alike,
and a router does not count.
"""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from ..artifacts.library_folder import INDEX_FORMAT, LibraryFolder
from ..errors import UserError
from ..files.tensors import read_tensors, write_tensors

Name = TypeVar("Name", str, tuple[str, int])


def cosine_of_average_tokens(one: Tensor, other: Tensor) -> float:
    """cos(mean_i e1_i, mean_j e2_j)."""
    return float(cosine_similarity(one.mean(0), other.mean(0), dim=0))


def per_token_average_cosine(one: Tensor, other: Tensor) -> float:
    """The mean of cos(e1_i, e2_j) over all pairs of tokens; the better of the two in the paper."""
    return float((normalize(one, dim=1) @ normalize(other, dim=1).T).mean())


SIMILARITIES: dict[str, Callable[[Tensor, Tensor], float]] = {
    "cosine_of_average_tokens": cosine_of_average_tokens,
    "per_token_average_cosine": per_token_average_cosine,
}

DECIMALS = 6
"""Similarities that agree to this many decimals are equal: the rest is rounding in float32."""


def rank(similarities: Mapping[Name, float]) -> list[Name]:
    """Names by similarity, the most similar first; equally similar ones by name."""
    return sorted(similarities, key=lambda name: (-round(similarities[name], DECIMALS), name))


def summary(vectors: Tensor) -> Tensor:
    """A prompt [..., H] as two rows [2, H], in the order of SIMILARITIES.

    The dot product of two prompts' rows is their similarity. The rows are the mean token,
    normalised, and the mean of the normalised tokens, in float64, where sums of any float32
    numbers are finite.
    """
    tokens = vectors.double().reshape(-1, vectors.shape[-1])
    return torch.stack([normalize(tokens.mean(0), dim=0), normalize(tokens, dim=1).mean(0)])


Summary = Tensor | str | None
"""A prompt's summaries [S, H]; None for another backbone's prompt; an error if it has none."""


@dataclass(frozen=True)
class Index:
    """Summaries of one backbone's prompts, by name, in one file, to compare thousands at once.

    It is a cache. Each prompt has a stamp, which changes with its files: prompts that were added,
    removed or replaced since are noticed. A missing or corrupted index is computed again.
    """

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
            tensors, note = read_tensors(folder.index(fingerprint))
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
        write_tensors(folder.index(self.fingerprint), {"rows": self.rows}, self._note())

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
        rows = dict(zip(self.names, self.rows.unbind(1), strict=True))
        entries = {
            name: (stamp, rows[name] if name in rows else self.skipped[name][1])
            if known.get(name) == stamp
            else summarize(name)
            for name, stamp in stamps.items()
        }
        rows = {name: row for name, (_, row) in entries.items() if isinstance(row, Tensor)}
        skipped = {
            name: (stamp, why or "")
            for name, (stamp, why) in entries.items()
            if not isinstance(why, Tensor)
        }
        widths = Counter(rows[name].shape[1] for name in sorted(rows))
        names = sorted(n for n in rows if rows[n].shape[1] == max(widths, key=widths.__getitem__))
        for name in rows.keys() - set(names):
            # Without a stamp it is checked again: the other prompts may change.
            error = (
                f"The vectors of {name} differ in width from those of the other prompts of its "
                "backbone, so the prompt is corrupted; copy it again, or remove it."
            )
            skipped[name] = ("", error)
        return Index(
            self.fingerprint,
            names,
            [entries[name][0] for name in names],
            _stacked([rows[name] for name in names]),
            skipped,
        )


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(rows), 1) if rows else torch.zeros(len(SIMILARITIES), 0, 0)
