"""A library of prompts, each representing its task, and search for the most similar ones."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from ..artifacts.file_names import CARD
from ..errors import UserError, closest, setting

Similarity = Literal["cosine_of_average_tokens", "per_token_average_cosine"]
"""How two prompts are compared; `search.py` has the formulas."""

NAME_LIMIT = 200
"""Characters of a prompt's name."""


def default_folder() -> Path:
    """The default library: SOFTPROMPTS_LIBRARY, or `library` in the current directory."""
    return Path(os.environ.get("SOFTPROMPTS_LIBRARY") or "library")


def check_exists(folder: Path) -> None:
    if not folder.is_dir():
        raise UserError(
            f"There is no library at {folder}; name one with {setting('library')}, "
            "or fill it with `softprompts prompts import`."
        )


def check_distinct(folders: Iterable[Path]) -> None:
    """Refuse run folders that would be served under one name."""
    runs: dict[str, Path] = {}
    for folder in folders:
        if (folder / CARD).exists():
            other = runs.setdefault(folder.resolve().name, folder)
            if other.resolve() != folder.resolve():
                raise UserError(
                    f"{other} and {folder} have the same name, by which requests choose a prompt; "
                    "rename one of them."
                )


def check_present(name: str, folder: Path) -> None:
    """Raise if the library in this folder holds no prompt of this name."""
    if (folder / name).is_dir():
        return
    names = [item for item in os.listdir(folder) if item[:1] != "."]
    containing = [item for item in names if name in item]
    similar = closest(name, names) or (containing[0] if len(containing) == 1 else None)
    hint = f"did you mean {similar}? " if similar else ""
    raise UserError(
        f"There is no prompt {name} in the library {folder}; {hint}"
        f"`softprompts prompts list --library {folder}` lists its prompts."
    )
