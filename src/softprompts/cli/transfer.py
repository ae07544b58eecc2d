"""The command `softprompts transfer`: its flags, and what it tells."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError, listing
from .command import aligned, make_parser, output_folder, tell
from .naming import add_library

if TYPE_CHECKING:
    from ..transfer.record import RunResult, TransferRecord

EXAMPLES = """softprompts transfer --to helpdesk/urgency --library prompts
  softprompts transfer --to superglue/cb --strategy average --k 3 --preset prompt-tuning --steps 1000 --baseline
  softprompts transfer --to superglue/cb --from mnli      # one source that was named
  softprompts transfer --to superglue/cb --all            # the oracle: every source is tried"""

SHOWN = 10
"""Rows of the ranking that are printed, where no more were chosen."""


def main(argv: Sequence[str]) -> int:
    """Tune a prompt for a new task from prompts of tasks like it."""
    options, request = _asked(argv)

    from ..transfer.transfer import run_transfer
    from ..tuning import RunFailedError
    from .progress import CohortWatcher

    output = options.output or _folder(request)
    try:
        record = run_transfer(
            request,
            output,
            options.baseline,
            options.overwrite,
            lambda settings: CohortWatcher(settings, options.quiet),
            on_choice=lambda record: None if options.json else print(choice(record), flush=True),
        )
    except RunFailedError as failed:
        print(f"softprompts: {failed}", file=sys.stderr)
        return 1
    tell(options, record, outcome(record, output))
    return (
        1
        if any(
            result["failed"] for result in (*record["results"], *filter(None, [record["baseline"]]))
        )
        else 0
    )


def _asked(argv: Sequence[str]) -> tuple[argparse.Namespace, Any]:
    from ..config.yaml_file import read_yaml
    from ..transfer.transfer import Request, Strategy, single_run
    from . import flags

    options, settings = flags.parse_run(_parser(), argv)
    if options.to is not None:
        if settings.get("task", {}).get("task") not in (None, options.to):
            raise UserError("Both --to and --task name the target; leave one out.")
        settings["task"] = {**settings.get("task", {}), "task": options.to}
    file = read_yaml(options.config) if options.config else {}
    for name in {"preset", "paper"} & settings.keys() & file.keys():
        if settings[name] != file[name]:
            raise UserError(
                f"{options.config} sets {name} to {file[name]} and the rest to match; leave --{name} out."
            )
    strategy: Strategy = (
        "named" if options.source is not None else "all" if options.all else options.strategy
    )
    return options, Request(
        single_run(file, settings),
        options.library,
        strategy,
        options.source,
        options.k,
        options.similarity,
        options.probe_steps,
        options.mixture_steps,
        options.keep_same_task,
    )


def _parser() -> argparse.ArgumentParser:
    from ..library.search import SIMILARITIES
    from . import flags

    parser = make_parser(
        "transfer", EXAMPLES, f"{main.__doc__} All settings of tune are those of the target's run."
    )
    parser.add_argument(
        "--to",
        metavar="TASK",
        help="the target task by name, the same as --task; or your own data with --train",
    )
    add_library(parser)
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--strategy",
        choices=["best", "average", "mixture"],
        default="best",
        help="of the k prompts most similar to a probe of the target: tune from each and keep the best (best, the default); tune from "
        "their mean weighted by similarity (average); tune on their tasks and the target's first (mixture)",
    )
    how.add_argument(
        "--from",
        dest="source",
        metavar="NAME",
        help="tune from this prompt of the library (or folder), without a probe",
    )
    how.add_argument(
        "--all",
        action="store_true",
        help="tune from every prompt of the library and keep the best (the oracle)",
    )
    parser.add_argument(
        "--k",
        metavar="N",
        type=int,
        default=3,
        help="how many sources a strategy takes (default 3)",
    )
    names = ", ".join(SIMILARITIES)
    parser.add_argument(
        "--similarity",
        metavar="NAME",
        default="per_token_average_cosine",
        help=f"{names} (default: the second)",
    )
    told = "steps of the probe (default: the step at which most sources were embedded, but no more than --steps)"
    parser.add_argument("--probe-steps", metavar="N", type=int, help=told)
    parser.add_argument(
        "--mixture-steps",
        metavar="N",
        type=int,
        help="steps on the mixture (default: as many as on the target)",
    )
    parser.add_argument(
        "--keep-same-task",
        action="store_true",
        help="do not leave out prompts that were tuned on the target's own task",
    )
    parser.add_argument(
        "--baseline",
        action="store_true",
        help="tune from the usual start too, and tell what the sources brought",
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="settings of the target's run from a YAML file; flags override it",
    )
    where = "where the choice, the runs and the prompt go (default runs/transfer-TASK-STRATEGY-seedN); the same command in it goes on"
    parser.add_argument("--output", metavar="FOLDER", type=output_folder, help=where)
    parser.add_argument(
        "--overwrite", action="store_true", help="start anew even if the folder holds a transfer"
    )
    flags.add_run(parser)
    return parser


def _folder(request: Any) -> Path:
    from ..files.names import safe_name
    from ..transfer.strategies import target_name

    how = f"from-{request.source}" if request.source else request.strategy
    name = safe_name(f"transfer-{target_name(request.target.task)}-{how}-seed{request.target.seed}")
    return output_folder(str(Path("runs") / name))


# -- what it tells -----------------------------------------------------------------------------------------------------------


def choice(record: "TransferRecord") -> str:
    """The ranking, what was chosen of it and why, and what was left out."""
    from ..transfer.fit import SAME_TASK

    chosen, weights, probe = record["chosen"], record["weights"] or {}, record["probe"]
    lines = []
    if probe is not None:
        steps = {row["step"] for row in record["ranked"]}
        lines.append(
            f"a probe of {probe['steps']} steps, compared by {record['request']['similarity']}"
        )
        if steps != {probe["steps"]}:
            taken = ", ".join(
                str(step) if step else "unknown"
                for step in sorted(steps, key=lambda step: step or 0)
            )
            lines.append(
                f"the sources' embeddings are of step {taken}, and those of like steps compare best"
            )
        if {row["seed"] for row in record["ranked"]} != {record["request"]["target"]["seed"]}:
            lines.append(
                "the sources are not all of the probe's seed, and those that are seem more alike: they start from the same words"
            )
    table = [["rank", "source", "task", "similarity", *(["weight"] if weights else []), "chosen"]]
    for rank, row in enumerate(record["ranked"][: max(SHOWN, len(chosen))], 1):
        near = "-" if row["similarity"] is None else f"{row['similarity']:.4f}"
        weight = (
            [f"{weights[row['name']]:.3f}" if row["name"] in weights else "-"] if weights else []
        )
        table.append(
            [
                str(rank),
                row["name"],
                row["task"],
                near,
                *weight,
                "yes" if row["name"] in chosen else "",
            ]
        )
    lines += aligned(table)
    if len(record["ranked"]) > len(table) - 1:
        lines.append(f"... and {len(record['ranked']) - len(table) + 1} more in choice.json")
    groups: dict[str, list[str]] = {}
    for left in record["left_out"]:
        groups.setdefault(left["why"], []).append(left["name"])
    for why, names in groups.items():
        hint = " (--keep-same-task keeps it)" if why == SAME_TASK else ""
        lines.append(f"left out: {listing(names)}: {why}{hint}")
    return "\n".join([*lines, *_lengths(record), _why(record)])


def _lengths(record: "TransferRecord") -> list[str]:
    """What becomes of sources that are longer or shorter than the target's prompt; a mixture's are not started from."""
    ours = record["request"]["target"]["prompt"]["length"]
    lengths = {row["name"]: row["length"] for row in record["ranked"]}
    others = {
        name: lengths[name]
        for name in record["chosen"]
        if lengths[name] != ours and record["mixture"] is None
    }
    cut = [
        f"{name} has {many} tokens: its first {ours} start the run"
        for name, many in others.items()
        if many > ours
    ]
    filled = f"sampled vocabulary fills up to {ours}"
    return cut + [
        f"{name} has {many} tokens: {filled}" for name, many in others.items() if many < ours
    ]


def _why(record: "TransferRecord") -> str:
    strategy, chosen, asked = (
        record["request"]["strategy"],
        record["chosen"],
        record["request"]["k"],
    )
    many = f"the {len(chosen)} prompts" if len(chosen) > 1 else "the prompt"
    if record["probe"] is not None and len(chosen) < asked:
        many += f" (of {asked} asked for)"
    if strategy == "average":
        return f"average: one run starts from the mean of {many} most similar to the probe; a similarity below zero weighs nothing"
    if record["mixture"] is not None:
        return f"mixture: one prompt learns {record['mixture']['task']} together, and starts the target's run"
    if strategy == "named":
        return f"from: the run starts from {chosen[0]}, as asked"
    start = f"a run starts from each of {many}" if len(chosen) > 1 else f"a run starts from {many}"
    return f"{strategy}: {start}{' most similar to the probe' if strategy == 'best' else ''}; the best on validation is kept"


def outcome(record: "TransferRecord", output: Path) -> str:
    """The runs' scores, what was kept, and how it stands to the baseline."""
    baseline, gain = record["baseline"], record["gain"]
    rows = [*record["results"], *([baseline] if baseline else [])]
    table = [["run", "score", "majority class", "best step"]]
    for row in rows:
        told = row["name"] if row is not baseline else "baseline (the usual start)"
        table.append([told, *_scored(row)])
    best = next(row for row in record["results"] if row["name"] == record["kept"])
    lines = ["", *aligned(table), f"kept: {best['name']}, {best['metric']} {best['score']:.1f}"]
    if gain is not None and baseline is not None:
        share = (
            ""
            if gain["error_reduction"] is None
            else f"; relative error reduction {100 * gain['error_reduction']:+.1f} %"
        )
        lines.append(f"against the baseline: {gain['points']:+.1f} points{share}")
        if gain["points"] < 0:
            lines.append(f"the baseline is better; its prompt is in {output / baseline['folder']}")
    lines += [f"{row['name']} failed: {row['stopped']}" for row in rows if row["failed"]]
    return "\n".join([*lines, f"the prompt and choice.json are in {output}"])


def _scored(row: "RunResult") -> list[str]:
    if row["score"] is None:
        return ["failed", "-", "-"]
    return [f"{row['metric']} {row['score']:.1f}", f"{row['majority']:.1f}", str(row["best_step"])]
