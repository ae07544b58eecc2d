"""Names, paths, and the cache folder."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from ..errors import UserError, closest, setting


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


def similar_path(path: Path) -> str:
    """For the error about a missing file: which one beside it was probably meant, if any."""
    similar = closest(path.name, os.listdir(path.parent) if path.parent.is_dir() else [])
    return f" Did you mean {path.parent / similar}?" if similar else ""


def short_paths(paths: Sequence[str]) -> list[str]:
    """The shortest ends that tell different paths apart: `a/train.csv` and `b/train.csv`."""
    parts = [Path(path).parts for path in paths]
    lengths = range(1, max(map(len, parts), default=0) + 1)
    enough = (n for n in lengths if len({path[-n:] for path in parts}) == len(set(parts)))
    length = next(enough, 1)
    return [str(Path(*path[-length:])) for path in parts]


def find_path(name: str, folder: Path) -> str:
    """The current path of what a file in `folder` names; the name itself if it is not found.

    A relative path starts from that folder, or from the working directory. A path that is gone may
    have moved together with the folder: it is looked for below the folders above. A name alone
    would match too easily there, so only the folder and the two above it are searched for one.
    """
    here = Path(os.path.abspath(folder))
    for path in (here / name, Path(name)):  # an absolute name replaces `here`
        if path.exists():
            return os.path.abspath(path)
    parts, above = Path(name).parts, (here, *here.parents)
    # of an absolute path, any end may match
    for beginning in range(1, len(parts)) if os.path.isabs(name) else range(1):
        for base in above[:3] if beginning == len(parts) - 1 else above:
            if (path := base.joinpath(*parts[beginning:])).exists():
                return str(path)
    return name


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
