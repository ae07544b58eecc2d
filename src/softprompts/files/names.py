"""Names that every file system takes."""

import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError


def safe_name(name: str) -> str:
    """A task's or model's name as one file name: no slash, no leading dot."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "prompt"


def some_place(text: str) -> Path:
    """A path that the system can look at, whether or not there is something."""
    path = Path(text)
    try:
        path.exists()
    except (OSError, ValueError) as error:
        shown = text if len(text) < 80 else f"{text[:77]}..."
        raise UserError(
            f"{shown} cannot be looked at ({getattr(error, 'strerror', None) or error}); name another place."
        ) from None
    return path


def check_free(folder: Path, names: Sequence[str], overwrite: bool) -> None:
    """Nobody's work is overwritten unasked, or half of it."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"The output {folder} is no folder; name another with --output.")
    there = [name for name in names if (folder / name).exists()]
    if there and not overwrite:
        raise UserError(
            f"{folder} already holds {there[0]}; choose another --output, or replace it with --overwrite."
        )
