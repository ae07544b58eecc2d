"""Files that are complete or absent: written under a temporary name, then moved into place."""

import contextlib
import functools
import glob
import hashlib
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError, setting


@functools.cache
def host_id() -> str:
    """The scope in which a process id is unique.

    Hosts and containers may share a host name, so the boot and the process namespace are added.
    """
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # available on Linux only
        parts += [
            Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
            os.readlink("/proc/self/ns/pid"),
        ]
    return " ".join(parts)


def temporary_path(path: Path, process: int | str | None = None) -> Path:
    """A hidden name in the same folder that only this process, or another one, uses."""
    host = hashlib.sha256(host_id().encode()).hexdigest()[:8]
    return path.with_name(f".{path.stem}.{host}-{process or os.getpid()}{path.suffix}")


def stale_paths(path: Path) -> Iterator[Path]:
    """Temporary files or folders for `path` that processes of this host left when they died.

    Those of other hosts are skipped: their processes may still be running.
    """
    prefix, suffix = temporary_path(path, "*").name.split("*")
    for temporary in path.parent.glob(f"{glob.escape(prefix)}*{glob.escape(suffix)}"):
        process = temporary.name.removeprefix(prefix).removesuffix(suffix)
        if not (process.isdigit() and _is_running(int(process))):
            yield temporary


def remove_stale(folder: Path, names: Iterable[str]) -> None:
    """Remove the temporary files that killed processes of this host left for these files."""
    for name in names:
        for temporary in stale_paths(folder / name):
            temporary.unlink(missing_ok=True)


def _is_running(process: int) -> bool:
    """Whether another process with this id exists."""
    if process == os.getpid() or os.name == "nt":  # on Windows, signal 0 is Ctrl-C
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def make_folder(folder: Path) -> None:
    """Create an output folder and its parents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The output folder {folder} cannot be created ({error.strerror}); "
            f"choose another {setting('output')}."
        ) from None


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary file in the same folder, then move it to `path`."""
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        mode = temporary.stat().st_mode
        write(temporary)
        finish_file(temporary, mode)
        os.replace(temporary, path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_once(path: Path, value: Any) -> bool:
    """Write a JSON file unless it exists; of several writers at once, exactly one succeeds.

    Returns whether this call wrote it. An existing file is left unchanged.
    """
    temporary = path.with_name(f".once.{uuid.uuid4().hex}.json")
    write_json(temporary, value)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); "
            "choose a folder on a file system that supports hard links."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
    return True


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def finish_file(file: Path, mode: int) -> None:
    """Give a temporary file the mode of the user's umask, and write it through to the disk.

    Libraries such as safetensors create files that only their owner can read.
    """
    if file.stat().st_mode != mode:  # not every file system supports chmod
        file.chmod(mode)
    with file.open("rb") as written:
        os.fsync(written.fileno())


def cannot_write(path: Path, error: Exception, remedy: str = "") -> UserError:
    """The error for a path that cannot be written; `remedy` says what to do about it."""
    reason = getattr(error, "strerror", None) or error
    remedy = remedy or "free some disk space, or choose another path"
    return UserError(f"{path} cannot be written ({reason}); {remedy}.")


def check_writable(path: Path) -> None:
    """Report before long work that a file cannot be written, without leaving anything behind."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file in it.")
    missing = [parent for parent in path.parents if not os.path.exists(parent)]
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    except OSError as error:
        raise cannot_write(path, error, "choose another path") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            for parent in missing:
                parent.rmdir()


class NoPermissionError(UserError):
    """A file exists, but this user may not read it."""


def check_readable(path: Path) -> None:
    """Check that a file exists and that this user may read it."""
    # any other error is reported by whoever reads the file
    with contextlib.suppress(OSError), _readable(path), path.open("rb"):
        pass


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except PermissionError:
        raise NoPermissionError(
            f"You do not have permission to read {path}; ask its owner for access (chmod a+r)."
        ) from None


def read_json(path: Path) -> Any:
    try:
        with _readable(path):
            return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}).") from None
