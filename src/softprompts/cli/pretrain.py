"""The command: its flags are the attributes of the config."""

import argparse
import dataclasses
import sys
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config.choice import from_mapping
from ..errors import UserError
from ..pretraining.config import NEW, PretrainConfig
from .command import make_parser, tell

EXAMPLES = """softprompts pretrain --text wiki.txt.bz2,books.txt.xz --tokens 1e9 --output models/mine
  softprompts pretrain --text wiki.txt --tasks tasks.jsonl.xz --objectives span=0.45,prefix=0.2,tasks=0.35 --output models/mine
  softprompts pretrain --from models/mine --text wiki.txt --objectives prefix=1 --lr 1e-3 --steps 2000 --output models/mine-lm
"""
FLAGS = {"from_model": "--from"}


def main(argv: Sequence[str]) -> int:
    """Pretrain a T5 from raw text on one GPU, or slowly on a CPU."""
    options, settings = _parsed(argv)
    config = from_mapping(PretrainConfig, settings)

    from ..pretraining.progress import Watcher
    from ..pretraining.train import FailedError, pretrain

    try:
        card = pretrain(config, options.output, options.overwrite, Watcher(options.quiet))
    except FailedError as failed:
        print(f"softprompts: {failed}", file=sys.stderr)
        return 1
    tell(options, card, _summary(card, options.output))
    return 0


def _summary(card: dict[str, Any], folder: Path) -> str:
    said = [
        f"{card['tokens'] / 1e6:,.1f}M tokens in {card['steps']} steps and {card['seconds']:.0f} s"
    ]
    said += [
        f"{name.replace('_', ' ')} loss {next(iter(losses.values())):.3f}"
        for name, losses in card["losses"].items()
    ]
    end = (
        f"the model is in {folder}"
        if card.get("finished")
        else f"paused; the same command goes on from {folder}"
    )
    return f"{', '.join(said)}\n{end}"


def _parsed(argv: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
    parser = make_parser("pretrain", EXAMPLES, main.__doc__)
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="where the model goes; an unfinished run in it goes on",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="start anew even if the folder holds a run"
    )
    _add_settings(parser)
    given = vars(parser.parse_args(argv))
    names = [field.name for field in dataclasses.fields(PretrainConfig)]
    settings = {name: given.pop(name) for name in names if name in given}
    unused = [name for name in NEW if name in settings and "from_model" in settings]
    if unused:
        raise UserError(
            f"--{unused[0].replace('_', '-')} is for a new model, and the one of --from has its own; leave it out."
        )
    return argparse.Namespace(**given), settings


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """A flag that is not given stays out, so that the config's own default counts."""
    from ..config.run import attribute_docs

    docs, hints = attribute_docs(PretrainConfig), typing.get_type_hints(PretrainConfig)
    group = parser.add_argument_group("settings")
    for field in dataclasses.fields(PretrainConfig):
        default = (
            field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory()
        )
        shown = (
            ",".join(f"{name}={share:g}" for name, share in default.items())
            if isinstance(default, dict)
            else default
        )
        text = docs[field.name] + (f" (default {shown})" if shown not in (None, [], "") else "")
        flag = FLAGS.get(field.name, f"--{field.name.replace('_', '-')}")
        common: dict[str, Any] = {
            "dest": field.name,
            "default": argparse.SUPPRESS,
            "help": text.replace("%", "%%"),
        }
        if bool in (hints[field.name], *typing.get_args(hints[field.name])):
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        else:
            group.add_argument(flag, metavar="VALUE", **common)
