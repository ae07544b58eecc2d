"""A cohort's results as a table."""

from collections.abc import Sequence
from pathlib import Path

from ..artifacts.run_folder import COHORT_TABLE
from ..config.products import spell
from ..tuning.summary import SEED, Record, over_seeds
from .command import aligned, speak, wordless


def table(runs: Sequence[Record], folder: Path) -> str:
    """A row per run, a row per setting over its seeds where there are several, and what went wrong."""
    names = list(runs[0]["settings"])
    rows = [[*names, "score", "majority class", "best step", "folder"]]
    for run in runs:
        rows.append(
            [*map(spell, run["settings"].values()), *_scored(run), Path(run["folder"]).name]
        )
    lines = list(aligned(rows))
    if SEED in names:
        others = [name for name in names if name != SEED]
        rows = [[*others, "mean ± standard deviation", "seeds"]]
        rows += [
            [*map(spell, group["settings"].values()), _mean(group), _seeds(group)]
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
    return "\n".join([*lines, f"the runs and {COHORT_TABLE} are in {folder}"])


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
