"""The command `softprompts study`: run a study, see where it stands, write its report."""

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifacts.file_names import STUDY_FILE
from ..errors import UserError
from ..study.config import (
    check_named_rows,
    check_study,
    default_folder,
    read_study,
    study_errors,
    study_folder,
)
from .command import (
    action,
    argument,
    check_model,
    output_folder,
    run_action,
    whole_number,
)
from .output import duration, joined, print_result

if TYPE_CHECKING:
    from ..study.state import StudyStatus
    from ..study.study import Study

CELL = "t5-tiny/transfer/helpdesk-intent--helpdesk-urgency/seed0"

STUDY = argument("study", metavar="STUDY", type=Path, help="the folder of a study")
DATA_DIR = argument(
    "--data-dir", metavar="DIR", help="a folder with named tasks' rows (default: as the file says)"
)
MODEL = argument(
    "--model",
    metavar="NAME=FOLDER",
    action="append",
    default=[],
    help="load a backbone that the file names from this folder; may be repeated",
)


@action(
    "study run",
    """softprompts study run recipes/spot-smoke.yaml --output runs/spot
  softprompts study run recipes/spot-figure3-small.yaml --data-dir DATA \\
      --model google/flan-t5-small=models/flan-t5-small
  softprompts study run runs/spot      # resumes a study that was interrupted
  softprompts study run recipes/lester-figure3b-small.yaml --data-dir DATA \\
      --reuse runs/lester-section7-small      # which has two of its three arms
  softprompts study run recipes/spot-paper.yaml --ray      # on this machine's Ray cluster""",
    argument("study", metavar="STUDY", type=Path, help="a study file, or the folder of a study"),
    argument(
        "--output",
        metavar="FOLDER",
        type=output_folder,
        help="the study's folder (default runs/NAME); resumes an unfinished study found there",
    ),
    argument(
        "--cohort",
        metavar="N",
        type=whole_number("cohort"),
        help="maximum number of runs in one forward pass (default: as the file says)",
    ),
    argument(
        "--workers",
        metavar="N",
        type=whole_number("workers"),
        default=1,
        help="worker processes on this machine (default 1); three or four make better use of a GPU",
    ),
    argument(
        "--only",
        metavar="STAGES",
        type=lambda text: [stage.strip() for stage in text.split(",")],
        help="stages to run now, such as source,baseline",
    ),
    argument("--device", help="cpu, cuda or auto"),
    DATA_DIR,
    MODEL,
    argument(
        "--ray",
        metavar="ADDRESS",
        nargs="?",
        const="auto",
        help="run on the Ray cluster at ADDRESS (auto: the one on this machine), "
        "whose machines share the folder",
    ),
    argument(
        "--reuse",
        metavar="STUDY",
        action="append",
        default=[],
        type=Path,
        help="the folder of another study; its finished runs with the same settings are copied, "
        "not repeated; may be repeated",
    ),
)
def run(options: argparse.Namespace) -> int:
    """Run the missing cells of a study; several processes may share a folder."""
    models = _models(options.model)
    with study_errors():
        for other in options.reuse:
            study_folder(other)  # refused before torch is imported
    if not options.study.is_dir():
        with study_errors():
            config = read_study(options.study)
            check_study(config)  # refuses a wrong file before torch is imported
            for name in {name: None for _, grid in config.grids() for name in grid.backbones}:
                if name not in models:
                    check_model(name)
            folder = options.output or default_folder(config)
            if not (folder / STUDY_FILE).exists():  # or its cells may need no rows any more
                check_named_rows(config, options.data_dir)
        if config.skips_own_settings and not options.quiet:
            print(
                f"softprompts: only the variants in {options.study} are run; to run the settings "
                "that they change as well, add a variant without changes (base: {})",
                file=sys.stderr,
            )

    from ..study.study import Study
    from .study_progress import StudyBars

    study, started_at = Study.load(options.study), time.monotonic()
    result = study.run(
        output=options.output,
        cohort=options.cohort,
        workers=options.workers,
        only=options.only,
        device=options.device,
        data_dir=options.data_dir,
        models=models,
        ray=options.ray,
        reuse=options.reuse,
        watch=lambda cells: StudyBars(cells, options.quiet),
    )
    folder = study.folder.path
    text = (
        f"{describe(result)}\nthe cells are in {folder}; "
        f"`softprompts study report {folder}` writes their tables and figures"
    )
    print_result(options, {**result, "seconds": round(time.monotonic() - started_at, 1)}, text)
    return 1 if result["failed"] or result["blocked"] else 0


def _open(options: argparse.Namespace) -> "Study":
    study_folder(options.study)  # refused before torch is imported

    from ..study.study import Study

    return Study.open(options.study)


def _models(pairs: Sequence[str]) -> dict[str, str]:
    models = {}
    for pair in pairs:
        name, _, folder = pair.partition("=")
        if not name or not Path(folder).is_dir():
            raise UserError(
                f"--model is {pair!r}; give the name of a backbone and its folder, such as "
                "google/flan-t5-small=models/flan-t5-small."
            )
        models[name] = folder
    return models


@action(
    "study plan",
    """softprompts study plan recipes/residual-table1-small.yaml
  softprompts study plan recipes/residual-table1-small.yaml --rows-per-second 6900""",
    argument("study", metavar="STUDY", type=Path, help="a study file, or the folder of a study"),
    argument(
        "--rows-per-second",
        metavar="N",
        type=whole_number("rows-per-second"),
        help="training rows processed per second, to estimate the time",
    ),
)
def plan(options: argparse.Namespace) -> int:
    """Show what a study would run, and the rules of its claims, without running it."""
    if not options.study.is_dir():
        with study_errors():
            check_study(read_study(options.study))

    from ..study.claims import read_claims
    from ..study.plan import outline
    from ..study.study import Study

    study = Study.load(options.study)
    found = outline(study.cells(), read_claims(study.config.claims))
    rate, rows = options.rows_per_second, found["rows"]
    found["seconds"] = None if rate is None or rows is None else round(rows / rate)
    return print_result(options, found, describe_plan(found))


def describe_plan(plan: Mapping[str, Any]) -> str:
    return joined(
        *(
            f"{name:<15} {counts['cells']:>6,} cells {_steps(counts)}"
            for name, counts in {**plan["stages"], "all": plan}.items()
        ),
        None if plan["seconds"] is None else f"about {duration(plan['seconds'])} of training",
        *(
            "\n    ".join([f"claim {claim['claim']}: {claim['text']}", *claim["rules"]])
            for claim in plan["claims"]
        ),
    )


def _steps(counts: Mapping[str, int | None]) -> str:
    if counts["steps"] is None:
        return "  (steps depend on the data)"
    models = f", {counts['whole_models']:,} whole models" if counts["whole_models"] else ""
    return f"{counts['steps']:>11,} steps {counts['rows']:>13,} rows{models}"


@action(
    "study status",
    "softprompts study status runs/spot\n  softprompts study status runs/spot --json",
    STUDY,
)
def status(options: argparse.Namespace) -> int:
    """Show what is done, running and missing."""
    result = _open(options).status()
    return print_result(options, result, describe(result))


@action(
    "study report",
    "softprompts study report runs/spot --output results/spot",
    STUDY,
    argument(
        "--output",
        metavar="FOLDER",
        type=output_folder,
        help="the folder for the report (default: report in the study's folder)",
    ),
)
def report(options: argparse.Namespace) -> int:
    """Write records, tables and figures of all finished cells."""
    study = _open(options)

    from ..analysis.study_report import write_study_report
    from ..analysis.tables import markdown
    from ..analysis.variants import differences_markdown

    result = write_study_report(study, options.output or options.study / "report")
    missing = result["total"] - result["done"]
    note = f"{missing} of {result['total']} cells are missing; " if missing else ""
    variants = differences_markdown(result["variants"]) if result["variants"] else None
    text = f"{note}records, tables and figures are in {result['output']}"
    return print_result(options, result, markdown(result["scores"]), variants, text)


@action(
    "study explain",
    "softprompts study explain runs/words --data-dir DATA",
    STUDY,
    argument("--device", default="auto", help="cpu, cuda or auto"),
    DATA_DIR,
    MODEL,
)
def explain(options: argparse.Namespace) -> int:
    """Explain the prompts of all finished cells: nearest words, routing. Resumable."""
    study = _open(options)

    from ..analysis.study_explain import explain_study, unexplained
    from .row_progress import RowProgress

    cells = unexplained(study)
    with RowProgress("explaining", len(cells), options.quiet) as progress:
        explain_study(
            study,
            cells,
            options.device,
            options.data_dir,
            _models(options.model),
            lambda: progress.advance_rows(1),
        )
    text = f"{len(cells)} prompts are explained; `softprompts report {options.study}` uses them"
    return print_result(options, {"explained": [cell.name for cell in cells]}, text)


@action(
    "study rerun",
    f"softprompts study rerun runs/spot {CELL} \\\n      --output runs/again",
    STUDY,
    argument(
        "cell", metavar="CELL", help="the name of a finished cell, as status --json prints it"
    ),
    argument(
        "--output",
        metavar="FOLDER",
        type=output_folder,
        required=True,
        help="the folder for the new runs",
    ),
    argument(
        "--data-dir",
        metavar="DIR",
        help="a folder with named tasks' rows (default: where they were)",
    ),
)
def rerun(options: argparse.Namespace) -> int:
    """Run a cell's cohort again, and compare the scores with the recorded ones."""
    cells = _open(options).rerun(options.cell, options.output, options.data_dir)
    text = "\n".join(
        f"{cell['cell']}: recorded {cell['recorded']}, now {cell['again']}"
        + (" (was resumed)" if cell["resumed"] else "")
        for cell in cells
    )
    print_result(options, {"cells": cells}, text)
    return 0 if all(cell["same"] for cell in cells if cell["cell"] == options.cell) else 1


def describe(status: "StudyStatus") -> str:
    workers, running, blocked = status["workers"], status["running"], status["blocked"]
    unfinished = bool(set(status["missing"]) - set(blocked))
    rate = status["cells_per_minute"]
    left = f", about {duration(status['eta_seconds'])} left" if workers and unfinished else ""
    fewer = "there are fewer source prompts than they need"
    reason = "a cell they start from failed" if status["failed"] else fewer
    return joined(
        *(
            f"{name:<15} {stage['done']} of {stage['total']}"
            for name, stage in status["stages"].items()
        ),
        f"{'all cells':<15} {status['done']} of {status['total']}",
        f"{status['reused']} cells were copied from other studies" if status["reused"] else None,
        f"{rate:.1f} cells per minute{left}" if rate else None,
        f"no workers are running; `softprompts study run {status['folder']}` resumes the study"
        if unfinished and not workers
        else None,
        f"{len(running)} cells are running, on {len(workers)} workers" if running else None,
        *(f"{name} failed: {error}" for name, error in status["failed"].items()),
        f"{len(blocked)} cells cannot run, because {reason}; the first is {blocked[0]}"
        if blocked
        else None,
    )


ACTIONS = {
    "run": run,
    "plan": plan,
    "status": status,
    "report": report,
    "explain": explain,
    "rerun": rerun,
}
main = partial(run_action, "study", ACTIONS)
