"""How commands name a library and a prompt: flags, and the prompt that is meant."""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError
from ..library import default_folder
from .command import some_place

if TYPE_CHECKING:
    from ..library.library import Entry


def add_library(parser: argparse.ArgumentParser) -> None:
    where = "the library's folder (default library, or what SOFTPROMPTS_LIBRARY names)"
    parser.add_argument(
        "--library", metavar="FOLDER", type=_folder, default=default_folder(), help=where
    )


def add_prompt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        help="a folder that tune or import wrote, or a name in the library",
    )


def _folder(text: str) -> Path:
    if not text.strip():
        raise UserError("The library has no name; name its folder with --library.")
    return some_place(text)


def named_prompt(prompt: str, library: Path) -> "Entry":
    """A folder where there is one, else a name in the library."""
    from ..artifacts.prompt_file import CARD, safe_name
    from ..library.library import Entry, Library

    if not prompt.strip():
        raise UserError("The prompt has no name; give a folder, or a name in the library.")
    place = some_place(prompt)
    if (place / CARD).exists():
        return Entry.of(place, place.resolve().name)
    if place.is_dir() and prompt != safe_name(prompt):
        raise UserError(
            f"{prompt} holds no {CARD}: either it is no prompt, or its run has not finished (run the same command again)."
        )
    if prompt != safe_name(prompt):
        raise UserError(
            f"There is no prompt at {prompt}; name a folder that tune or import wrote, or a prompt of the library."
        )
    try:
        return Library(library).entry(prompt)
    except UserError as error:
        raise UserError(
            f"No folder {prompt} holds a prompt, and {re.sub('^There', 'there', str(error))}"
        ) from None
