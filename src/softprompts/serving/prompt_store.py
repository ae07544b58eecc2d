"""The prompts that an engine serves: which there are, and those that are loaded.

Names come from the folders, never from a request: a request's name is looked up among them. A
prompt is read when it is first asked for, and again when its files have changed.
"""

import contextlib
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from ..artifacts.file_names import CARD, PROMPT
from ..artifacts.library_folder import LibraryFolder
from ..artifacts.run_folder import RunFolder
from ..backbone import Backbone
from ..errors import UserError, closest
from ..files import is_being_replaced
from ..library.search import summary
from ..prompt.head import LinearHead
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

Key = tuple[str, str]
"""A version of a prompt: its name, and the stamp of its files."""


@dataclass(eq=False)
class LoadedPrompt:
    """A prompt in memory, ready to be used."""

    name: str
    stamp: str
    tuned: Tuned
    predictor: Predictor
    signature: "Signature | None" = None
    """Of its files when it was read; None: it has none."""
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
    def size(self) -> int:
        """How many `rows` it has."""
        return len(self.rows)

    @cached_property
    def head(self) -> LinearHead | None:
        return self.tuned.prompt.head

    @cached_property
    def opening(self) -> list[int] | None:
        """The ids before it in every text; None if they or its vectors depend on the text."""
        return opening_ids(self.predictor, not self.tuned.prompt.reads_text)

    @property
    def nbytes(self) -> int:
        parts = [*self.tuned.prompt.state_dict().values(), *([self.rows] if self.routed else [])]
        return OVERHEAD + sum(int(part.nbytes) for part in parts)


Signature = list[tuple[str, int, int, int]]
"""Of each file: its path, and its time, size and inode."""


def _signature(folder: Path) -> Signature:
    """What tells whether the files of a prompt have changed; less than a stamp, and quicker."""
    paths = [os.path.join(folder, name) for name in (CARD, PROMPT)]
    stats = [os.stat(path) for path in paths]
    return [
        (path, file.st_mtime_ns, file.st_size, file.st_ino)
        for path, file in zip(paths, stats, strict=True)
    ]


def _is_unchanged(signature: Signature | None) -> bool:
    try:
        for path, *before in signature or ():
            file = os.stat(path)
            if before != [file.st_mtime_ns, file.st_size, file.st_ino]:
                return False
    except OSError:
        return False
    return True


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
        self.backbone, self.folders, self.memory_bytes = backbone, list(folders), memory_bytes
        self.on_forget, self.loads = on_forget, 0
        self._lock, self._listing = threading.RLock(), threading.Lock()
        self._paths: dict[str, Path] = {}
        self._times: dict[Path, int] = {}
        """When each folder had changed last at its last listing; 0: it may have changed since."""
        self._loaded: OrderedDict[str, LoadedPrompt] = OrderedDict()
        self._bytes = 0
        self._broken: dict[str, tuple[str, str]] = {}
        """Prompts that cannot be used: their stamps, and why."""
        self._checked: set[str] = set()
        self._cards: OrderedDict[str, tuple[str, ServedPrompt]] = OrderedDict()
        self._fixed = {name: self._prepared(name, "", tuned) for name, tuned in prompts.items()}

    # -- names -------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """All usable prompts; new ones have their cards checked."""
        with self._listing:  # whoever comes second need not check them again
            with self._lock:
                self._list()
                unchecked = [name for name in self._paths if name not in self._checked]
            for name in unchecked:
                with contextlib.suppress(UnknownPrompt, BrokenPrompt):
                    self.card(name)
        with self._lock:
            return sorted({*self._fixed, *(self._paths.keys() & self._checked)})

    @property
    def known(self) -> int:
        """How many prompts there are, as far as was seen."""
        return len(self._paths) + len(self._fixed)

    def card(self, name: str) -> ServedPrompt:
        """A prompt's card; raises `UnknownPrompt` or `BrokenPrompt`."""
        if name in self._fixed:
            return ServedPrompt(name, self._fixed[name].tuned.card, 0)
        served: ServedPrompt | None = None
        while served is None:
            path, stamp = self._find(name)
            with self._lock:
                cached = self._cards.get(name)
                if cached is not None and cached[0] == stamp:
                    self._cards.move_to_end(name)
                    return cached[1]
            try:
                card = RunFolder(path).card()
                card.check_backbone(self.backbone, name)
                card.answering()
                served = ServedPrompt(name, card, int((path / CARD).stat().st_mtime))
            except (UserError, OSError) as error:
                if RunFolder(path).stamp() == stamp:  # it is not just being replaced
                    raise self._unusable(name, stamp, error) from None
        with self._lock:
            self._checked.add(name)
            self._cards[name] = stamp, served
            while len(self._cards) > CARDS:
                self._cards.popitem(last=False)
        return served

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
        paths: dict[str, Path] = {}
        for folder in self.folders:
            if RunFolder(folder).has_prompt:
                found = {folder.resolve().name: folder}
            else:
                names = LibraryFolder(folder).names() if folder.is_dir() else []
                found = {name: folder / name for name in names}
            for name in found.keys() & (paths.keys() | self._fixed.keys()):
                if self._paths.get(name) != paths.get(name):
                    log.warning(
                        "the prompt %s in %s is ignored: another has the same name", name, folder
                    )
                del found[name]
            paths |= found
        for name in self._paths.keys() - paths.keys():
            path = self._paths[name]
            if is_being_replaced(path) or RunFolder(path).has_prompt:
                paths[name] = path
            else:
                self._forget(name)
        self._paths = paths

    def _forget(self, name: str) -> None:
        self._unload(name)
        self.on_forget(name)
        self._checked.discard(name)
        self._cards.pop(name, None)
        self._broken.pop(name, None)

    def _find(self, name: str) -> tuple[Path, str]:
        """A prompt's folder and the stamp of its files."""
        until = time.monotonic() + PATIENCE
        while True:
            with self._lock:
                if name not in self._paths:
                    self._list()
                path = self._paths.get(name)
            if path is None:
                raise self._unknown(name)
            run = RunFolder(path)
            stamp = run.stamp()
            if run.has_prompt:
                break
            if not (is_being_replaced(path) and time.monotonic() < until):
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
        return path, stamp

    def _unknown(self, name: str) -> UnknownPrompt:
        names = {*self._paths, *self._fixed}
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
        """The prompt if it is in memory and its files have not changed; quick."""
        with self._lock:
            prompt = self._fixed.get(name) or self._loaded.get(name)
            if prompt is None or (prompt.stamp and not self._is_current(prompt)):
                return None
            if prompt.stamp:
                self._loaded.move_to_end(name)
            return prompt

    def _is_current(self, prompt: LoadedPrompt) -> bool:
        """Whether its files are those that were read; every request asks this."""
        found = self._paths.get(prompt.name)
        return found == prompt.tuned.folder and _is_unchanged(prompt.signature)

    def load(self, name: str) -> LoadedPrompt:
        """The prompt, read from disk unless it is in memory."""
        prompt = self.loaded(name)
        while prompt is None:
            path, stamp = self._find(name)
            try:
                weights, card = RunFolder(path).load(self.backbone)
                check_widths(weights, card, self.backbone, path)
                prompt = self._prepared(name, stamp, Tuned(weights, self.backbone, card, path))
                prompt.signature = _signature(path)
            except (UserError, OSError) as error:
                if RunFolder(path).stamp() == stamp:
                    raise self._unusable(name, stamp, error) from None
                continue
            if RunFolder(path).stamp() != stamp:  # replaced while it was read
                prompt = None
                continue
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

    def _prepared(self, name: str, stamp: str, tuned: Tuned) -> LoadedPrompt:
        tuned.card.check_backbone(self.backbone, name)
        return LoadedPrompt(name, stamp, tuned, tuned.predictor())

    @property
    def in_memory(self) -> int:
        return len(self._loaded) + len(self._fixed)

    def embedding(self, name: str) -> Tensor:
        """The mean of a prompt's tokens, or of its task embedding's, each of length 1 [H]."""
        if name in self._fixed:
            tuned = self._fixed[name].tuned
            vectors = tuned.prompt.table.detach() if tuned.embedding is None else tuned.embedding
        else:
            path, stamp = self._find(name)
            try:
                vectors = RunFolder(path).task_vectors()
            except (UserError, OSError) as error:
                raise self._unusable(name, stamp, error) from None
        return summary(vectors.cpu())[1].float()
