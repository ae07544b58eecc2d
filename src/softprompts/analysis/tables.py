"""A study's table of scores: a row for each backbone, variant and source, a column per target."""

from collections.abc import Collection, Mapping, Sequence
from typing import TypedDict

from .markup import markdown_table
from .runs import RunRecord, Runs, Split
from .spread import MeanAndStd, grouped, plus_minus
from .summary import mean_over

ON_TARGETS = ("baseline", "transfer")
"""The stages of runs that the table shows."""


class ScoreRow(TypedDict):
    """Scores of one source (None: no transfer), with mean and spread over seeds."""

    backbone: str
    variant: str | None
    source: str | None
    targets: dict[str, MeanAndStd | None]
    splits: dict[str, Split]  # the rows that each target was scored on
    rows: dict[str, int | None]  # and how many; None if unknown, as in results of older versions
    mean: MeanAndStd | None  # over all targets; None if one is missing, to compare rows fairly
    benchmarks: dict[str, MeanAndStd | None]  # the same over the tasks of a benchmark


def score_table(
    runs: Runs, benchmarks: Mapping[str, Sequence[str]] | None = None
) -> list[ScoreRow]:
    """The spread of a mean over targets is that of the seeds' own means."""
    compared = [run for run in runs.records if run.stage in ON_TARGETS]
    splits = {run.task: runs.split(run) for run in compared}
    rows = {
        run.task: run.rows[split] for run in compared if (split := splits[run.task]) in run.rows
    }
    names = ("backbone", "variant", "source")
    groups = grouped((tuple(map(run.arm.get, names)), run) for run in compared)
    targets = {key: list(dict.fromkeys(run.task for run in part)) for key, part in groups.items()}
    return [
        {
            "backbone": str(key[0]),
            "variant": key[1],
            "source": key[2],
            "targets": {name: _mean(runs, part, [name]) for name in targets[key]},
            "splits": {name: splits[name] for name in targets[key]},
            "rows": {name: rows.get(name) for name in targets[key]},
            "mean": _mean(runs, part, targets.get((*key[:2], None), targets[key])),
            "benchmarks": {
                name: _mean(runs, part, tasks) for name, tasks in (benchmarks or {}).items()
            },
        }
        for key, part in groups.items()
    ]


def _mean(runs: Runs, part: Sequence[RunRecord], tasks: Sequence[str]) -> MeanAndStd | None:
    value = mean_over(runs, part, tasks)
    if value is None:
        return None
    rounded = value.rounded()
    return {"mean": rounded["mean"], "std": rounded["std"]}


def markdown(table: Sequence[ScoreRow]) -> str:
    """The rows as one Markdown table, with a column for every target, and what it was scored on."""
    splits = {target: split for row in table for target, split in row["splits"].items()}
    mixed = len(set(splits.values())) > 1
    benchmarks = list(dict.fromkeys(name for row in table for name in row["benchmarks"]))
    several = {
        "backbone": len({row["backbone"] for row in table}) > 1,
        "variant": len({row["variant"] for row in table}) > 1,
        "source": any(row["source"] is not None for row in table),
    }
    names = [name for name, shown in several.items() if shown]
    header = [*names, "mean", *(f"mean of {name}" for name in benchmarks)]
    header += [f"{target} ({split})" if mixed else target for target, split in splits.items()]
    lines = []
    for row in table:
        labels = {"backbone": row["backbone"], "variant": str(row["variant"])}
        labels["source"] = row["source"] or "(no transfer)"
        spreads = [row["mean"], *(row["benchmarks"].get(name) for name in benchmarks)]
        spreads += [row["targets"].get(target) for target in splits]
        lines.append([*(labels[name] for name in names), *map(plus_minus, spreads)])
    title = f"{scored_on(splits)}, mean ± standard deviation over seeds:"
    counts = {target: count for row in table for target, count in row["rows"].items() if count}
    scored = ", ".join(f"{count:,} of {target}" for target, count in counts.items())
    notes = f"\nRows: {scored}. The 95 % interval of each run is in records.csv.\n"
    return f"{title}\n\n{markdown_table(header, lines)}\n{notes if counts else ''}"


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
