"""The command `softprompts study`: run a study, see where it stands, write its report."""

import argparse
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..files import make_folder
from ..study import STUDY
from .command import act, make_parser, output_folder, tell

if TYPE_CHECKING:
    from ..study.plan import Cell, Study

"""The study file, as it was last run, in the study's folder."""
EXAMPLES = {
    "run": "softprompts study run recipes/spot-smoke.yaml --output runs/spot\n"
    "  softprompts study run recipes/spot-small.yaml --data-dir DATA --workers 4      # again after a kill: goes on\n"
    "  softprompts study run recipes/spot-paper.yaml --ray      # on the Ray cluster of this machine",
    "status": "softprompts study status runs/spot\n  softprompts study status runs/spot --json",
    "report": "softprompts study report runs/spot --output results/spot",
    "rerun": "softprompts study rerun runs/spot t5-tiny/transfer/helpdesk-intent--helpdesk-urgency/seed0 --output runs/again",
}


def main(argv: Sequence[str]) -> int:
    """Sources x targets x seeds from one file: run them, see where they stand, write the report."""
    return act("study", {"run": run, "status": status, "report": report, "rerun": rerun}, argv)


def run(argv: Sequence[str]) -> int:
    """Run what is left of a study; several may at once, on one folder."""
    parser = _parser("run", run.__doc__)
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=output_folder,
        help="where the cells go (default runs/NAME); an unfinished study goes on",
    )
    parser.add_argument(
        "--cohort",
        metavar="N",
        type=_number,
        help="runs that share one forward pass, at most (default: as the file says)",
    )
    several = "processes of this machine that share the work (default 1); on one GPU, three or four keep it busier than one"
    parser.add_argument("--workers", metavar="N", type=_number, default=1, help=several)
    parser.add_argument(
        "--only",
        metavar="STAGES",
        help="stages to run now, such as source,baseline; the others stay for later",
    )
    parser.add_argument("--device", help="cpu, cuda or auto")
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="a folder with named tasks' rows (default: as the file says)",
    )
    address = "spread cohorts over the Ray cluster at ADDRESS (auto: the one of this machine), which shares the folder"
    parser.add_argument("--ray", metavar="ADDRESS", nargs="?", const="auto", help=address)
    options = parser.parse_args(argv)
    if any(os.environ.get(name, "1") != "1" for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
        raise UserError(
            "A study is not launched as several processes; give it --workers N, or --ray."
        )
    if options.ray and options.workers > 1:
        raise UserError("A Ray cluster has workers of its own; give either --ray or --workers.")

    from ..study.checks import (
        check_data,
        check_models,
        check_runs,
        check_unchanged,
        words_of_a_study,
    )
    from ..study.processes import BESIDE, company
    from ..study.records import status as where
    from ..study.workers import cluster, work, work_on_ray
    from .study_progress import StudyBars

    with words_of_a_study():
        study, folder, cells = _planned(options, options.output)
    check_unchanged(cells, folder)
    stages = _stages(cells, folder, options.only)
    wanted = [cell for cell in cells if cell.stage in stages]
    _check_output(folder)
    beside = bool(os.environ.get(BESIDE))
    if not beside:  # who started this process has looked
        check_models(wanted, folder, here=not options.ray)
        check_runs(wanted, folder, check_data(wanted, folder))
    begun = time.monotonic()
    with cluster(options.ray or None) as ray:
        make_folder(folder)
        _keep(study, folder)
        with (
            company(argv, 1 if beside else options.workers),
            StudyBars(cells, options.quiet) as bars,
            words_of_a_study(),
        ):
            asked = (cells, folder, options.cohort or study.cohort, bars, stages)
            state = work_on_ray(ray, *asked) if ray is not None else work(*asked)
    told = {**where(cells, folder, state), "seconds": round(time.monotonic() - begun, 1)}
    tell(
        options,
        told,
        f"{_where(told)}\nthe cells are in {folder}; softprompts study report {folder} writes their tables and figures",
    )
    return 1 if told["failed"] or told["blocked"] else 0


def status(argv: Sequence[str]) -> int:
    """What is done, what runs, what is missing."""
    options, _, folder, cells = _looked_at("status", status.__doc__, argv)

    from ..study.records import status as where

    told = where(cells, folder)
    tell(options, told, _where(told))
    return 0


def report(argv: Sequence[str]) -> int:
    """Write records, tables and figures of what is done."""
    options, study, folder, cells = _looked_at("report", report.__doc__, argv)

    from ..analysis.study_report import write_study_report
    from ..study.records import markdown

    told = write_study_report(study, cells, folder, options.output or folder / "report")
    missing = told["total"] - told["done"]
    ended = f"{missing} of {told['total']} cells are missing; " if missing else ""
    tell(
        options,
        told,
        f"{markdown(told['scores'])}\n{ended}records, tables and figures are in {told['output']}",
    )
    return 0


def rerun(argv: Sequence[str]) -> int:
    """Run a cell's cohort once more, and compare the scores with the recorded ones."""
    parser = _parser("rerun", rerun.__doc__)
    parser.add_argument(
        "cell", metavar="CELL", help="a finished cell's name, as status --json tells it"
    )
    parser.add_argument(
        "--output", metavar="FOLDER", type=output_folder, required=True, help="where the runs go"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="a folder with named tasks' rows (default: where they were)",
    )
    options = parser.parse_args(argv)
    _check_study(options.study)

    from ..study.workers import rerun as again

    found = again(options.study, options.cell, options.output, options.data_dir)
    rows = [
        f"{told['cell']}: recorded {told['recorded']}, now {told['again']}"
        + (" (was resumed)" if told["resumed"] else "")
        for told in found
    ]
    tell(options, {"cells": found}, "\n".join(rows))
    return 0 if all(told["same"] for told in found if told["cell"] == options.cell) else 1


# -- which study, and where --------------------------------------------------------------------------------------------------


def _planned(
    options: argparse.Namespace, output: Path | None = None
) -> "tuple[Study, Path, list[Cell]]":
    """The study of a file, or of another study's folder; its cells go to `output`, or to where it is."""
    from ..files.names import safe_name
    from ..study.plan import plan, read_study

    path: Path = options.study
    study = read_study(path / STUDY if path.is_dir() else path)
    folder = output or (path if path.is_dir() else Path("runs") / safe_name(study.name))
    return (
        study,
        folder,
        plan(study, getattr(options, "device", None), getattr(options, "data_dir", None)),
    )


def _looked_at(
    action: str, about: str | None, argv: Sequence[str]
) -> "tuple[argparse.Namespace, Study, Path, list[Cell]]":
    parser = _parser(action, about)
    where = (
        "where the report goes (default FOLDER/report)" if action == "report" else argparse.SUPPRESS
    )
    parser.add_argument("--output", metavar="FOLDER", type=output_folder, help=where)
    options = parser.parse_args(argv)
    _check_study(options.study)
    return options, *_planned(options)


def _check_study(folder: Path) -> None:
    if not (folder / STUDY).exists():
        raise UserError(
            f"{folder} is no folder of a study; name the one that softprompts study run wrote."
        )


def _check_output(folder: Path) -> None:
    # What begins with a dot is on its way: another worker's study file, or a killed one's.
    there = (
        [path for path in folder.iterdir() if not path.name.startswith(".")]
        if folder.is_dir()
        else []
    )
    if there and not ((folder / STUDY).exists() and _is_study(folder / STUDY)):
        raise UserError(
            f"{folder} holds other things than a study; name another folder with --output."
        )


def _is_study(path: Path) -> bool:
    from ..study.plan import read_study

    try:
        read_study(path)
    except UserError:
        return False
    return True


def _keep(study: "Study", folder: Path) -> None:
    import dataclasses

    import yaml

    from ..files import write_text

    write_text(
        folder / STUDY,
        yaml.safe_dump(dataclasses.asdict(study), sort_keys=False, allow_unicode=True),
    )


def _stages(cells: "Sequence[Cell]", folder: Path, asked: str | None) -> list[str]:
    """The stages to run now; all that they start from must be done, or run too."""
    from ..study.cells import is_done

    there = list(dict.fromkeys(cell.stage for cell in cells))
    if asked is None:
        return there
    stages = [stage.strip() for stage in asked.split(",")]
    unknown = [stage for stage in stages if stage not in there]
    if unknown:
        raise UserError(f"The study has no stage {unknown[0]!r}; choose of {', '.join(there)}.")
    stage_of = {cell.name: cell.stage for cell in cells}
    for name in dict.fromkeys(
        name for cell in cells if cell.stage in stages for name in cell.needs
    ):
        if stage_of[name] not in stages and not is_done(folder, name):
            raise UserError(
                f"{name} is not done, and other cells start from it; add {stage_of[name]} to --only."
            )
    return stages


# -- words -------------------------------------------------------------------------------------------------------------------


def _where(told: dict[str, Any]) -> str:
    rows = [
        f"{name:<15} {stage['done']} of {stage['total']}" for name, stage in told["stages"].items()
    ]
    rows.append(f"{'all cells':<15} {told['done']} of {told['total']}")
    unfinished = bool(set(told["missing"]) - set(told["blocked"]))
    if told["cells_per_minute"]:
        left = (
            f", about {duration(told['eta_seconds'])} left"
            if told["workers"] and unfinished
            else ""
        )
        rows.append(f"{told['cells_per_minute']:.1f} cells a minute{left}")
    if unfinished and not told["workers"]:
        rows.append(f"nobody is at work on it; softprompts study run {told['folder']} goes on")
    if told["running"]:
        rows.append(
            f"{len(told['running'])} cells are running, {len(told['workers'])} workers are at work"
        )
    rows += [f"{name} failed: {why}" for name, why in told["failed"].items()]
    if told["blocked"]:
        why = (
            "a cell they start from failed"
            if told["failed"]
            else "there are fewer source prompts than they choose"
        )
        rows.append(
            f"{len(told['blocked'])} cells cannot run, because {why}; the first is {told['blocked'][0]}"
        )
    return "\n".join(rows)


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )


def _number(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"--cohort and --workers take a whole number of at least 1, not {text}.")
    return int(text)


def _parser(action: str, about: str | None) -> argparse.ArgumentParser:
    parser = make_parser(f"study {action}", EXAMPLES[action], about)
    what = "a study file, or the folder of a study" if action == "run" else "the folder of a study"
    parser.add_argument("study", metavar="STUDY", type=Path, help=what)
    return parser
