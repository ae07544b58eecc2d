"""What a study has come to: where it stands, plain records of its cells, tables, and the analysis of its transfers."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from ..artifacts.prompt_file import safe_name
from ..cli.study import STUDY
from ..files import write_json, write_text
from ..tasks.registry import BENCHMARKS
from . import cells as on_disk
from .leases import WORKERS, claimed, clock, is_alive
from .plan import Cell, Study
from .workers import State

RECENT = 100
"""Results that tell the pace."""
METHODS = ("average", "mixture")
"""Stages that are ways to use what was retrieved."""
Record = dict[str, Any]


# -- where it stands ---------------------------------------------------------------------------------------------------------


def status(cells: Sequence[Cell], folder: Path, state: State | None = None) -> Record:
    """Cells done, failed, running and missing, by stage; how fast it goes, and how long it will take."""
    state = state or State().look(cells, folder)
    stages: dict[str, dict[str, int]] = {}
    for cell in cells:
        stage = stages.setdefault(cell.stage, {"done": 0, "total": 0})
        stage["done"] += cell.name in state.done
        stage["total"] += 1
    left = [cell for cell in cells if cell.name not in state.done]
    now, signs = clock(folder), [path.stem for path in (folder / WORKERS).glob("[!.]*.json")]
    return {
        "folder": str(folder),
        "total": len(cells),
        "done": len(cells) - len(left),
        "failed": {name: state.results[name]["failed"] for name in sorted(state.failed)},
        "blocked": sorted(state.blocked),
        "running": [cell.name for cell in left if claimed(folder, cell.name, now)],
        "finished": [cell.name for cell in cells if cell.name in state.done],
        "missing": [cell.name for cell in left],
        "stages": stages,
        "workers": [worker for worker in signs if is_alive(folder, worker, now)],
        **pace(left, state),
    }


def pace(left: Sequence[Cell], state: State) -> dict[str, float | None]:
    """Cells per minute by the latest results, and the seconds that the cells left will take: by their steps, or where a cell's epochs do
    not tell how many these are, by their number."""
    recent = sorted(state.results.values(), key=lambda told: told["finished"])[-RECENT:]
    steps = sum(told.get("steps", 0) for told in recent)
    if not recent or not steps:
        return {"cells_per_minute": None, "eta_seconds": None}
    seconds = max(1e-3, _at_work([(told["begun"], told["finished"]) for told in recent]))
    waiting = [cell for cell in left if cell.name not in state.blocked]
    return {
        "cells_per_minute": round(60 * len(recent) / seconds, 2),
        "eta_seconds": round(seconds * to_go(waiting, steps, len(recent))),
    }


def to_go(waiting: Sequence[Cell], steps: int, cells: int) -> float:
    """How many times the work of so many steps in so many cells is still to do."""
    tuning = [cell.config.tuning for cell in waiting]
    counted = all(one.epochs is None for one in tuning)
    return sum(one.steps for one in tuning) / steps if counted else len(tuning) / cells


def _at_work(spans: Sequence[tuple[float, float]]) -> float:
    """The seconds in which somebody was at work, of spans from begin to end that may overlap, or have days between."""
    total, until = 0.0, float("-inf")
    for begun, ended in sorted(spans):
        total += max(0.0, ended - max(begun, until))
        until = max(until, ended)
    return total


# -- records -----------------------------------------------------------------------------------------------------------------


def records(cells: Sequence[Cell], state: State) -> list[Record]:
    """One for each planned cell, its score None where there is none yet."""
    names = ("stage", "backbone", "variant", "source", "target", "seed", "k", "similarity")
    scored = ("score", "metric", "metrics", "majority", "rows", "best_step", "steps")
    ran = ("seconds", "cohort", "fingerprint", "parameters", "failed")
    found = []
    for cell in cells:
        told = state.results.get(cell.name, {})
        own = {name: getattr(cell, name) for name in names}
        found.append(
            {
                "cell": cell.name,
                **own,
                **{name: told.get(name) for name in (*scored, *ran)},
                "chosen": told.get("chosen", []),
            }
        )
    return found


def _flat(told: Record) -> Record:
    """A record for a table: its metrics in one column."""
    return {
        **told,
        "metrics": ";".join(f"{name}={value}" for name, value in (told["metrics"] or {}).items()),
    }


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def lines(
    found: Sequence[Record], benchmarks: Mapping[str, Sequence[str]] | None = None
) -> list[Record]:
    """The study as a table: a line for each backbone, variant and source (none: no transfer), with mean and spread over seeds.

    A mean over all targets, or over a benchmark's, is there where none of them is missing, so that lines can be compared; its spread is
    that of the seeds' own means over targets.
    """
    groups: dict[tuple[Any, ...], dict[str, dict[int, float | None]]] = {}
    for told in found:
        if told["stage"] in ("baseline", "transfer"):
            key = (told["backbone"], told["variant"], told["source"])
            groups.setdefault(key, {}).setdefault(told["target"], {})[told["seed"]] = told["score"]
    table = []
    for (backbone, variant, source), targets in groups.items():
        line: Record = {"backbone": backbone, "variant": variant, "source": source}
        line["targets"] = {
            target: _spread(list(scores.values())) for target, scores in targets.items()
        }
        line["mean"] = _over(targets, list(groups.get((backbone, variant, None), targets)))
        line["benchmarks"] = {
            name: _over(targets, tasks) for name, tasks in (benchmarks or {}).items()
        }
        table.append(line)
    return table


def _over(targets: Mapping[str, Mapping[int, float | None]], names: Sequence[str]) -> Record | None:
    """The mean over these targets and its spread over seeds; None where a target or a cell is missing."""
    if any(name not in targets for name in names):
        return None
    seeds = sorted({seed for name in names for seed in targets[name]})
    return _spread([_mean([targets[name].get(seed) for name in names]) for seed in seeds])


def _mean(scores: Sequence[float | None]) -> float | None:
    there = [score for score in scores if score is not None]
    return fmean(there) if there and len(there) == len(scores) else None


def _spread(scores: Sequence[float | None]) -> Record | None:
    there = [score for score in scores if score is not None]
    if len(there) < len(scores) or not there:
        return None
    return {
        "mean": round(fmean(there), 2),
        "std": round(stdev(there), 2) if len(there) > 1 else None,
    }


def markdown(table: Sequence[Record]) -> str:
    """The lines as one Markdown table, all targets beside each other."""
    targets = list(dict.fromkeys(target for line in table for target in line["targets"]))
    names = [name for name in ("backbone", "variant") if len({line[name] for line in table}) > 1]
    benchmarks = list(dict.fromkeys(name for line in table for name in line["benchmarks"]))
    rows = [[*names, "source", "mean", *(f"mean of {name}" for name in benchmarks), *targets]]
    rows.append(["---"] * len(rows[0]))
    for line in table:
        means = [line["mean"], *(line["benchmarks"].get(name) for name in benchmarks)]
        cells = [
            _said(spread)
            for spread in (*means, *(line["targets"].get(target) for target in targets))
        ]
        rows.append(
            [*(str(line[name]) for name in names), line["source"] or "(no transfer)", *cells]
        )
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _said(spread: Record | None) -> str:
    if spread is None:
        return ""
    return f"{spread['mean']:.1f}" + (
        f" ± {spread['std']:.1f}" if spread["std"] is not None else ""
    )


# -- the report --------------------------------------------------------------------------------------------------------------


def write_study_report(study: Study, cells: Sequence[Cell], folder: Path, output: Path) -> Record:
    """The study's file, all records, the table of scores, the picture of model sizes, and for each backbone and variant its analysis."""
    from ..analysis.heatmaps import check
    from ..analysis.report import write_report
    from ..analysis.retrieval import KS

    check()
    for model in dict.fromkeys(cell.config.model for cell in cells):
        on_disk.check_model(cells, folder, model)
    state = State().look(cells, folder)
    found = records(cells, state)
    table = lines(found, _benchmarks(study))
    write_json(output / "records.json", found)
    write_text(
        output / "records.csv",
        as_csv([_flat(told) for told in found], [name for name in found[0] if name != "chosen"]),
    )
    write_text(output / "plan.yaml", (folder / STUDY).read_text())
    write_json(output / "scores.json", table)
    pictures = (
        _write_sizes(found, table, output) if len({line["backbone"] for line in table}) > 1 else ""
    )
    write_text(output / "scores.md", markdown(table) + pictures)
    ks = {variant: grid.retrieval.best for variant, grid in study.grids()}
    groups = list(dict.fromkeys((cell.variant, cell.backbone) for cell in cells))
    parts: Record = {}
    for variant, backbone in groups:
        own = [cell for cell in cells if (cell.variant, cell.backbone) == (variant, backbone)]
        name = "/".join(safe_name(part) for part in (variant, backbone) if part is not None)
        place = output / name if len(groups) > 1 else output
        if any(cell.stage == "transfer" and not cell.whole_model for cell in own):
            told = [
                record
                for record in found
                if (record["variant"], record["backbone"]) == (variant, backbone)
            ]
            parts[name] = write_report(
                *_analysed(told, own, state, folder),
                place,
                ks[variant] or KS,
                _machines(own, state),
            )
    return {
        "output": str(output),
        "done": len(state.done),
        "total": len(cells),
        "scores": table,
        "analyses": parts,
    }


def _machines(cells: Sequence[Cell], state: State) -> list[Record]:
    """What the cells ran on, each machine once; older results do not tell."""
    found: list[Record] = []
    for cell in cells:
        machine = state.results.get(cell.name, {}).get("machine")
        if machine is not None and machine not in found:
            found.append(machine)
    return found


def _benchmarks(study: Study) -> dict[str, Sequence[str]]:
    """The benchmarks that targets are named by, where there are others to tell them from: GLUE and SuperGLUE have a mean each."""
    named: dict[str, Sequence[str]] = {
        str(entry): BENCHMARKS[str(entry)]
        for _, grid in study.grids()
        for entry in grid.targets
        if str(entry) in BENCHMARKS
    }
    return named if any(len(grid.targets) > 1 for _, grid in study.grids()) else {}


def _write_sizes(found: Sequence[Record], table: Sequence[Record], output: Path) -> str:
    """Score against model size as PNG, SVG, CSV and JSON; the line that shows it on a page."""
    from ..analysis.heatmaps import save
    from ..analysis.sizes import by_size, score_by_size

    rows = by_size(
        table, {told["backbone"]: told["parameters"] for told in found if told["parameters"]}
    )
    save(score_by_size(rows), output, "sizes")
    write_json(output / "sizes.json", rows)
    write_text(output / "sizes.csv", as_csv(rows, list(rows[0])))
    return "\n![score by model size](sizes.png)\n"


def _analysed(
    found: Sequence[Record], cells: Sequence[Cell], state: State, folder: Path
) -> tuple[list[Record], list[Record], list[Record]]:
    """Records, task embeddings and retrieval runs, as the analysis takes them."""
    names = ("source", "target", "seed", "score", "metric", "majority", "rows")
    runs = [
        {name: told[name] for name in names}
        for told in found
        if told["stage"] in ("source", "baseline", "transfer")
    ]
    embeddings = [
        {
            "task": cell.source or cell.target,
            "seed": cell.seed,
            "vectors": on_disk.embedding(on_disk.place(folder, cell.name)),
        }
        for cell in cells
        if cell.stage in ("source", "baseline")
        and cell.name in state.done
        and cell.name not in state.failed
    ]
    retrieval = [
        {
            "method": told["stage"],
            **{name: told[name] for name in ("similarity", "k", "target", "seed", "score")},
        }
        for told in found
        if told["stage"] in METHODS
    ]
    return runs, embeddings, retrieval
