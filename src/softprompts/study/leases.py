"""Leases: which worker runs which cell of a study.

All that workers share is the study's folder, so they may be on several machines. A worker's file
under `workers/` is its heartbeat. A lease is a numbered file in the cell's folder that names a
worker, and that only one worker can create; the highest number counts. The lease of a dead worker
is taken over by creating the next one.
"""

import contextlib
import os
import socket
import threading
import time
import uuid
from pathlib import Path

from ..artifacts.study_folder import StudyFolder, lease_owner
from ..errors import UserError
from ..files import host_id, process_exists, read_json, write_json

HEARTBEAT = 5.0
"""Seconds between two heartbeats."""
TIMEOUT = 60.0
"""Seconds without a heartbeat after which a worker counts as dead."""


class Leases:
    """A worker's leases on cells of a study, valid as long as its heartbeat continues."""

    def __init__(
        self, folder: StudyFolder, heartbeat: float = HEARTBEAT, timeout: float = TIMEOUT
    ) -> None:
        self.folder, self.heartbeat, self.timeout = folder, heartbeat, timeout
        self.worker = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.file = folder.heartbeat(self.worker)
        self.held: dict[str, Path] = {}
        self.lost = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._write_heartbeat()

    def __enter__(self) -> "Leases":
        now = self._touch()
        for file in self.folder.heartbeats():
            if file != self.file and not is_alive(self.folder, file.stem, now, self.timeout):
                file.unlink(missing_ok=True)  # of a killed worker
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Without its heartbeat, a worker's leases end at once."""
        self._stop.set()
        self._thread.join()
        self.file.unlink(missing_ok=True)

    def _write_heartbeat(self) -> None:
        write_json(
            self.file, {"machine": host_id(), "pid": os.getpid(), "since": round(time.time(), 3)}
        )

    def _touch(self) -> float:
        """A heartbeat; the time on the clock of the folder, which may not be this machine's."""
        try:
            os.utime(self.file)
        except FileNotFoundError:  # removed by a worker that took this one for dead
            self._write_heartbeat()
        return self.file.stat().st_mtime

    def _beat(self) -> None:
        while not self._stop.wait(self.heartbeat):
            # The disk may be full, or the folder unreachable for a while.
            with contextlib.suppress(OSError, UserError):
                self._touch()
            with contextlib.suppress(OSError):
                if any(self._is_lost(cell, lease) for cell, lease in list(self.held.items())):
                    self.lost.set()

    def _is_lost(self, cell: str, lease: Path) -> bool:
        """Whether another lease follows one still held; a finished cell has none at all."""
        return self.folder.cell(cell).lease() != lease and self.held.get(cell) == lease

    def acquire(self, cell: str) -> bool:
        """Lease a cell without a result that no living worker holds."""
        folder = self.folder.cell(cell)
        current = folder.lease()
        if self._is_valid(current):
            return False
        lease = folder.write_lease(self.worker, after=current)
        if lease is None:
            return False
        self.held[cell] = lease
        if folder.is_done:  # finished since `lease()` was read
            self.release(cell)
        return cell in self.held

    def holds(self, cell: str) -> bool:
        """Whether a cell is still this worker's to run; after a long silence it may not be."""
        lease, folder = self.held.get(cell), self.folder.cell(cell)
        return lease is not None and folder.lease() == lease and not folder.is_done

    def is_free(self, cell: str) -> bool:
        return not self._is_valid(self.folder.cell(cell).lease())

    def release(self, cell: str) -> None:
        """Remove all leases of a cell with a result."""
        del self.held[cell]
        self.folder.cell(cell).remove_leases()

    def _is_valid(self, lease: Path | None) -> bool:
        worker = lease_owner(lease)
        if worker == self.worker:
            return lease in self.held.values()
        return worker is not None and is_alive(self.folder, worker, self._touch(), self.timeout)


def is_alive(folder: StudyFolder, worker: str, now: float, timeout: float = TIMEOUT) -> bool:
    """Whether a worker's heartbeat is recent, and on this machine its process exists."""
    file = folder.heartbeat(worker)
    try:
        last, signed = file.stat().st_mtime, read_json(file)
    except (OSError, UserError):  # removed meanwhile, or corrupted
        return False
    if not isinstance(signed, dict):  # not written by a worker
        return False
    if signed.get("machine") == host_id() and not process_exists(int(signed.get("pid", 0))):
        return False
    return now - last <= timeout


def lease_holder(
    folder: StudyFolder, cell: str, now: float, timeout: float = TIMEOUT
) -> str | None:
    worker = lease_owner(folder.cell(cell).lease())
    return worker if worker is not None and is_alive(folder, worker, now, timeout) else None
