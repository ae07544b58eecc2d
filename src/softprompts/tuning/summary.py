"""The results of a cohort: a record per run, means over seeds, a table in a CSV file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ..artifacts.card import Card
from ..artifacts.run_folder import write_cohort_table
from ..config import Member, spell
from ..tasks.statistics import score_p
from .run import RunFailedError
from .tuned import Tuned

SEED = "seed"
Record = dict[str, Any]
"""A run for machines: its settings, its folder and its card."""
COLUMNS = (
    *("rows", "interval_low", "interval_high", "majority", "bag_of_words", "test", "test_rows"),
    *("test_interval_low", "test_interval_high", "p_vs_best"),
)
"""Columns of the table beside all metrics; they are about the first metric."""


def records(
    members: Sequence[Member], results: Sequence[Tuned | RunFailedError], folder: Path
) -> list[Record]:
    """Each run's settings, folder and card; for a run that left no prompt, why."""
    return [
        {
            "settings": member.varied,
            "folder": str(folder / member.name),
            **(
                {"failed": True, "stopped": str(result)}
                if isinstance(result, RunFailedError)
                else {**result.card.plain(), "cost": result.cost, "p_vs_best": p_value}
            ),
        }
        for member, result, p_value in zip(members, results, _p_values(results), strict=True)
    ]


def _p_values(results: Sequence[Tuned | RunFailedError]) -> list[float | None]:
    """p of a paired test against the best run on the same rows; None for the best or if unknown."""
    scored = [result for result in results if isinstance(result, Tuned) and result.row_scores]
    best: dict[str, Tuned] = {}
    for tuned in scored:
        rows = _rows_key(tuned)
        if rows not in best or judged_score(tuned.card) > judged_score(best[rows].card):
            best[rows] = tuned

    def p_value(result: Tuned | RunFailedError) -> float | None:
        if isinstance(result, RunFailedError) or (rival := best.get(_rows_key(result))) is None:
            return None
        if rival is result:
            return None
        difference = judged_score(result.card) - judged_score(rival.card)
        return score_p(result.row_scores, rival.row_scores, difference)

    return list(map(p_value, results))


def _rows_key(tuned: Tuned) -> str:
    card = tuned.card
    return f"{card.task.name} {card.metric} {card.task.digests}"


def judged_score(card: Card) -> float:
    """The first metric on the test rows, or without them on the validation rows."""
    return card.score if card.test is None else card.test[card.metric]


def over_seeds(runs: Sequence[Record]) -> list[Record]:
    """Mean and standard deviation of the metrics over runs that differ only in their seed."""
    groups: dict[str, tuple[Record, list[Record]]] = {}
    for run in runs:
        others = {name: value for name, value in run["settings"].items() if name != SEED}
        groups.setdefault(str(others), (others, []))[1].append(run)
    return [
        {
            "settings": others,
            "runs": len(group),
            "failed": sum(run["failed"] for run in group),
            **_spread([run["metrics"] for run in group if not run["failed"]]),
            "test": _spread([run["test"] for run in group if run.get("test")]),
        }
        for others, group in groups.values()
    ]


def _spread(scored: Sequence[Mapping[str, float]]) -> Record:
    names = scored[0] if scored else ()
    columns = {name: [metrics[name] for metrics in scored] for name in names}
    return {
        "mean": {name: round(mean(values), 4) for name, values in columns.items()},
        "std": {
            name: round(stdev(values), 4) if len(values) > 1 else None
            for name, values in columns.items()
        },
    }


def write_table(
    members: Sequence[Member], results: Sequence[Tuned | RunFailedError], folder: Path
) -> None:
    """Write the table of a cohort's runs beside their folders.

    A row per run: settings, the metrics of all tasks, rows, interval, baselines, test score. Below
    them, where seeds vary, the mean and the standard deviation of each setting over them.
    """
    runs, rows = records(members, results, folder), list[Record]()
    metrics = list(dict.fromkeys(name for run in runs for name in run.get("metrics", ())))
    settings = list(runs[0]["settings"])
    for run in runs:
        row = {name: spell(value) for name, value in run["settings"].items()}
        row |= {name: run[name] for name in ("best_step", "stopped") if name in run}
        row |= run.get("metrics", {}) | _columns(run) | {"folder": Path(run["folder"]).name}
        rows.append(row)
    for group in over_seeds(runs) if SEED in settings else ():
        for statistic in ("mean", "std"):
            row = {name: spell(value) for name, value in group["settings"].items()}
            tests = list(group["test"][statistic].values())
            if group["runs"] > 1:
                test = {SEED: statistic, "test": next(iter(tests), None)}
                rows.append(row | test | group[statistic])
    columns = [*settings, *metrics, *COLUMNS, "best_step", "stopped", "folder"]
    write_cohort_table(folder, rows, columns)


def _columns(run: Record) -> Record:
    """COLUMNS of a run; a run that failed, and cards of older versions, lack some."""
    if "metrics" not in run:
        return {}
    metric, scores = run["task"]["metrics"][0], run.get("scores", {})
    columns = {
        "rows": run["task"]["rows"].get("validation"),
        "majority": run["majority"].get(metric),
        "test": (run.get("test") or {}).get(metric),
        "p_vs_best": run.get("p_vs_best"),
    }
    for split, prefix in (("validation", ""), ("test", "test_")):
        intervals = scores.get(split, {}).get("intervals", {})
        low, high = intervals.get(metric, (None, None))
        columns |= {f"{prefix}interval_low": low, f"{prefix}interval_high": high}
    columns["test_rows"] = scores.get("test", {}).get("rows")
    words = scores.get("validation", {}).get("baselines", {}).get("bag_of_words")
    return columns | {"bag_of_words": words and words["metrics"][metric]}
