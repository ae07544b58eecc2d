"""What a cohort came to: a record of each run for machines, means over seeds, a table for people, a CSV file beside the runs."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from ..config.products import Member, said
from . import RunFailedError

if TYPE_CHECKING:
    from .api import Tuned

SEED = "seed"
Record = dict[str, Any]


def records(
    members: Sequence[Member], results: "Sequence[Tuned | RunFailedError]", folder: Path
) -> list[Record]:
    """Each run's settings, folder and card; of a run that left no prompt, why."""
    found = []
    for member, result in zip(members, results, strict=True):
        card = (
            {"failed": True, "stopped": str(result)}
            if isinstance(result, RunFailedError)
            else {**result.card, "cost": result.cost}
        )
        found.append({"settings": member.apart, "folder": str(folder / member.name), **card})
    return found


def over_seeds(runs: Sequence[Record]) -> list[Record]:
    """Mean and standard deviation of the metrics over the runs that differ in nothing but the seed."""
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
    columns = {
        name: [metrics[name] for metrics in scored] for name in (scored[0] if scored else ())
    }
    return {
        "runs": len(group),
        "failed": sum(run["failed"] for run in group),
        "mean": {name: round(mean(values), 4) for name, values in columns.items()},
        "std": {
            name: round(stdev(values), 4) if len(values) > 1 else None
            for name, values in columns.items()
        },
    }


def as_csv(runs: Sequence[Record]) -> str:
    """A row per run: settings, metrics (of whichever task has them), best step, why it ended early, folder."""
    metrics = list(dict.fromkeys(name for run in runs for name in run.get("metrics", ())))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*runs[0]["settings"], *metrics, "best_step", "stopped", "folder"])
    for run in runs:
        scores: Mapping[str, float] = run.get("metrics", {})
        told = [scores.get(name) for name in metrics]
        writer.writerow(
            [
                *map(said, run["settings"].values()),
                *told,
                run.get("best_step"),
                run["stopped"],
                Path(run["folder"]).name,
            ]
        )
    return text.getvalue()
