"""Files and folders that are complete or absent: moved into place when they are written."""

import contextlib
import csv
import functools
import glob
import hashlib
import io
import json
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..errors import UserError, setting

STAGED, REPLACED = ".new-", ".old-"
"""Prefixes of the names of an unfinished folder and of the folder it replaces."""


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
    """A hidden name in the same folder, used by one process only: by default, this one."""
    host = hashlib.sha256(host_id().encode()).hexdigest()[:8]
    return path.with_name(f".{path.stem}.{host}-{process or os.getpid()}{path.suffix}")


def remove_stale(folder: Path, names: Iterable[str]) -> None:
    """Remove the temporary files for these paths that dead processes of this host left behind.

    Those of other hosts are skipped: their processes may still be running.
    """
    for name in names:
        prefix, suffix = temporary_path(folder / name, "*").name.split("*")
        for temporary in folder.glob(f"{glob.escape(prefix)}*{glob.escape(suffix)}"):
            process = temporary.name.removeprefix(prefix).removesuffix(suffix)
            another = process.isdigit() and int(process) != os.getpid() and os.name != "nt"
            if not (another and process_exists(int(process))):
                _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def process_exists(process: int) -> bool:
    """Whether a process of this machine exists; on Windows, where signal 0 is Ctrl-C, always."""
    try:
        if os.name != "nt":
            os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
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


@contextlib.contextmanager
def removing_new_folders(folder: Path) -> Iterator[None]:
    """On exit, remove `folder` and its parents if they did not exist before and are empty."""
    missing = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            for path in missing:
                path.rmdir()


@contextlib.contextmanager
def _temporary(path: Path, target: Path, remedy: str = "") -> Iterator[Path]:
    """An empty temporary file next to `path`, removed on exit; errors name `target`."""
    temporary = temporary_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
        yield temporary
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        reason = getattr(error, "strerror", None) or error
        if isinstance(error, FileExistsError | NotADirectoryError):
            reason, remedy = f"{path.parent} is not a folder", "choose another path"
        remedy = remedy or "free some disk space, or choose another path"
        raise UserError(f"{target} cannot be written ({reason}); {remedy}.") from None
    finally:
        with contextlib.suppress(OSError):
            _remove(temporary)


def check_writable(path: Path) -> None:
    """Raise before long work if a file cannot be written; leaves nothing behind."""
    if path.is_dir():
        raise UserError(f"{path} is a folder; name a file in it.")
    with removing_new_folders(path.parent), _temporary(path, path, "choose another path"):
        pass


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Call `write` on a temporary file in the same folder, then move it to `path`."""
    with _temporary(path, path) as temporary:
        mode = temporary.stat().st_mode
        write(temporary)
        _finish(temporary, mode)
        os.replace(temporary, path)


def _finish(file: Path, mode: int) -> None:
    """Give a temporary file the mode of the user's umask, and write it through to the disk.

    Libraries such as safetensors create files that only their owner can read.
    """
    if file.stat().st_mode != mode:  # not every file system supports chmod
        file.chmod(mode)
    with file.open("rb") as written:
        os.fsync(written.fileno())


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
    """Write UTF-8; half of a surrogate pair, which a cut-off emoji leaves, is written escaped."""
    data = text.encode("utf-8", "backslashreplace")
    write_atomically(path, lambda temporary: temporary.write_bytes(data))


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_csv(
    path: Path, rows: Iterable[Mapping[str, Any]], columns: Sequence[str], delimiter: str = ","
) -> None:
    """Write the `columns` of rows below their names; a cell that a row lacks is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, columns, extrasaction="ignore", delimiter=delimiter, lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())


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


def read_object(path: Path, keys: Collection[str], remedy: str) -> Any:
    """The JSON object of a file, with at least these keys; None if there is no such file."""
    if not path.exists():
        return None
    with contextlib.suppress(UserError):
        value = read_json(path)
        if isinstance(value, dict) and value.keys() >= set(keys):
            return value
    raise UserError(f"{path} is corrupted, or not written by softprompts; {remedy}.")


def staged_folder(path: Path, remedy: str = "") -> contextlib.AbstractContextManager[Path]:
    """Write a folder that takes the place of `path`, all at once, when the block ends.

        with staged_folder(run / "model") as folder:
            model.save_pretrained(folder)

    If the block raises, `path` stays as it was and nothing is left behind. Files get the mode of
    the user's umask, whatever library wrote them. An `OSError` in the block becomes a `UserError`
    that ends with `remedy`.

    A process killed during the block leaves a hidden folder, which the next call for this path on
    the same host removes. One killed during the swap leaves the previous folder as `.old-NAME`,
    which `restore_folders` puts back.
    """
    return _staging(path, path, remedy, lambda staged: _swap(staged, path))


def is_being_replaced(path: Path) -> bool:
    """Whether `staged_folder` is about to put another folder in the place of `path`."""
    return os.path.lexists(path.with_name(f"{REPLACED}{path.name}"))


def staged_files(
    folder: Path, last: str, remedy: str = ""
) -> contextlib.AbstractContextManager[Path]:
    """Write files that are moved into `folder` when the block ends, `last` after all others.

    For a folder that also holds other files. A reader that finds `last` finds the rest, too.
    Errors and modes are as for `staged_folder`.
    """

    def move(staged: Path) -> None:
        for file in sorted(staged.iterdir(), key=lambda file: file.name == last):
            os.replace(file, folder / file.name)

    return _staging(folder / last, folder, remedy, move)


def restore_folders(parent: Path) -> None:
    """Undo what processes killed inside `staged_folder` left in `parent`.

    Incomplete folders are removed, and replaced ones restored if nothing took their place. Call it
    only while no other process writes to `parent`, for example while holding its lock. Without
    write permission, nothing happens.
    """
    for left in list(parent.iterdir()):
        replaced = left.name.startswith(REPLACED)
        path = left.with_name(left.name.removeprefix(REPLACED))
        with contextlib.suppress(OSError):
            if replaced and not os.path.lexists(path):
                left.rename(path)
            elif replaced or left.name.startswith(STAGED):
                _remove(left)


@contextlib.contextmanager
def _staging(path: Path, target: Path, remedy: str, move: Callable[[Path], None]) -> Iterator[Path]:
    """A temporary folder next to `path`, which `move` moves into place; errors name `target`."""
    template = path.with_name(f"{STAGED[1:]}{path.name}")
    remove_stale(template.parent, [template.name])
    with _temporary(template, target, remedy) as staged:
        mode = staged.stat().st_mode
        staged.unlink()
        staged.mkdir()
        yield staged
        for file in staged.rglob("*"):
            if file.is_file():
                _finish(file, mode)
        move(staged)


def _swap(staged: Path, path: Path) -> None:
    replaced = path.with_name(f"{REPLACED}{path.name}")
    if os.path.lexists(path):
        _remove(replaced)
        path.rename(replaced)
    try:
        staged.rename(path)
    except OSError:
        if os.path.lexists(replaced) and not os.path.lexists(path):
            replaced.rename(path)
        raise
    if os.path.lexists(replaced):
        # removed under its temporary name, so that half of it is never restored
        replaced.rename(staged)
