"""What a cohort came to: a record of each run for machines, means over seeds, a table for people, a CSV file beside the runs."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from ..cli.command import aligned, speak, wordless
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


def table(runs: Sequence[Record], folder: Path) -> str:
    """A row per run, a row per setting over its seeds where there are several, and what went wrong."""
    names = list(runs[0]["settings"])
    rows = [[*names, "score", "majority class", "best step", "folder"]]
    for run in runs:
        rows.append([*map(said, run["settings"].values()), *_scored(run), Path(run["folder"]).name])
    lines = list(aligned(rows))
    if SEED in names:
        others = [name for name in names if name != SEED]
        rows = [[*others, "mean ± standard deviation", "seeds"]]
        rows += [
            [*map(said, group["settings"].values()), _mean(group), _seeds(group)]
            for group in over_seeds(runs)
        ]
        lines += ["", *aligned(rows)]
    silent = sum(
        bool("metrics" in run and wordless(run["invalid"], run["task"]["rows"]["validation"]))
        for run in runs
    )
    if silent:
        lines.append(
            f"in {silent} of {len(runs)} runs over a fifth of the answers were no label; {speak(any(run.get('steps') for run in runs))}"
        )
    lines += [
        f"{Path(run['folder']).name} failed: {run['stopped']}" for run in runs if run["failed"]
    ]
    return "\n".join([*lines, f"the runs and cohort.csv are in {folder}"])


def _scored(run: Record) -> list[str]:
    if "metrics" not in run:
        return ["failed", "-", "-"]
    metric = run["task"]["metrics"][0]
    return [
        f"{metric} {run['metrics'][metric]:.1f}",
        f"{run['majority'][metric]:.1f}",
        f"{run['best_step']} of {run['steps']}",
    ]


def _mean(group: Record) -> str:
    if not group["mean"]:
        return "failed"
    metric, value = next(iter(group["mean"].items()))
    return f"{metric} {value:.1f}" + (
        f" ± {group['std'][metric]:.1f}" if group["std"][metric] is not None else ""
    )


def _seeds(group: Record) -> str:
    return f"{group['runs']}, {group['failed']} failed" if group["failed"] else str(group["runs"])


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
