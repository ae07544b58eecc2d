"""The results of `softprompts tune` as text: one run's, and a cohort's as a table."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..analysis.spread import plus_minus
from ..artifacts.card import Card
from ..artifacts.file_names import COHORT_TABLE
from ..config import spell
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
    invalid_answers,
    joined,
)


def describe(tuned: Tuned) -> str:
    card, rows, cost = tuned.card, tuned.card.task.rows, tuned.cost
    truncated = (
        f"{card.cut_texts} of {rows['train']} training texts were truncated to "
        f"{card.max_length} tokens, prompt included"
    )
    skipped = f"{rows['skipped']} bad row{'s were' if rows['skipped'] > 1 else ' was'} skipped"
    best = f"best at step {card.best_step} of {card.steps}" if card.steps else "without training"
    saved = "prompt, its card and its learning curve" if card.steps else "prompt and its card"
    finished = "the run was already finished; --overwrite tunes it again" if card.steps else None
    return joined(
        f"{card.task.name} on {card.backbone.name}: {best}",
        *(line for split, report in card.scores.items() for line in describe_report(report, split)),
        *describe_classes(card.judged),
        invalid_answers(
            card.invalid or 0, rows["validation"], bool(card.steps) and not exploded(card)
        ),
        advice(card),
        skipped if rows["skipped"] else None,
        f"stopped early: {card.stopped}" if card.stopped else None,
        truncated if card.cut_texts else None,
        finished if cost is None else describe_cost(cost),
        f"the {saved} are in {tuned.folder}",
    )


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
    tested = any(run.get("test") for run in runs)
    cards = {Path(run["folder"]).name: Card.of(run) for run in runs if "metrics" in run}
    return joined(
        *aligned(_runs_table(runs, tested)),
        "intervals, rows, baselines and paired tests are those of the test rows"
        if tested
        else None,
        *(["", *aligned(_seeds_table(runs, tested))] if SEED in runs[0]["settings"] else []),
        _invalid(cards.values(), len(runs)),
        _advice(cards, len(runs)),
        *(f"{Path(run['folder']).name} failed: {run['stopped']}" for run in runs if run["failed"]),
        next((describe_cost(run["cost"]) for run in runs if run.get("cost")), None),
        f"the runs and {COHORT_TABLE} are in {folder}",
    )


def _runs_table(runs: Sequence[Record], tested: bool) -> list[list[str]]:
    header = [*runs[0]["settings"], "score", *(["test"] if tested else []), "95 % interval", "rows"]
    rows = [[*header, "majority class", "bag of words", "p vs best", "best step", "folder"]]
    for run in runs:
        settings = map(spell, run["settings"].values())
        rows.append([*settings, *_scores(run, tested), Path(run["folder"]).name])
    if all(run.get("p_vs_best") is None for run in runs):  # no two runs on the same rows
        column = rows[0].index("p vs best")
        rows = [row[:column] + row[column + 1 :] for row in rows]
    return rows


def _seeds_table(runs: Sequence[Record], tested: bool) -> list[list[str]]:
    names = [name for name in runs[0]["settings"] if name != SEED]
    rows = [[*names, "mean ± standard deviation", *(["test"] if tested else []), "seeds"]]
    for group in over_seeds(runs):
        means = [_mean(group), *([_mean(group["test"])] if tested else [])]
        failed = f", {group['failed']} failed" if group["failed"] else ""
        settings = map(spell, group["settings"].values())
        rows.append([*settings, *means, f"{group['runs']}{failed}"])
    return rows


def _invalid(cards: Collection[Card], runs: int) -> str | None:
    poor = sum(
        invalid_answers(card.invalid or 0, card.task.rows["validation"]) is not None
        for card in cards
    )
    trained = any(card.steps and not exploded(card) for card in cards)
    note = f"in {poor} of {runs} runs over a fifth of the answers matched no label; "
    return note + advice_on_labels(trained) if poor else None


def _advice(cards: Mapping[str, Card], runs: int) -> str | None:
    notes = [f"{name}: {text}" for name, card in cards.items() if (text := advice(card))]
    poor = f"{len(notes)} of {runs} runs are no better than a baseline; for example, "
    return poor + notes[0] if notes else None


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
    return f"{metric} {plus_minus({'mean': value, 'std': group['std'][metric]})}"
