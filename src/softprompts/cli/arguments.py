"""Arguments that several commands have."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import coerce
from ..errors import UserError
from ..files import checked_path
from ..library import default_folder

if TYPE_CHECKING:
    from ..tuning.tuned import Tuned


def whole_number(name: str, minimum: int = 1) -> Callable[[str], int]:
    """The type of an argument `--NAME`."""

    def parse(text: str) -> int:
        number: int = coerce(name, text, {"type": "integer", "minimum": minimum})
        return number

    return parse


def output_folder(text: str) -> Path:
    if not text.strip():
        raise UserError("The output folder has no name; give one with --output.")
    return checked_path(text)


def add_model(parser: argparse.ArgumentParser, model: str, required: bool = False) -> None:
    """The flags of a command that loads a backbone."""
    parser.add_argument("--model", required=required, help=model)
    parser.add_argument(
        "--dtype",
        choices=["auto", "fp32", "bf16"],
        default="auto",
        help="precision of the frozen model (default auto: bf16 on a GPU, fp32 on a CPU)",
    )
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto (default)")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that comes with a Hub model"
    )


def add_library(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--library",
        metavar="FOLDER",
        type=_library_folder,
        default=default_folder(),
        help="the library's folder (default: SOFTPROMPTS_LIBRARY, or library)",
    )


def _library_folder(text: str) -> Path:
    if not text.strip():
        raise UserError("The library has no name; give its folder with --library.")
    return checked_path(text)


def add_library_prompt(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        help="a folder that tune or import wrote, or a name in the library",
    )


def add_tuned_prompt(parser: argparse.ArgumentParser) -> None:
    """The flags of a command that answers with a tuned prompt."""
    parser.add_argument("prompt", metavar="PROMPT", type=Path, help="the folder that tune wrote")
    parser.add_argument(
        "--scoring",
        choices=["generate", "labels"],
        help="greedy generation or label scoring (default: as tuned)",
    )
    add_model(parser, "the backbone, if it is not where the prompt's card says")


def load_tuned_prompt(options: argparse.Namespace) -> "Tuned":
    from ..tuning.tuned import load

    return load(
        options.prompt, options.model, options.dtype, options.device, options.trust_remote_code
    )
