"""One process at a time in an output folder, with a lock that ends with its process."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from ..errors import UserError, setting
from .atomic import make_folder, removing_new_folders

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = ".at-work"
"""Names the process that holds the folder. Only the lock on the file counts, not that it exists."""


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold the lock on an output folder; raise a `UserError` if another process has it.

    Folders that did not exist before and are empty on exit are removed.
    """
    with removing_new_folders(folder):
        file = _acquire(folder)
        try:
            yield
        finally:
            if file is not None:
                with contextlib.suppress(OSError):
                    # before the lock is released: afterwards the file may be another process's
                    (folder / LOCK_FILE).unlink(missing_ok=True)
                os.close(file)


def _acquire(folder: Path) -> int | None:
    """The locked file, or None if the file system does not support locks or is read-only.

    A folder that cannot be written is reported by whoever writes to it.
    """
    make_folder(folder)
    if fcntl is None:
        return None
    path = folder / LOCK_FILE
    for _ in range(100):  # another process may remove the file before it is locked
        try:
            file = _open(path)
        except FileNotFoundError:  # the process that created the folder removed it
            make_folder(folder)
            continue
        except OSError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):
                holder = {"process": os.getpid(), "host": socket.gethostname()}
                with contextlib.suppress(OSError):  # a full disk
                    os.ftruncate(file, 0)
                    os.pwrite(file, json.dumps(holder).encode(), 0)
                return file
        except BlockingIOError:
            described = _read_holder(file)
            os.close(file)
            raise UserError(
                f"Another process is using {folder}{described}; "
                f"wait until it ends, or choose another {setting('output')}."
            ) from None
        except FileNotFoundError:  # the holder removed the file, and the lock with it
            pass
        except OSError:  # a file system without locks
            os.close(file)
            return None
        os.close(file)
    return None


def wait_for_lock(file: int, name: str) -> None:
    """Lock an open file as soon as no other process has it; `name` says what it is the lock of."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        raise UserError(
            f"{name} cannot be locked ({error.strerror}); "
            "keep it on a file system that supports locks."
        ) from None


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except PermissionError:  # another user's file can still be locked
        return os.open(path, os.O_RDONLY)


def _read_holder(file: int) -> str:
    """Which process holds the lock, or nothing if it has not written that yet."""
    try:
        holder = json.loads(os.pread(file, 1000, 0))
        return f" (process {holder['process']} on host {holder['host']})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
