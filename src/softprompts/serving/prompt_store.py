"""The prompts that an engine serves: which there are, and those that are loaded.

Names come from the folders, never from a request: a request's name is looked up among them. A
prompt is read when it is first asked for, and again when its files have changed.
"""

import contextlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from ..artifacts.file_names import CARD
from ..artifacts.library_folder import LibraryFolder
from ..artifacts.run_folder import RunFolder
from ..backbone import Backbone
from ..errors import UserError, closest
from ..files import is_being_replaced
from ..library import check_distinct
from ..library.search import summary
from ..prompt.route import GumbelRoute, LinearRouter, TopRoute
from ..tuning.bank import constant_vectors, opening_ids
from ..tuning.evaluate import Predictor
from ..tuning.tuned import Tuned, check_widths
from .requests import BrokenPrompt, ServedPrompt, UnknownPrompt

log = logging.getLogger("softprompts.serving")

OVERHEAD = 16_384
"""Bytes of a loaded prompt beside its tensors: card, labels, settings."""
CARDS = 16_384
"""Cards to keep for listings; each takes some kilobytes."""
SETTLING_NS = 10**9
"""A folder that was changed so recently may change again without a new time."""
HINTS = 1000
"""The most prompts to look for a similar name among: ten thousand take half a second."""
PATIENCE = 1.0
"""Seconds to wait for a folder that is being replaced."""

KNOWN_OPTIONS = {"k", "noise", "temperature"}
"""Settings of routes that batches can compute; a route with others is left to compute itself."""

T = TypeVar("T")
Key = tuple[str, str]
"""A version of a prompt: its name, and the stamp of its files."""


@dataclass(eq=False)
class LoadedPrompt:
    """A prompt in memory, ready to be used."""

    name: str
    tuned: Tuned
    predictor: Predictor
    stamp: str = ""
    """Of the files that it was read from."""
    uses: int = 0
    """Batches that it was in."""

    @cached_property
    def key(self) -> Key:
        return self.name, self.stamp

    @cached_property
    def routed(self) -> bool:
        """Whether its vectors depend on the text, by a route that batches can compute."""
        prompt, route = self.tuned.prompt, self.tuned.prompt.route
        options = {name for name in vars(route) if name[0] != "_" and name != "training"}
        return (
            prompt.reads_text
            and prompt.unit == 1.0
            and type(route) in (TopRoute, GumbelRoute)
            and type(route.router) is LinearRouter
            and options <= KNOWN_OPTIONS
        )

    @cached_property
    @torch.no_grad()
    def rows(self) -> Tensor:
        """What lies on the device [., H]: its vectors, and if it is `routed`, all K prompts and
        their router; nothing if it is neither constant nor routed."""
        prompt = self.tuned.prompt
        vectors = constant_vectors(prompt)
        if vectors is not None:
            return vectors
        if not self.routed:
            return prompt.table[0, :0]
        return torch.cat([prompt.table.flatten(0, 1), *prompt.router_tensors().values()])

    @cached_property
    def opening(self) -> list[int] | None:
        """The ids before it in every text; None if they or its vectors depend on the text."""
        return opening_ids(self.predictor, not self.tuned.prompt.reads_text)

    @property
    def nbytes(self) -> int:
        parts = [*self.tuned.prompt.state_dict().values(), *([self.rows] if self.routed else [])]
        return OVERHEAD + sum(int(part.nbytes) for part in parts)


class PromptStore:
    """Prompts by name, from folders and from memory; safe to use from several threads."""

    def __init__(
        self,
        backbone: Backbone,
        folders: Sequence[Path],
        prompts: Mapping[str, Tuned],
        memory_bytes: int,
        on_forget: Callable[[str], object] = lambda name: None,
    ) -> None:
        """`on_forget` is called, in any thread, with the name of a prompt that was removed."""
        for folder in folders:
            if not folder.is_dir():
                raise UserError(f"There is no folder {folder} to serve prompts from.")
        check_distinct(folders)
        self.folders = list({folder.resolve(): folder for folder in folders}.values())
        self.backbone, self.memory_bytes = backbone, memory_bytes
        self.on_forget, self.loads = on_forget, 0
        self._lock, self._listing = threading.RLock(), threading.Lock()
        self._runs: dict[str, RunFolder] = {}
        self._times: dict[Path, int] = {}
        """When each folder had changed last at its last listing; 0: it may have changed since."""
        self._loaded: OrderedDict[str, LoadedPrompt] = OrderedDict()
        self._bytes = 0
        self._broken: dict[str, tuple[str, str]] = {}
        """Prompts that cannot be used: their stamps, and why."""
        self._checked: set[str] = set()
        self._cards: OrderedDict[str, tuple[str, ServedPrompt]] = OrderedDict()
        self._fixed = {name: self._prepared(name, tuned) for name, tuned in prompts.items()}

    # -- names -------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All usable prompts; new ones have their cards checked."""
        with self._listing:  # whoever comes second need not check them again
            with self._lock:
                self._list()
                unchecked = [name for name in self._runs if name not in self._checked]
            for name in unchecked:
                with contextlib.suppress(UnknownPrompt, BrokenPrompt):
                    self.card(name)
        with self._lock:
            return sorted({*self._fixed, *(self._runs.keys() & self._checked)})

    @property
    def known(self) -> int:
        """How many prompts there are, as far as was seen."""
        return len(self._runs) + len(self._fixed)

    def card(self, name: str) -> ServedPrompt:
        """A prompt's card; raises `UnknownPrompt` or `BrokenPrompt`."""
        if name in self._fixed:
            return ServedPrompt(name, self._fixed[name].tuned.card, 0)
        _, stamp = self._find(name)
        with self._lock:
            cached = self._cards.get(name)
            if cached is not None and cached[0] == stamp:
                self._cards.move_to_end(name)
                return cached[1]

        def read(run: RunFolder) -> ServedPrompt:
            card = run.card()
            card.check_backbone(self.backbone, name)
            card.answering()
            return ServedPrompt(name, card, int((run.path / CARD).stat().st_mtime))

        stamp, served = self._read(name, read)
        with self._lock:
            self._checked.add(name)
            self._cards[name] = stamp, served
            while len(self._cards) > CARDS:
                self._cards.popitem(last=False)
        return served

    def known_card(self, name: str) -> ServedPrompt | None:
        """A prompt's card if it was read before and its files have not changed; quick."""
        if name in self._fixed:
            return self.card(name)
        with self._lock:
            run, cached = self._runs.get(name), self._cards.get(name)
            if run is None or cached is None or run.stamp() != cached[0]:
                return None
            if self._broken.get(name, ("",))[0] == cached[0]:
                return None
            self._cards.move_to_end(name)
            return cached[1]

    def _list(self) -> None:
        """Bring the names up to date; quick if no folder has changed."""
        changed = False
        for folder in self.folders:
            try:
                modified = folder.stat().st_mtime_ns
            except OSError:
                modified = -1
            changed |= self._times.get(folder) != modified
            settled = time.time_ns() - modified > SETTLING_NS
            self._times[folder] = modified if settled else 0
        if not changed:
            return
        runs: dict[str, RunFolder] = {}
        for folder in self.folders:
            if RunFolder(folder).has_prompt:
                found = {folder.resolve().name: RunFolder(folder)}
            else:
                names = LibraryFolder(folder).names() if folder.is_dir() else []
                found = {name: RunFolder(folder / name) for name in names}
            for name in found.keys() & (runs.keys() | self._fixed.keys()):
                if self._runs.get(name) != runs.get(name):
                    log.warning(
                        "the prompt %s in %s is ignored: another has the same name", name, folder
                    )
                del found[name]
            runs |= found
        for name in self._runs.keys() - runs.keys():
            run = self._runs[name]
            if is_being_replaced(run.path) or run.has_prompt:
                runs[name] = run
            else:
                self._forget(name)
        self._runs = runs

    def _forget(self, name: str) -> None:
        self._unload(name)
        self.on_forget(name)
        self._checked.discard(name)
        self._cards.pop(name, None)
        self._broken.pop(name, None)

    def _find(self, name: str) -> tuple[RunFolder, str]:
        """A prompt's folder and the stamp of its files."""
        until = time.monotonic() + PATIENCE
        while True:
            with self._lock:
                if name not in self._runs:
                    self._list()
                run = self._runs.get(name)
            if run is None:
                raise self._unknown(name)
            stamp = run.stamp()
            if run.has_prompt:
                break
            if not (is_being_replaced(run.path) and time.monotonic() < until):
                if run.has_prompt:  # it was replaced just now
                    continue
                with self._lock:
                    self._times.clear()
                    self._list()
                    self._checked.discard(name)
                raise self._unknown(name)
            time.sleep(PATIENCE / 100)
        with self._lock:
            broken = self._broken.get(name)
            if broken is not None and broken[0] == stamp:
                raise BrokenPrompt(broken[1])
        return run, stamp

    def _read(self, name: str, read: Callable[[RunFolder], T]) -> tuple[str, T]:
        """What is read from a prompt's files, and their stamp; again if they are replaced
        meanwhile."""
        while True:
            run, stamp = self._find(name)
            try:
                value = read(run)
            except (UserError, OSError) as error:
                if run.stamp() == stamp:
                    raise self._unusable(name, stamp, error) from None
                continue
            if run.stamp() == stamp:
                return stamp, value

    def _unknown(self, name: str) -> UnknownPrompt:
        names = {*self._runs, *self._fixed}
        similar = closest(name[:200], names) if len(names) <= HINTS else None
        hint = f"did you mean {similar}?" if similar else "it may have been removed."
        return UnknownPrompt(f"There is no prompt {name[:200]!r}; {hint}")

    def _unusable(self, name: str, stamp: str, error: Exception) -> BrokenPrompt:
        reason = error.message if isinstance(error, UserError) else str(error)
        message = f"The prompt {name} cannot be used: {reason}"
        with self._lock:
            if self._broken.get(name) != (stamp, message):
                log.warning("%s", BrokenPrompt(message))
            self._broken[name] = stamp, message
            self._checked.discard(name)
        return BrokenPrompt(message)

    # -- prompts in memory -------------------------------------------------------------------------

    def loaded(self, name: str) -> LoadedPrompt | None:
        """The prompt if it is in memory and its files have not changed; quick, because every
        request asks this."""
        if name in self._fixed:
            return self._fixed[name]
        with self._lock:
            prompt, run = self._loaded.get(name), self._runs.get(name)
            if prompt is None or run is None or run.path != prompt.tuned.folder:
                return None
            if run.stamp() != prompt.stamp:
                return None
            self._loaded.move_to_end(name)
            return prompt

    def load(self, name: str) -> LoadedPrompt:
        """The prompt, read from disk unless it is in memory."""
        known = self.loaded(name)
        if known is not None:
            return known

        def read(run: RunFolder) -> LoadedPrompt:
            weights, card = run.load(self.backbone)
            check_widths(weights, card, self.backbone, run.path)
            return self._prepared(name, Tuned(weights, self.backbone, card, run.path))

        stamp, prompt = self._read(name, read)
        prompt.stamp = stamp
        self.loads += 1
        with self._lock:
            self._unload(name)
            self._checked.add(name)
            self._loaded[name] = prompt
            self._bytes += prompt.nbytes
            while self._bytes > self.memory_bytes and len(self._loaded) > 1:
                _, old = self._loaded.popitem(last=False)
                self._bytes -= old.nbytes
        return prompt

    def _unload(self, name: str) -> None:
        old = self._loaded.pop(name, None)
        if old is not None:
            self._bytes -= old.nbytes

    def _prepared(self, name: str, tuned: Tuned) -> LoadedPrompt:
        tuned.card.check_backbone(self.backbone, name)
        return LoadedPrompt(name, tuned, tuned.predictor())

    @property
    def in_memory(self) -> int:
        return len(self._loaded) + len(self._fixed)

    def embedding(self, name: str) -> Tensor:
        """The mean of a prompt's tokens, or of its task embedding's, each of length 1 [H]."""
        if name in self._fixed:
            tuned = self._fixed[name].tuned
            vectors = tuned.prompt.table.detach() if tuned.embedding is None else tuned.embedding
        else:
            _, vectors = self._read(name, RunFolder.task_vectors)
        return summary(vectors.cpu())[1].float()
