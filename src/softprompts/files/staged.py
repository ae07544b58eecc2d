"""Folders that are complete or absent: written under a temporary name, then moved into place."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from .atomic import cannot_write, finish_file, stale_paths, temporary_path

STAGED, REPLACED = ".new-", ".old-"
"""How the names of a folder in the making and of the folder it replaces begin."""


@contextlib.contextmanager
def staged_folder(path: Path, remedy: str = "") -> Iterator[Path]:
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
    with _staging(path, path, remedy) as staged:
        yield staged
        _finish(staged)
        _swap(staged, path)


@contextlib.contextmanager
def staged_files(folder: Path, last: str, remedy: str = "") -> Iterator[Path]:
    """Write files that are moved into `folder` when the block ends, `last` after all others.

    For a folder that also holds other files. A reader that finds `last` finds the rest, too.
    Errors and modes are as for `staged_folder`.
    """
    with _staging(folder / last, folder, remedy) as staged:
        yield staged
        _finish(staged)
        for file in sorted(staged.iterdir(), key=lambda file: file.name == last):
            os.replace(file, folder / file.name)


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
def _staging(path: Path, named: Path, remedy: str) -> Iterator[Path]:
    """A new temporary folder next to `path`, removed at the end; errors name `named`."""
    template = path.with_name(f"{STAGED[1:]}{path.name}")
    for stale in stale_paths(template):
        _remove(stale)
    staged = temporary_path(template)
    try:
        staged.mkdir(parents=True)
        yield staged
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        raise cannot_write(named, error, remedy) from None
    finally:
        _remove(staged)


def _finish(folder: Path) -> None:
    sample = folder / ".mode"
    sample.touch()
    mode = sample.stat().st_mode
    sample.unlink()
    for file in folder.rglob("*"):
        if file.is_file():
            finish_file(file, mode)


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


def _remove(path: Path) -> None:
    if path.is_symlink() or path.is_file():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
