"""The results of `softprompts tune` as text: one run's, and a cohort's as a table."""

from collections.abc import Sequence
from pathlib import Path

from ..artifacts.run_folder import COHORT_TABLE
from ..config import spell
from ..tuning.summary import SEED, Record, over_seeds
from ..tuning.tuned import Tuned
from .output import advice_on_labels, aligned, format_scores, invalid_answers


def describe(tuned: Tuned) -> str:
    card, rows, cost = tuned.card, tuned.card.task.rows, tuned.cost
    best = f"best at step {card.best_step} of {card.steps}"
    lines = [f"{card.task.name} on {card.backbone.name}: {format_scores(card.plain())}, {best}"]
    if note := invalid_answers(card.invalid or 0, rows["validation"], bool(card.steps)):
        lines.append(note)
    if rows["skipped"]:
        lines.append(f"{rows['skipped']} bad rows were skipped")
    if card.stopped:
        lines.append(f"stopped early: {card.stopped}")
    if card.cut_texts:
        lines.append(
            f"{card.cut_texts} of {rows['train']} training texts were truncated to "
            f"{card.max_length} tokens, prompt included"
        )
    if cost is not None:
        memory = "" if cost["peak_gib"] is None else f", {cost['peak_gib']:.1f} GiB at peak"
        resumed = f", resumed at step {cost['from_step']}" if cost["from_step"] else ""
        lines.append(f"training took {cost['seconds']:.0f} s{memory}{resumed}")
    elif card.steps:
        lines.append("the run was already finished; --overwrite tunes it again")
    lines.append(f"the prompt, its card and its learning curve are in {tuned.folder}")
    return "\n".join(lines)


def cohort_table(runs: Sequence[Record], folder: Path) -> str:
    """A row per run, a row per setting over its seeds where there are several, and failures."""
    names = list(runs[0]["settings"])
    rows = [[*names, "score", "majority class", "best step", "folder"]]
    for run in runs:
        settings = map(spell, run["settings"].values())
        rows.append([*settings, *_scores(run), Path(run["folder"]).name])
    lines = list(aligned(rows))
    if SEED in names:
        others = [name for name in names if name != SEED]
        rows = [[*others, "mean ± standard deviation", "seeds"]]
        for group in over_seeds(runs):
            rows.append([*map(spell, group["settings"].values()), _mean(group), _seeds(group)])
        lines += ["", *aligned(rows)]
    poor = sum(
        invalid_answers(run["invalid"], run["task"]["rows"]["validation"]) is not None
        for run in runs
        if "metrics" in run
    )
    if poor:
        trained = any(run.get("steps") for run in runs)
        lines.append(
            f"in {poor} of {len(runs)} runs over a fifth of the answers matched no label; "
            f"{advice_on_labels(trained)}"
        )
    lines += [
        f"{Path(run['folder']).name} failed: {run['stopped']}" for run in runs if run["failed"]
    ]
    return "\n".join([*lines, f"the runs and {COHORT_TABLE} are in {folder}"])


def _scores(run: Record) -> list[str]:
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
    deviation = group["std"][metric]
    return f"{metric} {value:.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")


def _seeds(group: Record) -> str:
    return f"{group['runs']}, {group['failed']} failed" if group["failed"] else str(group["runs"])
