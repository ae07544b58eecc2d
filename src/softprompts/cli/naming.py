"""How commands name a library and a prompt: flags, and the prompt that is meant."""

import argparse
from pathlib import Path

from ..errors import UserError
from ..files.names import checked_path
from ..library import default_folder


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
    return checked_path(text)
