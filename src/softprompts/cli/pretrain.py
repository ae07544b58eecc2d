import argparse
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import UserError, as_flag
from ..files import similar_path
from ..pretraining.config import NEW_MODEL_SETTINGS, PretrainConfig
from .command import action, argument
from .flags import add_settings, given
from .output import print_result


@action(
    "pretrain",
    """softprompts pretrain --text wiki.txt.bz2,books.xz --tokens 1e9 --output models/mine
  softprompts pretrain --text wiki.txt --tasks tasks.jsonl.xz \\
      --objectives span=0.45,prefix=0.2,tasks=0.35 --output models/mine
  softprompts pretrain --from models/mine --text wiki.txt --objectives prefix=1 --lr 1e-3 \\
      --steps 2000 --output models/mine-lm""",
    argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        required=True,
        help="the model folder; resumes an unfinished run found there",
    ),
    argument("--overwrite", action="store_true", help="start over even if the folder holds a run"),
    partial(
        add_settings,
        kind=PretrainConfig,
        title="settings",
        names={"from_model": "--from"},
        aliases={},  # --dtype is not the precision of the weights here
    ),
)
def main(options: argparse.Namespace) -> int:
    """Pretrain a T5 from raw text on one GPU (or slowly on a CPU), or continue training one."""
    settings = given(options)
    unused = [name for name in NEW_MODEL_SETTINGS if name in settings and "from_model" in settings]
    if unused:
        raise UserError(
            f"{as_flag(unused[0])} is for a new model, and the model of --from has its own; "
            "leave it out."
        )
    config = PretrainConfig.of(settings)
    for name in (*config.text, *config.tasks):
        if not Path(name).exists():
            raise UserError(f"The file {name} does not exist.{similar_path(Path(name))}")

    from ..pretraining.train import pretrain
    from .pretrain_progress import PretrainProgress

    card = pretrain(config, options.output, options.overwrite, PretrainProgress(options.quiet))
    return print_result(options, card, _describe(card, options.output))


def _describe(card: dict[str, Any], folder: Path) -> str:
    tokens = f"{card['tokens'] / 1e6:,.1f}M tokens"
    parts = [f"{tokens} in {card['steps']} steps and {card['seconds']:.0f} s"]
    for name, losses in card["losses"].items():
        parts.append(f"{name.replace('_', ' ')} loss {next(iter(losses.values())):.3f}")
    finished = (
        "the model is in" if card.get("finished") else "paused; the same command resumes from"
    )
    return f"{', '.join(parts)}\n{finished} {folder}"
