"""The flags of commands that use a tuned prompt."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from .command import add_model

if TYPE_CHECKING:
    from ..tuning.tuned import Tuned


def add_prompt_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", type=Path, help="the folder that tune wrote")
    parser.add_argument(
        "--scoring",
        choices=["generate", "labels"],
        help="greedy generation, or the likeliest label word (default: as tuned)",
    )
    add_model(parser, "the backbone's place, when it is not where the card says")


def load_prompt(options: argparse.Namespace) -> "Tuned":
    from ..tuning.tuned import load

    return load(
        options.prompt, options.model, options.dtype, options.device, options.trust_remote_code
    )
