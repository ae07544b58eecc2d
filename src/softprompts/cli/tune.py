"""The command `softprompts tune`; what needs torch is in `tune_runs`."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from ..artifacts.file_names import TOURNAMENT
from ..config import Member, RunConfig, expand_lists
from ..config.candidates import check_minutes, make_candidates
from ..config.run import DEFAULT_MODEL, check_head, check_tracker_names
from ..files import safe_name
from ..library import default_folder
from ..tasks import check_task
from . import flags
from .command import (
    action,
    argument,
    check_model,
    check_prompt_folder,
    importing,
    output_folder,
)
from .output import is_main_process

LISTS = """Tasks, presets, numbers and choices may be lists, such as --seed 0,1,2 --lr 0.1,0.3. All
combinations are tuned on one frozen model, as a cohort; each run has its own folder below
--output (docs/cohorts.md)."""


def _trackers(text: str) -> Sequence[str]:
    return check_tracker_names([name.strip() for name in text.split(",") if name.strip()])


@action(
    "tune",
    """softprompts tune --task helpdesk/intent
  softprompts tune --train reviews.csv --text review --label stars --preset residual
  softprompts tune --task helpdesk/intent --auto          # chooses the method (docs/auto.md)
  softprompts tune --config runs/stars/config.yaml --seed 1 --output runs/stars-1
  softprompts tune --task helpdesk/intent,helpdesk/urgency --lr 0.1,0.3 --seed 0,1,2  # 12 runs""",
    argument(
        "--output",
        metavar="FOLDER",
        type=output_folder,
        help="the run folder (default runs/TASK-PRESET-seedN); resumes an unfinished run found "
        "there; with lists, each run gets a subfolder",
    ),
    argument("--overwrite", action="store_true", help="start over even if the folder holds a run"),
    argument(
        "--trackers",
        metavar="NAMES",
        default=[],
        type=_trackers,
        help="log to tensorboard, wandb, mlflow or trackio; several separated by commas",
    ),
    argument(
        "--auto",
        action="store_true",
        help="let methods, learning rates, lengths and starts compete on rows held out of the "
        "training data, and tune the winner for 1.5 times --steps; costs at most three runs; "
        "lists of settings replace the built-in candidates (docs/auto.md)",
    ),
    argument(
        "--minutes",
        metavar="VALUE",
        help="with --auto: how long tournament and winner may take, roughly; replaces --steps",
    ),
    flags.add_run,
    lambda parser: parser.add_argument_group("lists", LISTS),
    parse=flags.parse_run,
)
def main(options: argparse.Namespace) -> int:
    """Tune a prompt on a task or on your own data, or many at once."""
    began = time.monotonic()
    layers = options.layers
    minutes = check_minutes(options.minutes, options.auto, *layers)
    members, default = expand_lists(*layers), False
    folder = options.output or _default_folder(members[0], options.auto)
    if options.auto:
        resumed = not options.overwrite and (folder / TOURNAMENT).exists()
        members, default = make_candidates(*layers, minutes=minutes, resumed=resumed)
    for task in {str(member.config.task): member.config.task for member in members}.values():
        check_task(task)
    _check_model([member.config for member in members])

    with importing():
        from .tune_runs import tune_and_print

    # A launcher stops all processes as soon as one fails, and the main one may still be writing.
    failed = tune_and_print(members, folder, options, began, default, minutes)
    return int(failed and is_main_process())


def _check_model(configs: Sequence[RunConfig]) -> None:
    """Refuse a model that does not fit, and what is nowhere to be found: the model, or a prompt to
    start from."""
    for config in configs:
        if config.prompt.start.kind == "prompt":
            for source in config.prompt.start.options.get("sources", ()):
                check_prompt_folder(Path(source), default_folder())
        if config.model == DEFAULT_MODEL:
            check_head(config, DEFAULT_MODEL)
    check_model(configs[0].model)


def _default_folder(member: Member, auto: bool = False) -> Path:
    """`runs/TASK-PRESET-seedN`; for lists, the settings that runs share, and the varied names; for
    a tournament, `runs/TASK-auto-seedN`."""
    config, task = member.config, member.config.task
    file = Path(task.train or "").stem
    parts = {
        "task": task.task or task.name or f"{task.generic_folder}{file}-{task.label}",
        "preset": "auto" if auto else config.method,
        "seed": f"seed{config.seed}",
    }
    if auto:
        return Path("runs") / safe_name("-".join(parts.values()))
    if "train" in member.varied:
        del parts["task"]
    shared = [part for name, part in parts.items() if name not in member.varied]
    varied = ["by", *member.varied] if member.varied else []
    return Path("runs") / safe_name("-".join([*shared, *varied]))
