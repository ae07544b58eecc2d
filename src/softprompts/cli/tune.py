"""The command `softprompts tune`: its flags, its folder, and what it tells."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..config.products import Member, expand_lists
from ..config.yaml_file import read_yaml
from ..errors import UserError
from ..files.names import safe_name
from ..tuning.run import RunFailedError
from ..tuning.summary import over_seeds, records, write_table
from ..tuning.team import leave_team
from ..tuning.tune import tune_cohort, tune_config
from ..tuning.tuned import Tuned
from . import flags
from .command import is_main_process, make_parser, output_folder, scores, tell, wordless
from .progress import CohortWatcher, ProgressWatcher
from .summary import table

EXAMPLES = """softprompts tune --task helpdesk/intent
  softprompts tune --train reviews.csv --text review --label stars --preset residual --output runs/stars
  softprompts tune --config runs/stars/config.yaml --seed 1 --output runs/stars-1
  softprompts tune --task helpdesk/intent,helpdesk/urgency --lr 0.1,0.3 --seed 0,1,2 --output runs/study      # twelve runs"""


def main(argv: Sequence[str]) -> int:
    """Tune a prompt on a task or on your own data, or many at once."""
    options, settings = flags.parse_run(_parser(), argv)
    file = read_yaml(options.config) if options.config else {}
    for name in {"preset", "paper"} & settings.keys() & file.keys():
        if settings[name] != file[name]:
            raise UserError(
                f"{options.config} sets {name} to {file[name]} and the rest to match; leave --{name} out, or name another file."
            )
    members = expand_lists(file, settings)
    trackers = [name.strip() for name in options.trackers.split(",") if name.strip()]
    try:
        if members[0].varied:
            return _tune_cohort(members, options, trackers)
        folder = options.output or _folder(members[0])
        with ProgressWatcher(options.quiet or not is_main_process()) as watcher:
            tuned = tune_config(
                members[0].config, folder, options.overwrite, watcher, trackers=trackers
            )
    except RunFailedError as failed:
        if is_main_process():
            print(f"softprompts: {failed}", file=sys.stderr)
        return _ended(failed=True)
    finally:
        leave_team()
    if is_main_process():
        tell(options, tuned.card.plain() | {"cost": tuned.cost}, _summary(tuned))
    return _ended(tuned.card.failed)


def _tune_cohort(
    members: Sequence[Member], options: argparse.Namespace, trackers: Sequence[str]
) -> int:
    folder = options.output or _folder(members[0])
    with CohortWatcher(
        [member.varied for member in members], options.quiet or not is_main_process()
    ) as watcher:
        results = tune_cohort(
            members,
            folder,
            options.overwrite,
            watcher,
            trackers=trackers,
            on_start=watcher.on_start,
            exclusive=True,
        )
    runs = records(members, results, folder)
    if is_main_process():
        write_table(members, results, folder)
        tell(options, {"runs": runs, "summary": over_seeds(runs)}, table(runs, folder))
    return _ended(any(run["failed"] for run in runs))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("tune", EXAMPLES, main.__doc__)
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="settings from a YAML file; flags override it"
    )
    where = "where the result goes (default runs/TASK-PRESET-seedN); an unfinished run in it goes on; of lists, a folder for each run"
    parser.add_argument("--output", metavar="FOLDER", type=output_folder, help=where)
    parser.add_argument(
        "--overwrite", action="store_true", help="start anew even if the folder holds a run"
    )
    parser.add_argument(
        "--trackers",
        metavar="NAMES",
        default="",
        help="tell tensorboard, wandb, mlflow or trackio; several with commas",
    )
    flags.add_run(parser)
    return parser


def _ended(failed: bool) -> int:
    """The exit code, from the process that is_main_process: a launcher ends all as soon as one fails, and this one may still be writing."""
    return 1 if failed and is_main_process() else 0


def _folder(member: Member) -> Path:
    """`runs/TASK-PRESET-seedN`; of a cohort, what its runs share, and the names of what they do not."""
    task, config = member.config.task, member.config
    what = {
        "task": task.task or f"{Path(task.train or '').stem}-{task.label}",
        "preset": config.method,
        "seed": f"seed{config.seed}",
    }
    shared = [text for name, text in what.items() if name not in member.varied]
    return Path("runs") / safe_name(
        "-".join([*shared, *(("by", *member.varied) if member.varied else ())])
    )


def _summary(tuned: Tuned) -> str:
    card, rows = tuned.card, tuned.card.task.rows
    best = f"best at step {card.best_step} of {card.steps}"
    lines = [f"{card.task.name} on {card.backbone.name}: {scores(card.plain())}, {best}"]
    if why := wordless(card.invalid or 0, rows["validation"], bool(card.steps)):
        lines.append(why)
    if rows["skipped"]:
        lines.append(f"{rows['skipped']} bad rows were left out")
    if card.stopped:
        lines.append(f"stopped early: {card.stopped}")
    if card.cut_texts:
        lines.append(
            f"{card.cut_texts} of {rows['train']} training texts were cut to {card.max_length} "
            "tokens, prompt included"
        )
    if tuned.cost is not None:
        most = (
            ""
            if tuned.cost["peak_gib"] is None
            else f" and {tuned.cost['peak_gib']:.1f} GiB at most"
        )
        resumed = (
            f", going on from step {tuned.cost['from_step']}" if tuned.cost["from_step"] else ""
        )
        lines.append(f"training took {tuned.cost['seconds']:.0f} s{most}{resumed}")
    elif card.steps:
        lines.append("the run had finished before; --overwrite tunes it anew")
    lines.append(f"the prompt, its card and its learning curve are in {tuned.folder}")
    return "\n".join(lines)
