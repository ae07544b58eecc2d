"""The results of `softprompts tune` as text: one run's, and a cohort's as a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..artifacts.card import Card
from ..artifacts.file_names import COHORT_TABLE
from ..config import spell
from ..errors import spelled
from ..tuning.advice import advice, exploded
from ..tuning.summary import SEED, Record, over_seeds
from ..tuning.tuned import Tuned
from .output import (
    advice_on_labels,
    aligned,
    describe_classes,
    describe_report,
    format_interval,
    format_p,
    format_scores,
    invalid_answers,
)

NOT_OF_CARDS = ("settings", "folder", "cost", "p_vs_best")
"""Keys of a run's record that its card does not have."""


def describe(tuned: Tuned) -> str:
    card, rows, cost = tuned.card, tuned.card.task.rows, tuned.cost
    best = f"best at step {card.best_step} of {card.steps}"
    scores = "" if card.scores else f"{format_scores(card.plain())}, "
    lines = [f"{card.task.name} on {card.backbone.name}: {scores}{best}"]
    for split, report in card.scores.items():
        lines += describe_report(report, split)
    lines += describe_classes(card.judged)
    longer = bool(card.steps) and not exploded(card)
    if note := invalid_answers(card.invalid or 0, rows["validation"], longer):
        lines.append(note)
    if (text := advice(card)) is not None:
        lines.append(spelled(text))
    if rows["skipped"]:
        skipped = rows["skipped"]
        lines.append(f"{skipped} bad row{'s were' if skipped > 1 else ' was'} skipped")
    if card.stopped:
        lines.append(f"stopped early: {card.stopped}")
    if card.cut_texts:
        lines.append(
            f"{card.cut_texts} of {rows['train']} training texts were truncated to "
            f"{card.max_length} tokens, prompt included"
        )
    if cost is not None:
        lines.append(describe_cost(cost))
    elif card.steps:
        lines.append("the run was already finished; --overwrite tunes it again")
    lines.append(f"the prompt, its card and its learning curve are in {tuned.folder}")
    return "\n".join(lines)


def describe_cost(cost: Mapping[str, Any]) -> str:
    """Where the time went; phases of less than half a second are left out."""
    phases = cost["phases"]
    shown = [f"{name} {seconds:.1f}" for name, seconds in phases.items() if seconds >= 0.5]
    parts = f" ({', '.join(shown)})" if len(shown) > 1 else ""
    memory = "" if cost["peak_gib"] is None else f", {cost['peak_gib']:.1f} GiB at peak"
    resumed = f", resumed at step {cost['from_step']}" if cost["from_step"] else ""
    return f"took {sum(phases.values()):.0f} s{parts}{memory}{resumed}"


def cohort_table(runs: Sequence[Record], folder: Path) -> str:
    """A row per run, a row per setting over its seeds if there are several, and failures."""
    names = list(runs[0]["settings"])
    tested = any(run.get("test") for run in runs)
    header = [*names, "score", *(["test"] if tested else []), "95 % interval", "rows"]
    rows = [[*header, "majority class", "bag of words", "p vs best", "best step", "folder"]]
    for run in runs:
        settings = map(spell, run["settings"].values())
        rows.append([*settings, *_scores(run, tested), Path(run["folder"]).name])
    if all(run.get("p_vs_best") is None for run in runs):  # no two runs on the same rows
        column = rows[0].index("p vs best")
        rows = [row[:column] + row[column + 1 :] for row in rows]
    lines = list(aligned(rows))
    if tested:
        lines.append("intervals, rows, baselines and paired tests are those of the test rows")
    if SEED in names:
        others = [name for name in names if name != SEED]
        header = [*others, "mean ± standard deviation", *(["test"] if tested else []), "seeds"]
        rows = [header]
        for group in over_seeds(runs):
            means = [_mean(group), *([_mean(group["test"])] if tested else [])]
            failed = f", {group['failed']} failed" if group["failed"] else ""
            seeds = f"{group['runs']}{failed}"
            rows.append([*map(spell, group["settings"].values()), *means, seeds])
        lines += ["", *aligned(rows)]
    poor = sum(
        invalid_answers(run["invalid"], run["task"]["rows"]["validation"]) is not None
        for run in runs
        if "metrics" in run
    )
    cards = {
        run["folder"]: Card.of({name: run[name] for name in run if name not in NOT_OF_CARDS})
        for run in runs
        if "metrics" in run
    }
    if poor:
        trained = any(card.steps and not exploded(card) for card in cards.values())
        lines.append(
            f"in {poor} of {len(runs)} runs over a fifth of the answers matched no label; "
            f"{advice_on_labels(trained)}"
        )
    notes = {name: text for name, card in cards.items() if (text := advice(card)) is not None}
    if notes:
        name, text = next(iter(notes.items()))
        lines.append(
            f"{len(notes)} of {len(runs)} runs are no better than a baseline; for example, "
            f"{Path(name).name}: {spelled(text)}"
        )
    lines += [
        f"{Path(run['folder']).name} failed: {run['stopped']}" for run in runs if run["failed"]
    ]
    if cost := next((run["cost"] for run in runs if run.get("cost")), None):
        lines.append(describe_cost(cost))
    return "\n".join([*lines, f"the runs and {COHORT_TABLE} are in {folder}"])


def _scores(run: Record, tested: bool) -> list[str]:
    if "metrics" not in run:
        return ["failed", *["-"] * (6 + tested)]
    metric, scores = run["task"]["metrics"][0], run.get("scores", {})
    report = scores.get("test" if tested else "validation", {})
    baselines = report.get("baselines", {})
    words = baselines.get("bag_of_words")
    majority = baselines.get("majority", {"metrics": run["majority"]})
    test = (run.get("test") or {}).get(metric)
    p = run.get("p_vs_best")
    return [
        f"{metric} {run['metrics'][metric]:.1f}",
        *(["-" if test is None else f"{test:.1f}"] if tested else []),
        format_interval(report.get("intervals", {}).get(metric)).strip(" []").replace(",", " to")
        or "-",
        str(report.get("rows", run["task"]["rows"].get("validation", "-"))),
        f"{majority['metrics'][metric]:.1f}",
        "-" if words is None else f"{words['metrics'][metric]:.1f}",
        format_p(p).strip(" ()").removeprefix("p = ").removeprefix("p ") or "-",
        f"{run['best_step']} of {run['steps']}",
    ]


def _mean(group: Record) -> str:
    if not group["mean"]:
        return "failed"
    metric, value = next(iter(group["mean"].items()))
    deviation = group["std"][metric]
    return f"{metric} {value:.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")
