"""A study's results as records and tables.

A run is judged by its score on the test rows if its task has some, and else on the validation rows.
"""

import csv
import dataclasses
import io
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, Literal, TypedDict

from ..artifacts.study_folder import CellResult
from .plan import Cell
from .state import StudyState

RECORD = (
    *("cell", "stage", "backbone", "variant", "source", "target", "seed", "k", "similarity"),
    *("score", "metric", "metrics", "majority", "rows", "interval", "bag_of_words"),
    *("test", "test_rows", "test_majority", "test_interval", "best_step", "steps"),
    *("seconds", "cohort", "fingerprint", "parameters", "failed", "chosen"),
)
"""Fields of results in a report."""
Split = Literal["test", "validation"]


@dataclasses.dataclass(frozen=True)
class Judged:
    """A result with what tables, figures and tests compare it by."""

    result: CellResult
    split: Split
    score: float | None
    rows: int | None
    majority: float | None


def judge(
    results: Sequence[CellResult], split: Literal["validation"] | None = None
) -> list[Judged]:
    """The results on the test rows of tasks that have some, or all on the validation rows.

    If an unfinished or older study has test scores of some runs on a task only, all runs on it are
    judged by the validation rows, so that no two rows of a table are scored on different data.
    """
    untested = {_judged_on(r) for r in results if r.score is not None and r.test is None}
    tested = {_judged_on(r) for r in results if r.test is not None} - untested
    return [
        _on_test_rows(result)
        if split != "validation" and _judged_on(result) in tested
        else Judged(result, "validation", result.score, result.rows, result.majority)
        for result in results
    ]


def _on_test_rows(result: CellResult) -> Judged:
    # unknown in older results, where that of the validation rows is close
    majority = result.majority if result.test_majority is None else result.test_majority
    return Judged(result, "test", result.test, result.test_rows, majority)


def _judged_on(result: CellResult) -> tuple[bool, str | None, str | None]:
    """The task on whose rows a result was scored."""
    own = None if result.target else result.source
    return result.stage in ("mixture-source", "choice", "source-choice"), result.target, own


class Spread(TypedDict):
    mean: float
    std: float | None


class ScoreRow(TypedDict):
    """Scores of one source (None: no transfer), with mean and spread over seeds."""

    backbone: str
    variant: str | None
    source: str | None
    targets: dict[str, Spread | None]
    splits: dict[str, Split]  # the rows that each target was scored on
    rows: dict[str, int | None]  # and how many; None if unknown, as in results of older versions
    mean: Spread | None  # over all targets; None if one is missing, to compare rows fairly
    benchmarks: dict[str, Spread | None]  # the same over the tasks of a benchmark


def all_results(cells: Sequence[Cell], state: StudyState) -> list[CellResult]:
    """One for each planned cell, with a score of None if it is not finished."""
    return [
        dataclasses.replace(state.results.get(cell.name, CellResult(cell.name)), **cell.identity())
        for cell in cells
    ]


def as_record(judged: Judged) -> dict[str, Any]:
    """The fields of a result; `judged_by` says which rows its `judged_score` is on."""
    result = judged.result
    record = {name: getattr(result, name) for name in RECORD}
    record |= {"judged_by": judged.split, "judged_score": judged.score}
    return record | {"chosen": [source.plain() for source in result.chosen]}


def as_csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def score_table(
    results: Sequence[Judged],
    benchmarks: Mapping[str, Sequence[str]] | None = None,
) -> list[ScoreRow]:
    """A row for each backbone, variant and source.

    The spread of a mean over targets is that of the seeds' own means.
    """
    groups: dict[tuple[Any, ...], dict[str, dict[int, float | None]]] = {}
    splits: dict[str, Split] = {}
    rows: dict[str, int | None] = {}
    for judged in results:
        result = judged.result
        if result.stage in ("baseline", "transfer"):
            key = (result.backbone, result.variant, result.source)
            scores = groups.setdefault(key, {}).setdefault(str(result.target), {})
            scores[result.seed or 0] = judged.score
            splits[str(result.target)] = judged.split
            rows[str(result.target)] = judged.rows or rows.get(str(result.target))
    return [
        {
            "backbone": backbone,
            "variant": variant,
            "source": source,
            "targets": {name: _spread(list(by_seed.values())) for name, by_seed in targets.items()},
            "splits": {name: splits[name] for name in targets},
            "rows": {name: rows[name] for name in targets},
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
    """The rows as one Markdown table, with a column for every target, and what it was scored on."""
    splits = {target: split for row in table for target, split in row["splits"].items()}
    mixed = len(set(splits.values())) > 1
    targets = list(splits)
    benchmarks = list(dict.fromkeys(name for row in table for name in row["benchmarks"]))
    several = {
        "backbone": len({row["backbone"] for row in table}) > 1,
        "variant": len({row["variant"] for row in table}) > 1,
        "source": any(row["source"] is not None for row in table),
    }
    names = [name for name, shown in several.items() if shown]
    header = [*names, "mean", *(f"mean of {name}" for name in benchmarks)]
    header += [f"{target} ({split})" if mixed else target for target, split in splits.items()]
    lines = [header, ["---"] * len(header)]
    for row in table:
        labels = {"backbone": row["backbone"], "variant": str(row["variant"])}
        labels["source"] = row["source"] or "(no transfer)"
        spreads = [row["mean"], *(row["benchmarks"].get(name) for name in benchmarks)]
        spreads += [row["targets"].get(target) for target in targets]
        lines.append([*(labels[name] for name in names), *map(_formatted, spreads)])
    title = f"{scored_on(splits)}, mean ± standard deviation over seeds:\n\n"
    counts = {target: count for row in table for target, count in row["rows"].items() if count}
    scored = ", ".join(f"{count:,} of {target}" for target, count in counts.items())
    notes = (
        f"\nRows: {scored}. The 95 % interval of each run is in records.csv.\n" if counts else ""
    )
    return title + "".join(f"| {' | '.join(line)} |\n" for line in lines) + notes


def rows_of(splits: Collection[str]) -> str:
    return (
        f"{next(iter(splits))} rows" if len(set(splits)) == 1 else "test rows where there are some"
    )


def scored_on(splits: Mapping[str, str]) -> str:
    tested = [task for task, split in splits.items() if split == "test"]
    rest = [task for task in splits if task not in tested]
    if not (tested and rest):
        return f"Scores on the {'test' if tested else 'validation'} rows"
    return (
        f"Scores on the test rows of {', '.join(tested)}, and on the validation rows of "
        f"{', '.join(rest)}"
    )


def _formatted(spread: Spread | None) -> str:
    if spread is None:
        return ""
    std = "" if spread["std"] is None else f" ± {spread['std']:.1f}"
    return f"{spread['mean']:.1f}{std}"
