"""Library: a folder of prompts, each a folder of its own with a card, and an index to search them by.

Several processes may add at once. A prompt is made in a hidden folder and moved in whole. Whoever holds the library's lock may move
folders; the lock goes when its process does, so hidden folders that a holder finds are what the dead left, and are put right.
"""

import contextlib
import math
import os
import re
import shutil
import sys
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..artifacts.embedding import EMBEDDING, read_embedding, read_vectors
from ..artifacts.prompt_file import CARD, TENSORS, load_prompt
from ..config.choice import Choice
from ..errors import UserError, listing
from ..files import NoLeaveError, read_json, write_atomically
from ..files.names import safe_name, some_place
from ..files.tensors import check_tensors
from .index import Index, Told
from .search import SIMILARITIES, summary

KEPT = (CARD, TENSORS, EMBEDDING, "config.yaml", "metrics.jsonl", "curve.png")
"""What a library takes of a run's folder: not the training state."""
NEW, OLD = ".new-", ".old-"
LOCK, INDEX = ".lock", ".index"


class NoVectorsError(UserError):
    """A run that leaves no prompt to keep: it tuned a whole model, or nothing."""


@dataclass(frozen=True)
class Entry:
    """A prompt of a library, or any other that lies in a folder."""

    name: str
    folder: Path
    card: dict[str, Any]

    @classmethod
    def of(cls, folder: Path, name: str | None = None) -> "Entry":
        """The prompt in a folder, by its card."""
        path = folder / CARD
        try:
            card = read_json(path)
        except UserError as error:
            if isinstance(error, NoLeaveError) or os.path.exists(path):
                raise
            raise UserError(_no_prompt(folder)) from None
        if not _whole(card):
            raise UserError(
                f"{path} does not tell a prompt's task, backbone and length; take a whole copy, or remove the folder."
            )
        check_tensors(folder / TENSORS)
        return cls(name or folder.name, folder, card)

    @property
    def fingerprint(self) -> str:
        """Of the backbone, the only one that the prompt means something to."""
        return str(self.card["backbone"]["fingerprint"])

    @property
    def step(self) -> int | None:
        """The step that the task embedding was taken at, where the card tells."""
        step = self.told("embedding", "step") if self.told("embedding") else self.told("best_step")
        return step if isinstance(step, int) else None

    @property
    def seed(self) -> int | None:
        """The seed of its run, where the card tells: runs of one seed start from the same words."""
        seed = self.told("seed")
        return seed if isinstance(seed, int) else None

    @property
    def started_from(self) -> list[str]:
        """The prompts that this one began as, by their folders."""
        sources = self.told("config", "prompt", "start", "sources")
        return list(map(str, sources)) if isinstance(sources, list) else []

    def told(self, *path: str) -> Any:
        """What the card says there; None where it does not."""
        value: Any = self.card
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def check_vectors(self) -> None:
        if self.told("prompt", "length") == 0:
            raise NoVectorsError(
                f"{self.folder} has no prompt vectors: its model was tuned, or nothing was; name a run that tuned a prompt."
            )

    def vectors(self) -> Tensor:
        """The task embedding [K, P, H]: the prompt after a fixed number of steps where it was kept, else the final prompt."""
        self.check_vectors()
        kept = read_embedding(self.folder)
        vectors = read_vectors(self.folder / TENSORS) if kept is None else kept
        if vectors.shape[2] != self.card["backbone"].get("hidden", vectors.shape[2]):
            raise UserError(
                f"The vectors in {self.folder} are of another width than its card tells; take a whole copy of the folder."
            )
        return vectors


def _no_prompt(folder: Path) -> str:
    return f"{folder} holds no {CARD}, so it is no prompt, or its run has not finished."


def _whole(card: Any) -> bool:
    """Whether a card tells what all commands ask of it."""
    try:
        told, form = (
            (card["backbone"]["fingerprint"], card["backbone"]["name"], card["task"]["name"]),
            card["prompt"],
        )
        sizes = [form["length"], form.get("count", 1)]
        Choice.of(form.get("route", "single"))
        scores = [
            value
            for part in ("metrics", "majority", "test")
            for value in dict(card.get(part) or {}).values()
        ]
        return (
            all(isinstance(text, str) and text for text in told)
            and all(type(size) is int for size in sizes)
            and sizes[0] >= 0 < sizes[1]
            and all(isinstance(value, int | float) and math.isfinite(value) for value in scores)
        )
    except (KeyError, TypeError, ValueError, AttributeError, UserError):
        return False


@dataclass(frozen=True)
class Found:
    """A prompt, and how like another it is."""

    entry: Entry
    similarity: float


def say(sentence: str) -> None:
    print(f"softprompts: {sentence}", file=sys.stderr)


class Library:
    """Prompts by name. `tell` hears of each folder that is no prompt, in a sentence; the others are there all the same."""

    def __init__(self, folder: Path, tell: Callable[[str], object] = say) -> None:
        self.folder, self.tell = Path(folder), tell

    def there(self) -> "Library":
        """Itself, if there is such a folder."""
        if not self.folder.is_dir():
            raise UserError(
                f"There is no library at {self.folder}; name one with --library, or bring prompts in with `softprompts prompts import`."
            )
        return self

    # -- adding --------------------------------------------------------------------------------------------------------------

    def add(self, run: Path, name: str | None = None, overwrite: bool = False) -> Entry:
        """Take in the prompt of a folder that tune or import wrote, under its folder's name or another."""
        run = Path(run)
        name = safe_name(run.resolve().name) if name is None else name
        place = self.place(name)
        self.check(run)
        with self._locked(write=True):
            self.free(name, overwrite)
            made = self.folder / f"{NEW}{uuid.uuid4().hex}"
            try:
                for part in KEPT:
                    if (run / part).exists():
                        write_atomically(
                            made / part,
                            lambda beside, part=part: shutil.copyfile(run / part, beside),
                        )  # type: ignore[misc]
                self.check(made)  # the run's own folder may have changed meanwhile
                self._move_in(made, place)
            finally:
                _remove(made)
        return Entry.of(place)

    def free(self, name: str, overwrite: bool = False) -> str:
        """The name, if a prompt may go there."""
        if self.place(name).exists() and not overwrite:
            raise UserError(
                f"The library {self.folder} already holds {name}; give another --name, or replace it with --overwrite."
            )
        return name

    def place(self, name: str) -> Path:
        """The folder of a name, which must be one that stays in the library."""
        if not name or name != safe_name(name) or len(name) > 200:
            raise UserError(
                f"{name!r} cannot be a prompt's name; use up to 200 letters, digits, dots, dashes and underscores."
            )
        return self.folder / name

    @staticmethod
    def check(folder: Path) -> None:
        """Whether a folder holds a whole prompt that a library takes."""
        prompt, _ = load_prompt(folder)
        vectors = Entry.of(folder).vectors()
        if vectors.shape[-1] != prompt.table.shape[-1]:
            raise UserError(
                f"{folder / EMBEDDING} is of another width than its prompt; take a whole copy of the folder."
            )

    def _move_in(self, made: Path, place: Path) -> None:
        """Instead of an old one, where there is one: it is put aside first, and put back by the next holder if this one dies now."""
        aside = self.folder / f"{OLD}{place.name}"
        try:
            if place.exists():
                place.rename(aside)
            made.rename(place)
            if aside.exists():
                aside.rename(made)  # half of it must never come back
        except OSError as error:
            raise UserError(
                f"{place} cannot be written ({error.strerror}); make room, or name another place."
            ) from None

    # -- the lock ------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self, write: bool = False) -> Iterator[None]:
        """Alone in the library, with nothing half done in it. Who may not write, or finds no lock, looks without."""
        if not write and not os.path.exists(self.folder / LOCK):
            yield
            return
        try:
            if write:
                self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / LOCK).open("a")
        except OSError as error:
            if write:
                raise UserError(
                    f"The library {self.folder} cannot be written ({error.strerror}); name another with --library."
                ) from None
            yield
            return
        with lock:
            _wait_for(lock.fileno())
            self._settle()
            yield

    def _settle(self) -> None:
        """Put right what a writer left that died: half a prompt goes, one that was put aside comes back."""
        for left in [
            Path(found) for found in os.scandir(self.folder) if found.name.startswith((NEW, OLD))
        ]:
            place = self.folder / left.name.removeprefix(OLD)
            with contextlib.suppress(OSError):  # who may not write leaves it to who may
                if left.name.startswith(OLD) and not place.exists():
                    left.rename(place)
                else:
                    _remove(left)

    # -- looking -------------------------------------------------------------------------------------------------------------

    def entry(self, name: str) -> Entry:
        place = self.place(name)
        with self.there()._locked():
            if place.is_dir():
                return Entry.of(place)
        which = f"softprompts prompts list --library {self.folder} tells which there are"
        raise UserError(f"There is no prompt {name} in the library {self.folder}; {which}.")

    def entries(self, fingerprint: str | None = None) -> list[Entry]:
        """All prompts, or those of one backbone, by name."""
        found, wrong = [], {}
        for name in self._names():
            try:
                entry = self._read(name)
            except UserError as error:
                wrong[name] = str(error)
                continue
            if fingerprint in (None, entry.fingerprint):
                found.append(entry)
        self._tell(wrong)
        return found

    def _tell(self, wrong: Mapping[str, str]) -> None:
        """A sentence for each folder that cannot be read; one for all that are no prompts."""
        strange = {
            name: sentence
            for name, sentence in wrong.items()
            if sentence == _no_prompt(self.folder / name)
        }
        if len(strange) > 1:
            told = f"{len(strange)} folders in {self.folder} hold no {CARD}, so they are no prompts, or unfinished"
            self.tell(f"{told}: {listing(list(strange))}.")
            wrong = {name: sentence for name, sentence in wrong.items() if name not in strange}
        for sentence in wrong.values():
            self.tell(sentence)

    def _read(self, name: str) -> Entry:
        place = self.place(name)
        try:
            return Entry.of(place)
        except UserError:
            with self._locked():  # it may just be being replaced
                return Entry.of(place)

    def _names(self) -> list[str]:
        """Every folder that should be a prompt."""
        if not self.folder.is_dir():
            return []
        with self._locked():
            return sorted(
                found.name
                for found in os.scandir(self.folder)
                if not found.name.startswith(".") and found.is_dir()
            )

    def _stamp(self, name: str) -> str:
        """Changes when a folder's prompt does: time, size and inode of its card and vectors."""
        found = []
        for part in (CARD, EMBEDDING, TENSORS):
            with contextlib.suppress(OSError):
                file = os.stat(f"{self.folder}/{name}/{part}")
                found.append(f"{part} {file.st_mtime_ns} {file.st_size} {file.st_ino}")
        return ", ".join(found)

    def search(
        self,
        like: Tensor,
        fingerprint: str,
        similarity: str = "per_token_average_cosine",
        k: int | None = None,
        without: Collection[str] = (),
    ) -> list[Found]:
        """The prompts of a backbone that are most like the vectors [..., H], best first: k of them, or all."""
        if similarity not in SIMILARITIES:
            raise UserError(
                f"There is no similarity {similarity!r}; choose one of {', '.join(SIMILARITIES)}."
            )
        if k is not None and k < 1:
            raise UserError(f"{k} prompts cannot be found; ask for at least 1.")
        index = self._index(fingerprint)
        which = list(SIMILARITIES).index(similarity)
        rows = index.rows[which]
        if len(rows) == 0:
            return []
        if like.numel() == 0 or like.shape[-1] != rows.shape[1]:
            raise UserError(
                f"Vectors of shape {list(like.shape)} cannot be compared with prompts of width {rows.shape[1]}."
            )
        asked = summary(like.detach().cpu())[which]
        scores = (
            rows.double() @ asked
        ).float()  # so that like prompts are equal, wherever in the index they stand
        found: list[Found] = []
        for row in scores.argsort(descending=True, stable=True).tolist():
            if len(found) == k:
                break
            if index.names[row] not in without:
                with contextlib.suppress(UserError):  # one that went meanwhile
                    found.append(Found(self._read(index.names[row]), float(scores[row])))
        return found

    def unread(self, fingerprint: str) -> dict[str, str]:
        """The prompts that cannot be compared with a backbone's, and why."""
        others = Library(self.folder, lambda sentence: None)._index(fingerprint).others
        return {name: why for name, (_, why) in others.items() if why}

    def _index(self, fingerprint: str) -> Index:
        """The index of a backbone's prompts, brought up to date."""
        path = self.folder / INDEX / f"{safe_name(fingerprint)}.safetensors"
        stamps = {name: self._stamp(name) for name in self._names()}
        kept = Index.read(path, fingerprint)
        index = kept.updated(stamps, lambda name: self._summed(name, fingerprint))
        if index is not kept:
            with contextlib.suppress(
                UserError
            ):  # where nothing can be written, it is made anew each time
                index.write(path)
        self._tell(
            {name: index.others[name][1] for name in sorted(index.others) if index.others[name][1]}
        )
        return index

    def _summed(self, name: str, fingerprint: str) -> tuple[str, Told]:
        """A prompt's stamp and summaries, once both are of the same files: it may be replaced meanwhile."""
        while True:
            stamp = self._stamp(name)
            told: Told
            try:
                entry = self._read(name)
                told = None
                if entry.fingerprint == fingerprint:
                    load_prompt(entry.folder)  # what is found must be of use
                    told = summary(entry.vectors()).float()
            except NoLeaveError as error:
                return "", str(
                    error
                )  # without a stamp it is looked at again: others may read it, or this user later
            except UserError as error:
                told = str(error)
            if self._stamp(name) == stamp:
                return stamp, told


def _remove(folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(lock: int) -> None:
    """Until this process alone holds the lock; the system takes it back from the dead."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system: one writer at a time is up to its user
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError as error:
        raise UserError(
            f"The library cannot be locked ({error.strerror}); keep it on a disk whose files can be."
        ) from None


def named_prompt(prompt: str, library: Path) -> Entry:
    """A folder where there is one, else a name in the library."""
    if not prompt.strip():
        raise UserError("The prompt has no name; give a folder, or a name in the library.")
    place = some_place(prompt)
    if (place / CARD).exists():
        return Entry.of(place, place.resolve().name)
    if place.is_dir() and prompt != safe_name(prompt):
        raise UserError(
            f"{prompt} holds no {CARD}: either it is no prompt, or its run has not finished (run the same command again)."
        )
    if prompt != safe_name(prompt):
        raise UserError(
            f"There is no prompt at {prompt}; name a folder that tune or import wrote, or a prompt of the library."
        )
    try:
        return Library(library).entry(prompt)
    except UserError as error:
        raise UserError(
            f"No folder {prompt} holds a prompt, and {re.sub('^There', 'there', str(error))}"
        ) from None
