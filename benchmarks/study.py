"""What cohorts give a study: cells per minute of N cells run as one cohort, against the same N run one by one.

    python benchmarks/study.py recipes/spot-smoke.yaml --cells 6 --output study-cpu.json
    python benchmarks/study.py recipes/spot-small.yaml --cells 32 --steps 200 --stage source --output study-h200.json      # on a GPU

The cells are the first N of a stage that needs no other (source or baseline), with the study's own settings but `--steps`. Each way is
warmed up by a step of its own, which compiles what it needs, and the seconds of that are told apart; sizes that come later are compiled and
recorded while the clock runs. Both ways read their rows, train, judge and write as a study does, and the seconds of training and judging
alone stand beside. Scores of the two ways are compared: they are the same up to the order in which floats are added.
"""

import argparse
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from softprompts.backbone import Backbone, load_backbone
from softprompts.bench.measure import surroundings
from softprompts.config.products import Member
from softprompts.errors import UserError
from softprompts.files import write_json
from softprompts.study.config import read_study
from softprompts.study.plan import Cell, plan
from softprompts.tuning import RunFailedError
from softprompts.config.run import RunConfig
from softprompts.tuning.tune import tune_cohort


def chosen(cells: Sequence[Cell], stage: str, number: int, steps: int | None) -> list[Member]:
    """The first cells of a stage that may share one forward pass, as the runs they are."""
    found = [
        cell for cell in cells if cell.stage == stage and not cell.needs and not cell.trains_model
    ]
    if not found:
        raise UserError(
            f"The study has no cells of stage {stage!r} that start by themselves; choose source or baseline."
        )
    alike = [
        cell
        for cell in found
        if (cell.variant, cell.backbone) == (found[0].variant, found[0].backbone)
    ]
    if len(alike) < number:
        raise UserError(
            f"The study has {len(alike)} such cells, and --cells asks for {number}; lower it."
        )
    return [
        Member(_shortened(cell.config, steps), {"cell": cell.name}, cell.name)
        for cell in alike[:number]
    ]


def _shortened(config: RunConfig, steps: int | None) -> RunConfig:
    """With so many steps, judged and saved once, at the end."""
    if steps is None:
        return config
    tuning = dataclasses.replace(
        config.tuning, steps=steps, epochs=None, evaluate_every=steps, checkpoint_every=steps
    )
    return dataclasses.replace(config, tuning=tuning)


def timed(cohorts: Sequence[Sequence[Member]], backbone: Backbone, home: Path) -> dict[str, Any]:
    """Seconds for these cohorts one after another, of all and of training, and each cell's score (None: it failed)."""
    scores: dict[str, float | None] = {}
    training, begun = 0.0, time.perf_counter()
    for members in cohorts:
        outcomes = tune_cohort(members, home, backbone=backbone, curves=False)
        for member, outcome in zip(members, outcomes, strict=True):
            scores[member.name] = (
                None
                if isinstance(outcome, RunFailedError)
                else outcome.card.score
            )
        costs = [
            outcome.cost
            for outcome in outcomes
            if not isinstance(outcome, RunFailedError) and outcome.cost is not None
        ]
        training += max(
            (cost["seconds"] for cost in costs), default=0.0
        )  # all runs of a cohort share one
    seconds = time.perf_counter() - begun
    pace = round(60 * len(scores) / seconds, 3)
    return {
        "seconds": round(seconds, 3),
        "training_seconds": round(training, 3),
        "cells_per_minute": pace,
        "scores": scores,
    }


def measure(members: Sequence[Member]) -> dict[str, Any]:
    """Both ways on one loaded model, each after a step that warms it up; the way that comes second finds some of it done."""
    first = members[0].config
    backbone = load_backbone(first.model, first.dtype, first.device, first.trust_remote_code)
    backbone.compile()  # as for many steps, or the warm-up would compile nothing
    ways = {"cohort": [list(members)], "one_by_one": [[member] for member in members]}
    found: dict[str, Any] = {}
    home = Path(tempfile.mkdtemp(prefix="study-"))
    try:
        for way, cohorts in ways.items():
            warm = [
                dataclasses.replace(member, config=_shortened(member.config, 1))
                for member in cohorts[0]
            ]
            before = timed([warm], backbone, home / "warm" / way)
            found[way] = {
                "warm_up_seconds": before["seconds"],
                **timed(cohorts, backbone, home / way),
            }
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return {
        "cells": len(members),
        "steps": first.tuning.steps,
        "batch_size": first.tuning.batch_size,
        "model": first.model,
        **surroundings(backbone.device, backbone.dtype),
        **found,
        "ratio": round(found["one_by_one"]["seconds"] / found["cohort"]["seconds"], 3),
        "training_ratio": round(
            found["one_by_one"]["training_seconds"]
            / max(1e-3, found["cohort"]["training_seconds"]),
            3,
        ),
        "same_scores": sum(
            found["cohort"]["scores"][name] == score
            for name, score in found["one_by_one"]["scores"].items()
        ),
        "largest_difference": _apart(found["cohort"]["scores"], found["one_by_one"]["scores"]),
    }


def _apart(one: dict[str, float | None], other: dict[str, float | None]) -> float | None:
    """The largest difference of two scores of a cell, in points; None where a cell failed one way only."""
    pairs = [(one[name], other[name]) for name in one]
    if any((a is None) != (b is None) for a, b in pairs):
        return None
    return max(abs(a - b) if a is not None and b is not None else 0.0 for a, b in pairs)


def told(result: dict[str, Any]) -> str:
    rows = [
        f"| {way.replace('_', ' ')} | {found['warm_up_seconds']:.1f} | {found['seconds']:.1f} | {found['training_seconds']:.1f} "
        f"| {found['cells_per_minute']:.2f} |"
        for way, found in ((way, result[way]) for way in ("cohort", "one_by_one"))
    ]
    machine, apart = result["machine"]["device"], result["largest_difference"]
    about = f"{result['cells']} cells of {result['steps']} steps of {result['batch_size']} rows on {result['model']} ({machine})"
    scores = f"{result['same_scores']} of {result['cells']} scores are the same, "
    scores += "a cell failed one way only" if apart is None else f"{apart:.2f} points apart at most"
    ended = f"The cohort is {result['ratio']:.2f} times as fast ({result['training_ratio']:.2f} in training); {scores}."
    return "\n".join(
        [
            about,
            "",
            "| way | warm-up, seconds | seconds | of training | cells a minute |",
            "|---|---:|---:|---:|---:|",
            *rows,
            "",
            ended,
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    options = parsed(argv)
    try:
        if options.cells < 1 or (options.steps is not None and options.steps < 1):
            raise UserError("--cells and --steps must be at least 1.")
        cells = plan(read_study(options.study), options.device, options.data_dir)
        result = {"benchmark": "study", "study": options.study.stem, "stage": options.stage}
        result |= measure(chosen(cells, options.stage, options.cells, options.steps))
        if options.output is not None:
            write_json(options.output, result)
    except UserError as error:
        print(f"study: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result) if options.json else told(result))
    return 0


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, metavar="STUDY.yaml")
    parser.add_argument("--cells", type=int, default=8, help="how many cells (default 8)")
    parser.add_argument("--stage", default="source", help="source or baseline (default source)")
    parser.add_argument(
        "--steps",
        type=int,
        help="steps of each cell, judged at the end (default: as the study says)",
    )
    parser.add_argument(
        "--data-dir", help="a folder with the tasks' rows (default: as the study says)"
    )
    parser.add_argument("--device")
    parser.add_argument("--output", type=Path, help="where the result goes as JSON")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
