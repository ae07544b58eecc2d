"""What a study has come to: where it stands, plain records of its cells, tables, and the analysis of its transfers."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from .leases import WORKERS, claimed, clock, is_alive
from .plan import Cell
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
