"""Library: a folder of prompts, each in a folder of its own, and an index to search them by.

Several processes may add prompts at once. A prompt is written to a hidden folder and moved in when
it is complete. The lock ends with its process, so any hidden folders that the next holder finds
were left by a killed process, and are cleaned up.
"""

import contextlib
import filecmp
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..artifacts.card import Card
from ..artifacts.file_names import CARD, EMBEDDING, PROMPT
from ..artifacts.library_folder import LibraryFolder
from ..artifacts.run_folder import RunFolder
from ..errors import UserError, choices, listing, setting
from ..files import (
    NoPermissionError,
    checked_path,
    restore_folders,
    safe_name,
    staged_folder,
    wait_for_lock,
)
from ..files.atomic import STAGED
from ..files.tensors import check_tensors
from . import NAME_LIMIT, check_exists, check_present
from .search import SIMILARITIES, Index, Summary, rank, summary


class NoVectorsError(UserError):
    """A run without a prompt: it tuned the whole model, or nothing."""


@dataclass(frozen=True)
class Entry:
    """A prompt in a folder: its name, and its card."""

    name: str
    folder: Path
    card: Card

    @classmethod
    def of(cls, folder: Path, name: str | None = None) -> "Entry":
        try:
            card = RunFolder(folder).card()
        except UserError as error:
            if isinstance(error, NoPermissionError) or os.path.exists(folder / CARD):
                raise
            raise UserError(no_prompt(folder)) from None
        check_tensors(folder / PROMPT)
        return cls(name or folder.name, folder, card)

    @property
    def fingerprint(self) -> str:
        return self.card.backbone.fingerprint

    def check_vectors(self) -> None:
        if self.card.prompt.length == 0:
            raise NoVectorsError(
                f"{self.folder} has no prompt vectors, because its run tuned the model or nothing; "
                "name a run that tuned a prompt."
            )

    def vectors(self) -> Tensor:
        """The task embedding [K, P, H]; without one, the final prompt."""
        self.check_vectors()
        vectors = RunFolder(self.folder).task_vectors()
        if self.card.backbone.hidden not in (None, vectors.shape[2]):
            raise UserError(
                f"The vectors in {self.folder} do not match its card; copy the folder again."
            )
        return vectors


def no_prompt(folder: Path) -> str:
    return f"{folder} holds no {CARD}: it is not a prompt, or its run has not finished."


@dataclass(frozen=True)
class Match:
    entry: Entry
    similarity: float


def print_warning(message: str) -> None:
    print(f"softprompts: {message}", file=sys.stderr)


def ignore(message: str) -> None:
    """Drop a warning that was printed before."""


class Library:
    """Prompts by name. Folders that are not usable prompts are skipped, and passed to `warn`."""

    def __init__(self, folder: str | Path, warn: Callable[[str], object] = print_warning) -> None:
        self.folder, self.warn = Path(folder), warn
        self.files = LibraryFolder(self.folder)

    def existing(self) -> "Library":
        """This library; an error if its folder does not exist."""
        check_exists(self.folder)
        return self

    # -- adding ------------------------------------------------------------------------------------

    def add(self, run: str | Path, name: str | None = None, overwrite: bool = False) -> Entry:
        """Copy the prompt of a run's folder, under the name of that folder or another."""
        run = Path(run)
        name = safe_name(run.resolve().name) if name is None else name
        folder = self.prompt_folder(name)
        self.check_prompt(run)
        with self._locked(write=True):
            self.check_free(name, overwrite)
            with staged_folder(folder) as staged:
                RunFolder(run).copy_prompt(staged)
                self.check_prompt(staged)  # the run's folder may have changed meanwhile
        return Entry.of(folder)

    def remove(self, name: str) -> None:
        """Delete a prompt."""
        folder = self.prompt_folder(name)
        with self.existing()._locked(write=True):
            self.check_present(name)
            hidden = folder.with_name(f"{STAGED}{name}")  # the next to lock it would clean up
            folder.rename(hidden)
            shutil.rmtree(hidden)

    def rename(self, name: str, new: str) -> Entry:
        """Give a prompt another name, which must be free."""
        folder = self.prompt_folder(new)
        with self.existing()._locked(write=True):
            self.check_present(name)
            if folder.exists():
                raise UserError(f"The library {self.folder} already holds {new}; choose another.")
            self.prompt_folder(name).rename(folder)
        return Entry.of(folder)

    def check_free(self, name: str, overwrite: bool = False) -> None:
        """Raise if a prompt of this name exists and may not be overwritten."""
        if self.prompt_folder(name).exists() and not overwrite:
            raise UserError(
                f"The library {self.folder} already holds {name}; "
                f"choose another {setting('name')}, or replace it with {setting('overwrite')}."
            )

    def holds_copy(self, name: str, run: Path) -> bool:
        """Whether the prompt of this name is the one in a run's folder."""
        files = [CARD, PROMPT]
        return filecmp.cmpfiles(run, self.prompt_folder(name), files, shallow=False)[0] == files

    def prompt_folder(self, name: str) -> Path:
        """The folder of a prompt, whose name must be a single file name."""
        if not name or name != safe_name(name) or len(name) > NAME_LIMIT:
            raise UserError(
                f"{name!r} cannot be the name of a prompt; "
                f"use up to {NAME_LIMIT} letters, digits, dots, dashes and underscores."
            )
        return self.folder / name

    @staticmethod
    def check_prompt(folder: Path) -> None:
        """Check that a folder holds a complete prompt that a library can take."""
        prompt, _ = RunFolder(folder).load()
        if Entry.of(folder).vectors().shape[-1] != prompt.table.shape[-1]:
            raise UserError(
                f"{folder / EMBEDDING} does not have the width of its prompt, so the "
                "folder is corrupted; copy it again."
            )

    # -- the lock ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked(self, write: bool = False) -> Iterator[None]:
        """Hold the library's lock, and clean up after killed processes.

        Readers do without it if they lack write permission, or if nothing was written yet.
        """
        path = self.files.lock
        try:
            if write:
                self.folder.mkdir(parents=True, exist_ok=True)
            lock = path.open("a") if write or os.path.exists(path) else None
        except OSError as error:
            if write:
                raise UserError(
                    f"The library {self.folder} cannot be written ({error.strerror}); "
                    f"choose another {setting('library')}."
                ) from None
            lock = None
        if lock is None:
            yield
            return
        with lock:
            wait_for_lock(lock.fileno(), "The library")
            restore_folders(self.folder)
            yield

    # -- reading -----------------------------------------------------------------------------------

    def entry(self, name: str) -> Entry:
        folder = self.prompt_folder(name)
        with self.existing()._locked():
            self.check_present(name)
            return Entry.of(folder)

    def check_present(self, name: str) -> None:
        check_present(self.prompt_folder(name).name, self.folder)

    def entries(self, fingerprint: str | None = None) -> list[Entry]:
        """All prompts, or those of one backbone, by name."""
        entries, errors = [], dict[str, str]()
        for name in self._names():
            try:
                entry = self._read(name)
            except UserError as error:
                errors[name] = str(error)
                continue
            if fingerprint in (None, entry.fingerprint):
                entries.append(entry)
        self._warn(errors)
        return entries

    def _warn(self, errors: Mapping[str, str]) -> None:
        """One warning per unreadable prompt, and one for all folders that are not prompts."""
        strange = [name for name, error in errors.items() if error == no_prompt(self.folder / name)]
        if len(strange) > 1:
            self.warn(
                f"{len(strange)} folders in {self.folder} hold no {CARD}, "
                f"so they are either not prompts or unfinished: {listing(strange)}."
            )
        for name, error in errors.items():
            if len(strange) < 2 or name not in strange:
                self.warn(error)

    def _read(self, name: str) -> Entry:
        folder = self.prompt_folder(name)
        try:
            return Entry.of(folder)
        except UserError:
            with self._locked():  # another process may be replacing it
                return Entry.of(folder)

    def _names(self) -> list[str]:
        if not self.folder.is_dir():
            return []
        with self._locked():
            return self.files.names()

    # -- searching ---------------------------------------------------------------------------------

    def search(
        self,
        vectors: Tensor,
        fingerprint: str,
        similarity: str = "per_token_average_cosine",
        k: int | None = None,
        without: Collection[str] = (),
    ) -> list[Match]:
        """The k prompts of a backbone most similar to the vectors [..., H], best first, or all."""
        if similarity not in SIMILARITIES:
            raise UserError(
                f"There is no similarity {similarity!r}; {choices(similarity, SIMILARITIES)}"
            )
        if k is not None and k < 1:
            raise UserError(f"The number of prompts to find is {k}; it must be at least 1.")
        index, which = self._index(fingerprint), list(SIMILARITIES).index(similarity)
        rows = index.rows[which]
        if len(rows) == 0:
            return []
        if vectors.numel() == 0 or vectors.shape[-1] != rows.shape[1]:
            raise UserError(
                f"Vectors of shape {list(vectors.shape)} cannot be compared "
                f"with prompts of width {rows.shape[1]}."
            )
        # Sums in float64, rounded to float32: copies of a prompt are equal, whatever their row.
        products = (rows.double() @ summary(vectors.detach().cpu())[which]).float()
        similarities = dict(zip(index.names, products.tolist(), strict=True))
        matches: list[Match] = []
        for name in rank(similarities):
            if len(matches) == k:
                break
            if name not in without:
                with contextlib.suppress(UserError):  # removed meanwhile
                    matches.append(Match(self._read(name), similarities[name]))
        return matches

    def unusable(self, fingerprint: str) -> dict[str, str]:
        """The prompts that cannot be compared with a backbone's, and why."""
        skipped = Library(self.folder, ignore)._index(fingerprint).skipped
        return {name: error for name, (_, error) in skipped.items() if error}

    def _index(self, fingerprint: str) -> Index:
        """The index of a backbone's prompts, brought up to date."""
        stamps = {name: RunFolder(self.folder / name).stamp() for name in self._names()}
        saved = Index.read(self.files, fingerprint)
        index = saved.updated(stamps, lambda name: self._summarize(name, fingerprint))
        if index is not saved:
            with contextlib.suppress(UserError):  # in a read-only library, it is computed each time
                index.write(self.files)
        self._warn({name: error for name, (_, error) in sorted(index.skipped.items()) if error})
        return index

    def _summarize(self, name: str, fingerprint: str) -> tuple[str, Summary]:
        """A prompt's stamp and summary of the same files: another process may replace them."""
        while True:
            stamp = RunFolder(self.folder / name).stamp()
            result: Summary = None
            try:
                entry = self._read(name)
                if entry.fingerprint == fingerprint:
                    RunFolder(entry.folder).load()  # a match must be usable
                    result = summary(entry.vectors()).float()
            except NoPermissionError as error:
                # Without a stamp it is checked again: other users may be able to read it.
                return "", str(error)
            except UserError as error:
                result = str(error)
            if RunFolder(self.folder / name).stamp() == stamp:
                return stamp, result


def named_prompt(prompt: str, library: Path) -> Entry:
    """The prompt in a folder, or else the one of that name in the library."""
    if not prompt.strip():
        raise UserError("The prompt has no name; give a folder, or a name in the library.")
    path = checked_path(prompt)
    if (path / CARD).exists():
        return Entry.of(path, path.resolve().name)
    if prompt == safe_name(prompt):
        return Library(library).entry(prompt)
    if path.is_dir():
        return Entry.of(path)  # which says what is missing
    raise UserError(
        f"There is no prompt at {prompt}; "
        "name a folder that `softprompts tune` wrote, or a prompt of the library."
    )
