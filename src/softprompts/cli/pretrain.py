"""The command `softprompts pretrain`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import UserError, as_flag
from ..pretraining.config import NEW_MODEL_SETTINGS, PretrainConfig
from .command import make_parser
from .flags import add_settings, given
from .output import print_result

EXAMPLES = """softprompts pretrain --text wiki.txt.bz2,books.xz --tokens 1e9 --output models/mine
  softprompts pretrain --text wiki.txt --tasks tasks.jsonl.xz \\
      --objectives span=0.45,prefix=0.2,tasks=0.35 --output models/mine
  softprompts pretrain --from models/mine --text wiki.txt --objectives prefix=1 --lr 1e-3 \\
      --steps 2000 --output models/mine-lm"""


def main(argv: Sequence[str]) -> int:
    """Pretrain a T5 from raw text on one GPU (or slowly on a CPU), or train one further."""
    options, settings = _parse(argv)
    config = PretrainConfig.of(settings)

    from ..pretraining.run import DivergedError
    from ..pretraining.train import pretrain
    from .pretrain_progress import PretrainProgress

    try:
        progress = PretrainProgress(options.quiet)
        card = pretrain(config, options.output, options.overwrite, progress)
    except DivergedError as error:
        print(f"softprompts: {error}", file=sys.stderr)
        return 1
    return print_result(options, card, _describe(card, options.output))


def _describe(card: dict[str, Any], folder: Path) -> str:
    tokens = f"{card['tokens'] / 1e6:,.1f}M tokens"
    parts = [f"{tokens} in {card['steps']} steps and {card['seconds']:.0f} s"]
    for name, losses in card["losses"].items():
        parts.append(f"{name.replace('_', ' ')} loss {next(iter(losses.values())):.3f}")
    end = f"the model is in {folder}"
    if not card.get("finished"):
        end = f"paused; the same command resumes from {folder}"
    return f"{', '.join(parts)}\n{end}"


def _parse(argv: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
    parser = make_parser("pretrain", EXAMPLES, main.__doc__)
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="the model folder; resumes an unfinished run found there",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="start over even if the folder holds a run"
    )
    add_settings(parser, PretrainConfig, "settings", names={"from_model": "--from"})
    options = parser.parse_args(argv)
    settings = given(options)
    unused = [name for name in NEW_MODEL_SETTINGS if name in settings and "from_model" in settings]
    if unused:
        raise UserError(
            f"{as_flag(unused[0])} is for a new model, and the model of --from has its own; "
            "leave it out."
        )
    return options, settings
