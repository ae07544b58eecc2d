"""Files that are whole or not there: everything is written beside its place and moved in."""

import contextlib
import functools
import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import UserError


@functools.cache
def machine() -> str:
    """Where a process number means a process: two machines or containers may have one name, so what else sets them apart goes with it."""
    found = [socket.gethostname()]
    with contextlib.suppress(OSError):  # only Linux tells
        found += [
            Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip(),
            os.readlink("/proc/self/ns/pid"),
        ]
    return " ".join(found)


def _mark() -> str:
    """The machine as a part of a file's name."""
    return hashlib.sha256(machine().encode()).hexdigest()[:8]


def _beside(path: Path) -> Path:
    """A file of this process alone, in the same folder."""
    return path.with_name(f".{path.stem}.{_mark()}-{os.getpid()}{path.suffix}")


def make_folder(folder: Path) -> None:
    """A folder for output, with those above it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"The output {folder} cannot be a folder ({error.strerror}); name another with --output."
        ) from None


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary file in the same folder, then move it to `path`."""
    beside = _beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch()
        mode = (
            beside.stat().st_mode
        )  # as the user's umask has it; safetensors would keep a file to its owner
        write(beside)
        _allow(beside, mode)
        with beside.open("rb") as done:
            os.fsync(done.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}); make room, or name another place."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)


def share(folder: Path) -> None:
    """Give the files in a folder, which a library wrote, the mode that this user's new files have; some are their owner's alone."""
    sample = folder / ".mode"
    sample.touch()
    mode = sample.stat().st_mode
    sample.unlink()
    for file in (file for file in folder.iterdir() if file.is_file()):
        _allow(file, mode)


def _allow(file: Path, mode: int) -> None:
    """Only where it is another: not every file system lets modes be changed."""
    if file.stat().st_mode != mode:
        file.chmod(mode)


def check_writable(path: Path) -> None:
    """Tell before long work that a file cannot be written; nothing is left of the try."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file in it.")
    missing = [place for place in path.parents if not os.path.exists(place)]
    beside = _beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.touch()
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}); name another place."
        ) from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            for place in missing:
                place.rmdir()


def sweep(folder: Path, names: Iterable[str]) -> None:
    """Remove what a killed process of this machine left beside these files; of another machine's nobody here knows whether it lives."""
    for path in (Path(name) for name in names):
        for left in folder.glob(f".{path.stem}.{_mark()}-*{path.suffix}"):
            owner = left.name.removeprefix(f".{path.stem}.{_mark()}-").removesuffix(path.suffix)
            if not (owner.isdigit() and _alive(int(owner))):
                left.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    """Whether a process, other than this one, is at work."""
    if process == os.getpid() or os.name == "nt":  # where asking would be a Ctrl-C
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def write_text(path: Path, text: str) -> None:
    write_atomically(path, lambda place: place.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


class NoLeaveError(UserError):
    """A file that is there, but for others."""


def check_readable(path: Path) -> None:
    """That a file is there, and that this user may read it."""
    with (
        contextlib.suppress(OSError),
        _readable(path),
        path.open("rb"),
    ):  # other errors are for who reads it to tell
        pass


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} does not exist.") from None
    except PermissionError:
        raise NoLeaveError(
            f"{path} may not be read by this user; ask its owner for leave (chmod a+r)."
        ) from None


def read_json(path: Path) -> Any:
    try:
        with _readable(path):
            return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON ({error}).") from None
