"""Claims: who works on which cell of a study. All that workers share is the study's folder, so several machines may work on one.

A worker's file under workers/ is its sign of life. A claim is a numbered file in the cell's folder that names a worker, made so that only
one can make it; the highest number owns the cell. A dead worker's claim is taken over by making the next.
"""

import contextlib
import json
import os
import socket
import tempfile
import threading
import time
import uuid
from pathlib import Path

from ..errors import UserError
from ..files import machine, read_json, write_json
from . import cells as on_disk

WORKERS = "workers"
BEAT = 5.0
"""Seconds between two signs of life."""
STALE = 60.0
"""Seconds without a sign of life after which a worker counts as dead."""


class Claims:
    """A worker's claims on cells of a study's folder, held as long as it gives signs of life."""

    def __init__(self, folder: Path, beat: float = BEAT, stale: float = STALE) -> None:
        self.folder, self.beat, self.stale = folder, beat, stale
        self.worker = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.sign = folder / WORKERS / f"{self.worker}.json"
        self.held: dict[str, Path] = {}
        self.lost = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._sign()

    def __enter__(self) -> "Claims":
        now = self._touch()
        for sign in self.sign.parent.glob("[!.]*.json"):
            if sign != self.sign and not is_alive(self.folder, sign.stem, now, self.stale):
                sign.unlink(missing_ok=True)  # what a killed worker left
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """A worker that leaves is dead at once, and with it its claims."""
        self._end.set()
        self._thread.join()
        self.sign.unlink(missing_ok=True)

    def _sign(self) -> None:
        write_json(
            self.sign, {"machine": machine(), "pid": os.getpid(), "since": round(time.time(), 3)}
        )

    def _touch(self) -> float:
        """A sign of life; the time on the folder's own clock, which may not be this machine's."""
        try:
            os.utime(self.sign)
        except FileNotFoundError:  # someone who took this worker for dead cleared it away
            self._sign()
        return self.sign.stat().st_mtime

    def _live(self) -> None:
        while not self._end.wait(self.beat):
            with contextlib.suppress(
                OSError, UserError
            ):  # a full disk, or a folder out of reach for a while
                self._touch()
            with contextlib.suppress(OSError):
                if any(self._is_lost(cell, claim) for cell, claim in list(self.held.items())):
                    self.lost.set()

    def _is_lost(self, cell: str, claim: Path) -> bool:
        """Whether another claim is above one that is still held: of a cell just finished, all claims are gone."""
        return _newest(claim.parent) != claim and self.held.get(cell) == claim

    def take(self, cell: str) -> bool:
        """Claim a cell that nobody alive holds and that has no result."""
        home = on_disk.place(self.folder, cell)
        newest = _newest(home)
        if newest is not None and self._held_by_living(newest):
            return False
        mine = home / f".claim-{0 if newest is None else _number(newest) + 1}"
        if not on_disk.write_once(mine, {"worker": self.worker}):
            return False
        self.held[cell] = mine
        if on_disk.is_done(self.folder, cell):  # it was finished between the look and the claim
            self.drop(cell)
            return False
        return True

    def holds(self, cell: str) -> bool:
        """Whether a cell is still this worker's to run: one that had not been heard of for long may have lost it meanwhile."""
        claim = self.held.get(cell)
        return (
            claim is not None
            and _newest(claim.parent) == claim
            and not on_disk.is_done(self.folder, cell)
        )

    def is_free(self, cell: str) -> bool:
        newest = _newest(on_disk.place(self.folder, cell))
        return newest is None or not self._held_by_living(newest)

    def drop(self, cell: str) -> None:
        """Of a cell with a result, remove all claims."""
        own = self.held.pop(cell)
        for claim in own.parent.glob(".claim-*"):
            claim.unlink(missing_ok=True)

    def _held_by_living(self, claim: Path) -> bool:
        worker = owner(claim)
        if worker == self.worker:
            return claim in self.held.values()
        return worker is not None and is_alive(self.folder, worker, self._touch(), self.stale)


def owner(claim: Path) -> str | None:
    try:
        return str(json.loads(claim.read_text(encoding="utf-8"))["worker"])
    except (OSError, ValueError, KeyError):
        return None


def is_alive(folder: Path, worker: str, now: float, stale: float = STALE) -> bool:
    """Whether a worker was heard of lately; on this machine, whether its process is there."""
    sign = folder / WORKERS / f"{worker}.json"
    try:
        heard, told = sign.stat().st_mtime, read_json(sign)
    except (OSError, UserError):  # gone between two looks, or damaged: nobody's sign of life
        return False
    if told.get("machine") == machine() and not _process(int(told.get("pid", 0))):
        return False
    return now - heard <= stale


def clock(folder: Path) -> float:
    """The time by the folder's own clock, by which signs of life are dated; where nothing can be written, this machine's."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder / WORKERS, prefix=".clock.") as file:
            return os.stat(file.name).st_mtime
    except OSError:
        return time.time()


def _process(number: int) -> bool:
    if os.name == "nt":
        return True
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def claimed(folder: Path, cell: str, now: float, stale: float = STALE) -> str | None:
    """The living worker that holds a cell."""
    newest = _newest(on_disk.place(folder, cell))
    worker = owner(newest) if newest is not None else None
    return worker if worker is not None and is_alive(folder, worker, now, stale) else None


def _number(claim: Path) -> int:
    return int(claim.name.removeprefix(".claim-"))


def _newest(home: Path) -> Path | None:
    return max(home.glob(".claim-*"), key=_number, default=None)
