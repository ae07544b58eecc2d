"""The results of a cohort: a record per run, means over seeds, a table in a CSV file."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from ..artifacts.run_folder import write_cohort_table
from ..config import Member, spell
from .run import RunFailedError
from .tuned import Tuned

SEED = "seed"
Record = dict[str, Any]
"""A run for machines: its settings, its folder and its card."""


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
                else {**result.card.plain(), "cost": result.cost}
            ),
        }
        for member, result in zip(members, results, strict=True)
    ]


def over_seeds(runs: Sequence[Record]) -> list[Record]:
    """Mean and standard deviation of the metrics over runs that differ only in their seed."""
    groups: list[tuple[Record, list[Record]]] = []
    for run in runs:
        others = {name: value for name, value in run["settings"].items() if name != SEED}
        same = next((group for settings, group in groups if settings == others), None)
        if same is None:
            groups.append((others, [run]))
        else:
            same.append(run)
    return [{"settings": others, **_spread(group)} for others, group in groups]


def _spread(group: Sequence[Record]) -> Record:
    scored = [run["metrics"] for run in group if not run["failed"]]
    names = scored[0] if scored else ()
    columns = {name: [metrics[name] for metrics in scored] for name in names}
    return {
        "runs": len(group),
        "failed": sum(run["failed"] for run in group),
        "mean": {name: round(mean(values), 4) for name, values in columns.items()},
        "std": {
            name: round(stdev(values), 4) if len(values) > 1 else None
            for name, values in columns.items()
        },
    }


def write_table(
    members: Sequence[Member], results: Sequence[Tuned | RunFailedError], folder: Path
) -> None:
    """Write the table of a cohort's runs beside their folders."""
    write_cohort_table(folder, as_csv(records(members, results, folder)))


def as_csv(runs: Sequence[Record]) -> str:
    """A row per run: settings, the metrics of all tasks, best step, why it ended early, folder."""
    metrics = list(dict.fromkeys(name for run in runs for name in run.get("metrics", ())))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*runs[0]["settings"], *metrics, "best_step", "stopped", "folder"])
    for run in runs:
        settings = map(spell, run["settings"].values())
        scores = [run.get("metrics", {}).get(name) for name in metrics]
        ending = [run.get("best_step"), run["stopped"], Path(run["folder"]).name]
        writer.writerow([*settings, *scores, *ending])
    return text.getvalue()
