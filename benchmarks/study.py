r"""What cohorts do for a study: cells per minute of N cells in one cohort, and one by one.

    python benchmarks/study.py recipes/spot-smoke.yaml --cells 6 --output study-cpu.json
    python benchmarks/study.py recipes/spot-small.yaml --cells 32 --steps 200 --stage source \
        --output study-h200.json  # GPU

The cells are the first N of a stage that needs no other (source or baseline), with the study's own
settings except for --steps. Each mode is warmed up by one step, which compiles what it needs, and
whose seconds are recorded separately; sizes that come later are compiled while the clock runs. Both
modes load rows, train, evaluate and write as a study does; the seconds of training and evaluation
alone are shown too. The scores of both modes are the same up to the order of floating-point sums.
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
from softprompts.bench.measure import environment
from softprompts.config import Member, RunConfig
from softprompts.errors import UserError, as_flag
from softprompts.files import write_json
from softprompts.study.config import read_study
from softprompts.study.plan import Cell, plan
from softprompts.tuning import RunFailedError
from softprompts.tuning.tune import tune_cohort

Scores = dict[str, float | None]
"""By cell; None where it failed."""


def choose_cells(cells: Sequence[Cell], stage: str, number: int, steps: int | None) -> list[Member]:
    """The first cells of a stage that can share a cohort, as its members."""
    independent = [
        cell for cell in cells if cell.stage == stage and not cell.needs and not cell.trains_model
    ]
    if not independent:
        raise UserError(
            f"The study has no independent cells of stage {stage!r}; choose source or baseline."
        )
    group = (independent[0].variant, independent[0].backbone)
    sharing = [cell for cell in independent if (cell.variant, cell.backbone) == group]
    if len(sharing) < number:
        raise UserError(
            f"The study has {len(sharing)} such cells, and --cells asks for {number}; lower it."
        )
    return [
        Member(with_steps(cell.config, steps), {"cell": cell.name}, cell.name)
        for cell in sharing[:number]
    ]


def with_steps(config: RunConfig, steps: int | None) -> RunConfig:
    """The config with this many steps, evaluated and saved once, at the end."""
    if steps is None:
        return config
    tuning = dataclasses.replace(
        config.tuning, steps=steps, epochs=None, evaluate_every=steps, checkpoint_every=steps
    )
    return dataclasses.replace(config, tuning=tuning)


def run_cohorts(
    cohorts: Sequence[Sequence[Member]], backbone: Backbone, folder: Path
) -> dict[str, Any]:
    """Run cohorts one after another; seconds in all and of training, and each cell's score."""
    scores: Scores = {}
    training, began = 0.0, time.perf_counter()
    for members in cohorts:
        results = tune_cohort(members, folder, backbone=backbone, curves=False)
        seconds = 0.0
        for member, result in zip(members, results, strict=True):
            failed = isinstance(result, RunFailedError)
            scores[member.name] = None if failed else result.card.score
            if not failed and result.cost is not None:
                seconds = max(seconds, result.cost["seconds"])  # the runs of a cohort share it
        training += seconds
    total = time.perf_counter() - began
    return {
        "seconds": round(total, 3),
        "training_seconds": round(training, 3),
        "cells_per_minute": round(60 * len(scores) / total, 3),
        "scores": scores,
    }


def measure(members: Sequence[Member]) -> dict[str, Any]:
    """Both modes on one loaded model, each after a warm-up step."""
    first = members[0].config
    backbone = load_backbone(first.model, first.dtype, first.device, first.trust_remote_code)
    backbone.accelerate(compile=True)  # as for many steps, or the warm-up would compile nothing
    modes = {"cohort": [list(members)], "one_by_one": [[member] for member in members]}
    results: dict[str, Any] = {}
    folder = Path(tempfile.mkdtemp(prefix="study-"))
    try:
        for mode, cohorts in modes.items():
            short = [
                dataclasses.replace(member, config=with_steps(member.config, 1))
                for member in cohorts[0]
            ]
            warm_up = run_cohorts([short], backbone, folder / "warm" / mode)
            results[mode] = {
                "warm_up_seconds": warm_up["seconds"],
                **run_cohorts(cohorts, backbone, folder / mode),
            }
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    cohort, alone = results["cohort"], results["one_by_one"]
    same = [cohort["scores"][name] == score for name, score in alone["scores"].items()]
    training = max(1e-3, cohort["training_seconds"])
    return {
        "cells": len(members),
        "steps": first.tuning.steps,
        "batch_size": first.tuning.batch_size,
        "model": first.model,
        **environment(backbone.device, backbone.dtype),
        **results,
        "ratio": round(alone["seconds"] / cohort["seconds"], 3),
        "training_ratio": round(alone["training_seconds"] / training, 3),
        "same_scores": sum(same),
        "largest_difference": largest_difference(cohort["scores"], alone["scores"]),
    }


def largest_difference(one: Scores, other: Scores) -> float | None:
    """Between two scores of a cell, in points; None if a cell failed in one mode only."""
    pairs = [(one[name], other[name]) for name in one]
    if any((a is None) != (b is None) for a, b in pairs):
        return None
    return max(abs(a - b) if a is not None and b is not None else 0.0 for a, b in pairs)


def summary(result: dict[str, Any]) -> str:
    rows = [
        f"| {mode.replace('_', ' ')} | {result[mode]['warm_up_seconds']:.1f} "
        f"| {result[mode]['seconds']:.1f} | {result[mode]['training_seconds']:.1f} "
        f"| {result[mode]['cells_per_minute']:.2f} |"
        for mode in ("cohort", "one_by_one")
    ]
    difference = result["largest_difference"]
    differ = (
        "a cell failed in one mode only"
        if difference is None
        else f"they differ by at most {difference:.2f} points"
    )
    return "\n".join(
        [
            f"{result['cells']} cells of {result['steps']} steps of {result['batch_size']} rows "
            f"on {result['model']} ({result['machine']['device']})",
            "",
            "| mode | warm-up, seconds | seconds | of training | cells a minute |",
            "|---|---:|---:|---:|---:|",
            *rows,
            "",
            f"The cohort is {result['ratio']:.2f} times as fast ({result['training_ratio']:.2f} in "
            f"training); {result['same_scores']} of {result['cells']} scores are the same, "
            f"{differ}.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    try:
        if options.cells < 1 or (options.steps is not None and options.steps < 1):
            raise UserError("--cells and --steps must be at least 1.")
        cells = plan(read_study(options.study), options.device, options.data_dir)
        result = {"benchmark": "study", "study": options.study.stem, "stage": options.stage}
        result |= measure(choose_cells(cells, options.stage, options.cells, options.steps))
        if options.output is not None:
            write_json(options.output, result)
    except UserError as error:
        print(f"study: {error.spelled(as_flag)}", file=sys.stderr)
        return 2
    print(json.dumps(result) if options.json else summary(result))
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("study", type=Path, metavar="STUDY.yaml")
    add("--cells", type=int, default=8, help="number of cells (default 8)")
    add("--stage", default="source", help="source or baseline (default source)")
    add("--steps", type=int, help="steps of each cell, evaluated at the end (default: the study's)")
    add("--data-dir", help="folder with the tasks' rows (default: the study's)")
    add("--device")
    add("--output", type=Path, help="JSON file for the result")
    add("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
