import argparse
from pathlib import Path
from typing import get_args

from ..errors import UserError
from ..files import safe_name
from ..library import Similarity, check_exists
from ..tasks import check_task
from ..transfer.settings import Request, Strategy, single_run
from . import flags
from .command import (
    action,
    add_library,
    argument,
    check_library_prompt,
    check_model,
    grouped,
    output_folder,
    whole_number,
)
from .output import print_result


@action(
    "transfer",
    """softprompts transfer --to helpdesk/urgency --library prompts
  softprompts transfer --to superglue/cb --strategy average --k 3 --steps 1000 --baseline
  softprompts transfer --to superglue/cb --from mnli      # one source, by name
  softprompts transfer --to superglue/cb --all            # the oracle: every source is tried""",
    argument(
        "--to",
        metavar="TASK",
        help="the target task by name, the same as --task; or use your own data with --train",
    ),
    add_library,
    grouped(
        argument(
            "--strategy",
            choices=["best", "average", "mixture"],
            default="best",
            help="with the k prompts most similar to a probe of the target: tune from each and "
            "keep the best (best, the default); tune from their mean weighted by similarity "
            "(average); or first tune one prompt on their tasks and the target's together "
            "(mixture)",
        ),
        argument(
            "--from",
            dest="source",
            metavar="NAME",
            help="tune from this prompt of the library (or folder), without a probe",
        ),
        argument(
            "--all",
            action="store_true",
            help="tune from every prompt of the library and keep the best (the oracle)",
        ),
    ),
    argument(
        "--k",
        metavar="N",
        type=whole_number("k"),
        default=3,
        help="how many sources a strategy uses (default 3)",
    ),
    argument(
        "--similarity",
        metavar="NAME",
        choices=get_args(Similarity),
        default="per_token_average_cosine",
        help="per_token_average_cosine (default) or cosine_of_average_tokens",
    ),
    argument(
        "--probe-steps",
        metavar="N",
        type=whole_number("probe_steps"),
        help="steps of the probe (default: the step at which most sources were embedded, "
        "but at most --steps)",
    ),
    argument(
        "--mixture-steps",
        metavar="N",
        type=whole_number("mixture_steps"),
        help="steps on the mixture (default: as many as on the target)",
    ),
    argument(
        "--keep-same-task",
        action="store_true",
        help="also use prompts that were tuned on the target's own task",
    ),
    argument(
        "--baseline",
        action="store_true",
        help="also tune from the usual start, and report the gain from the sources",
    ),
    argument(
        "--output",
        metavar="FOLDER",
        type=output_folder,
        help="the folder for the choice, the runs and the prompt (default "
        "runs/transfer-TASK-STRATEGY-seedN); resumes an unfinished transfer found there",
    ),
    argument(
        "--overwrite",
        action="store_true",
        help="start over even if the folder holds a transfer",
    ),
    flags.add_run,
    parse=flags.parse_run,
)
def main(options: argparse.Namespace) -> int:
    """Tune a prompt for a new task, starting from prompts of similar tasks.
    All settings of tune apply to the target's run."""
    request = _request(options)
    check_task(request.target.task)
    if options.source is None:
        check_exists(options.library)
    else:
        check_library_prompt(options.source, options.library)
    check_model(request.target.model)

    from ..transfer.transfer import run_transfer
    from .progress import CohortProgress
    from .transfer_summary import describe_choice, describe_result

    output = options.output or _default_folder(request)
    record = run_transfer(
        request,
        output,
        options.baseline,
        options.overwrite,
        lambda settings: CohortProgress(settings, options.quiet),
        on_choice=lambda record: (
            None if options.json else print(describe_choice(record), flush=True)
        ),
    )
    print_result(options, record, describe_result(record, output))
    baseline = [record["baseline"]] if record["baseline"] else []
    return int(any(result["failed"] for result in [*record["results"], *baseline]))


def _request(options: argparse.Namespace) -> Request:
    file, settings = options.layers
    if options.to is not None:
        task = settings.setdefault("task", {})
        if task.get("task") not in (None, options.to):
            raise UserError("Both --to and --task name the target; leave one out.")
        task["task"] = options.to
    elif not {"task", "train"} & {**file.get("task", {}), **settings.get("task", {})}.keys():
        raise UserError(
            "No target is given; name a task with --to, or your own data with --train, --text and "
            "--label."
        )
    strategy: Strategy = "all" if options.all else options.strategy
    if options.source is not None:
        strategy = "named"
    return Request(
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


def _default_folder(request: Request) -> Path:
    strategy = f"from-{request.source}" if request.source else request.strategy
    target, task = request.target, request.target.task
    subject = f"{task.generic_folder}{task.title}"
    name = safe_name(f"transfer-{subject}-{strategy}-seed{target.seed}")
    return output_folder(str(Path("runs") / name))
