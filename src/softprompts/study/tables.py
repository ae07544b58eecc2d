"""A study's results as records and tables."""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, Literal, TypedDict

from ..artifacts.study_folder import CellResult
from .plan import Cell
from .state import StudyState

RECORD = (
    *("cell", "stage", "backbone", "variant", "source", "target", "seed", "k", "similarity"),
    *("score", "metric", "metrics", "majority", "rows", "interval", "bag_of_words"),
    *("test", "test_rows", "test_interval", "best_step", "steps"),
    *("seconds", "cohort", "fingerprint", "parameters", "failed", "chosen"),
)
"""Fields of results in a report."""


class Spread(TypedDict):
    mean: float
    std: float | None


class ScoreRow(TypedDict):
    """Scores of one source (None: no transfer), with mean and spread over seeds."""

    backbone: str
    variant: str | None
    source: str | None
    targets: dict[str, Spread | None]
    mean: Spread | None  # over all targets; None if one is missing, to compare rows fairly
    benchmarks: dict[str, Spread | None]  # the same over the tasks of a benchmark


def all_results(cells: Sequence[Cell], state: StudyState) -> list[CellResult]:
    """One for each planned cell, with a score of None if it is not finished."""
    return [
        dataclasses.replace(state.results.get(cell.name, CellResult(cell.name)), **cell.identity())
        for cell in cells
    ]


def as_record(result: CellResult) -> dict[str, Any]:
    chosen = [source.plain() for source in result.chosen]
    return {name: getattr(result, name) for name in RECORD} | {"chosen": chosen}


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def score_table(
    results: Sequence[CellResult],
    benchmarks: Mapping[str, Sequence[str]] | None = None,
    field: Literal["score", "test"] = "score",
) -> list[ScoreRow]:
    """A row for each backbone, variant and source, of validation scores or those on test rows.

    The spread of a mean over targets is that of the seeds' own means.
    """
    groups: dict[tuple[Any, ...], dict[str, dict[int, float | None]]] = {}
    for result in results:
        if result.stage in ("baseline", "transfer"):
            key = (result.backbone, result.variant, result.source)
            scores = groups.setdefault(key, {}).setdefault(str(result.target), {})
            scores[result.seed or 0] = getattr(result, field)
    return [
        {
            "backbone": backbone,
            "variant": variant,
            "source": source,
            "targets": {name: _spread(list(by_seed.values())) for name, by_seed in targets.items()},
            "mean": _mean_over(targets, list(groups.get((backbone, variant, None), targets))),
            "benchmarks": {
                name: _mean_over(targets, tasks) for name, tasks in (benchmarks or {}).items()
            },
        }
        for (backbone, variant, source), targets in groups.items()
    ]


def _mean_over(
    targets: Mapping[str, Mapping[int, float | None]], names: Sequence[str]
) -> Spread | None:
    """The mean over targets and its spread over seeds; None if a target or a cell is missing."""
    if any(name not in targets for name in names):
        return None
    seeds = sorted({seed for name in names for seed in targets[name]})
    return _spread([_mean([targets[name].get(seed) for name in names]) for seed in seeds])


def _mean(scores: Sequence[float | None]) -> float | None:
    known = [score for score in scores if score is not None]
    return fmean(known) if known and len(known) == len(scores) else None


def _spread(scores: Sequence[float | None]) -> Spread | None:
    known = [score for score in scores if score is not None]
    if len(known) < len(scores) or not known:
        return None
    std = round(stdev(known), 2) if len(known) > 1 else None
    return {"mean": round(fmean(known), 2), "std": std}


def markdown(table: Sequence[ScoreRow]) -> str:
    """The rows as one Markdown table, with a column for every target."""
    targets = list(dict.fromkeys(target for row in table for target in row["targets"]))
    benchmarks = list(dict.fromkeys(name for row in table for name in row["benchmarks"]))
    several = {
        "backbone": len({row["backbone"] for row in table}) > 1,
        "variant": len({row["variant"] for row in table}) > 1,
    }
    names = [name for name, shown in several.items() if shown]
    header = [*names, "source", "mean", *(f"mean of {name}" for name in benchmarks), *targets]
    lines = [header, ["---"] * len(header)]
    for row in table:
        labels = {"backbone": row["backbone"], "variant": str(row["variant"])}
        spreads = [row["mean"], *(row["benchmarks"].get(name) for name in benchmarks)]
        spreads += [row["targets"].get(target) for target in targets]
        source = row["source"] or "(no transfer)"
        lines.append([*(labels[name] for name in names), source, *map(_formatted, spreads)])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _formatted(spread: Spread | None) -> str:
    if spread is None:
        return ""
    std = "" if spread["std"] is None else f" ± {spread['std']:.1f}"
    return f"{spread['mean']:.1f}{std}"
