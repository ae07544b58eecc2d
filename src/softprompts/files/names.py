"""Names, paths, and the cache folder."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError, setting


def safe_name(name: str) -> str:
    """A task's or model's name as one file name: no slash, no leading dot."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-") or "prompt"


def checked_path(text: str) -> Path:
    """A path that the system accepts, whether or not it exists."""
    path = Path(text)
    try:
        path.exists()
    except (OSError, ValueError) as error:
        shown = text if len(text) < 80 else f"{text[:77]}..."
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{shown} cannot be accessed ({reason}); choose another path.") from None
    return path


def check_overwrite(folder: Path, names: Sequence[str], overwrite: bool) -> None:
    """Raise if one of these files exists in the output folder and may not be overwritten."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"The output {folder} is not a folder; choose another {setting('output')}.")
    existing = [name for name in names if (folder / name).exists()]
    if existing and not overwrite:
        raise UserError(
            f"{folder} already holds {existing[0]}; choose another {setting('output')}, "
            f"or replace it with {setting('overwrite')}."
        )


def cache_folder() -> Path:
    """The folder for what can be computed again.

    It is SOFTPROMPTS_CACHE, or `softprompts` in the user's cache folder.
    """
    if folder := os.environ.get("SOFTPROMPTS_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softprompts"
