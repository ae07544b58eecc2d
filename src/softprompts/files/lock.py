"""One process at a time in an output folder, by a lock that the system takes back from the dead."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError
from .atomic import make_folder

LOCK = ".at-work"
"""Tells who works in the folder. Only the lock on it counts: a file that a killed process left means nothing."""
TRIES = 100
"""Of a file that goes each time before it is locked."""


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep every other process that wants to write there out of a folder."""
    missing = [place for place in (folder, *folder.parents) if not os.path.exists(place)]
    file = _locked(folder)
    try:
        yield
    finally:
        if file is not None:
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink(
                    missing_ok=True
                )  # before it is let go: after, it may be another's
            os.close(file)
        with contextlib.suppress(OSError):
            for place in missing:
                place.rmdir()  # which nothing came into


def _locked(folder: Path) -> int | None:
    """The locked file; None where files cannot be locked, or not written, which is told when something is."""
    make_folder(folder)
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        return None
    path = folder / LOCK
    for _ in range(TRIES):
        try:
            file = _opened(path)
        except FileNotFoundError:  # whoever made the folder removed it
            make_folder(folder)
            continue
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                _sign(file)
                return file
        except BlockingIOError:
            told = f"Another process is at work in {folder}{_signed(file)}; wait for it, or name another --output."
            os.close(file)
            raise UserError(told) from None
        except FileNotFoundError:  # whoever held it removed it, and with it the lock
            pass
        except OSError:  # a file system without locks
            os.close(file)
            return None
        os.close(file)
    return None


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:  # another user's, which can be locked all the same
        return os.open(path, os.O_RDONLY)


def _sign(file: int) -> None:
    with contextlib.suppress(OSError):  # a full disk
        os.ftruncate(file, 0)
        os.pwrite(
            file, json.dumps({"process": os.getpid(), "host": socket.gethostname()}).encode(), 0
        )


def _signed(file: int) -> str:
    """Who holds the lock, where it has been written already."""
    try:
        told = json.loads(os.pread(file, 1000, 0))
        return f" (process {told['process']} on host {told['host']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
