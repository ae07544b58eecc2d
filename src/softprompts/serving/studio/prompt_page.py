"""A prompt's page: its card, learning curve, confusion, nearest words, routing, and errors."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...analysis.explain import Explanation, explain, plain_word
from ...analysis.explain_page import findings
from ...analysis.explain_page import name as token_name
from ...analysis.runs import read_runs
from ...analysis.summary import summarize
from ...artifacts.card import Card
from ...artifacts.run_folder import RunFolder
from ...config import TaskConfig
from ...errors import UserError
from ...library.library import Library, Match
from ...library.library import ignore as ignore_warning
from ...tasks import Example, load_task
from ..answers import unless_gone
from ..concurrency import together
from ..example_fit import PRIORITY
from ..http_errors import HttpError
from ..jobs import Job, ignore
from ..prompt_store import LoadedPrompt
from ..requests import Classified, ServedPrompt
from .context import Page, Studio, Visit, figures, score_of, size_of
from .markup import (
    Child,
    Html,
    bar,
    element,
    facts,
    link,
    notice,
    paragraph,
    playground_path,
    prompt_link,
    prompt_path,
    section,
    shortened,
    table,
    text,
)

SHADES = 10
"""Shades of a confusion matrix; `studio.css` has them."""
MOST_CLASSES = 30
"""Classes of a confusion matrix that is shown."""
CHECKED_ROWS = 64
"""Validation rows that are answered again to find errors."""
SHOWN_ERRORS = 50
SIMILAR = 5
"""Similar prompts that are shown."""
ROUTED_ROWS = 256
SHOWN_LETTERS = 80
"""Of an example in a table of many."""


async def show(studio: Studio, visit: Visit) -> Page:
    served = await visit.prompt(studio, visit.name)
    card = served.card
    curves = await asyncio.to_thread(_curves, card, served.name)
    parts: list[Child] = [
        paragraph(
            _summary(served),
            " ",
            link(playground_path(served.name), "Try it in the playground"),
            ".",
        ),
        section("Card", _card(served)),
        section("Scores", _scores(card)) if card.scores else None,
        section("Learning curve", curves) if curves else None,
        _confusion(card),
        section("Nearest words", _loaded(served.name, "words", "Show the nearest words", True)),
    ]
    if visit.unrestricted:
        wrong = _loaded(served.name, "errors", "Answer its validation rows again", False)
        parts.append(section("Examples it gets wrong", wrong))
    if _library_of(studio, card) is not None:
        similar_part = _loaded(served.name, "similar", "Show the most similar prompts", True)
        parts.append(section("Similar tasks", similar_part))
    return Page(served.name, text(parts))


def _loaded(name: str, part: str, label: str, at_once: bool) -> Html:
    """A part of the page that takes long, behind a link; `at_once` if it is shown unasked."""
    path = prompt_path(name, f"/{part}")
    anchor = link(path, label, data_load="now" if at_once else "click")
    return element("div", anchor, aria_live="polite")


def _summary(served: ServedPrompt) -> str:
    score = score_of(served.card)
    labels = served.labels
    answers = f"chooses among {len(labels)} labels" if labels else "generates free text"
    judged = "" if score is None else f", with {score[0]} {score[1]:.1f}"
    return f"A prompt for {served.card.task.name}: {answers}{judged}."


# -- the card --------------------------------------------------------------------------------------


def _card(served: ServedPrompt) -> Html:
    card = served.card
    form, rows = card.task.form, card.task.rows
    start = card.start
    sources = ", ".join(source.rsplit("/", 1)[-1] for source in card.sources)
    steps = f"{card.steps:,}, best at {card.best_step:,}" if card.steps and card.best_step else None
    return facts(
        [
            ("Task", card.task.name),
            ("Reads", ", ".join(form.columns) if form else None),
            ("Answers", ", ".join(served.labels) or "free text"),
            ("Backbone", card.backbone.name),
            ("Method", card.method),
            ("Size", size_of(card)),
            ("Route", card.prompt.route.kind if card.prompt.count > 1 else None),
            ("Start", f"{start.kind} {sources}".strip() if start else None),
            ("Rows", ", ".join(f"{count:,} {split}" for split, count in rows.items() if count)),
            ("Steps", steps),
            ("Ended early", card.stopped),
            (
                "Trained parameters",
                f"{card.trained_parameters:,}" if card.trained_parameters else None,
            ),
            ("Seed", None if card.seed is None else str(card.seed)),
            ("Version", card.version),
        ]
    )


def _scores(card: Card) -> Html:
    rows: list[list[Child]] = []
    for split, report in card.scores.items():
        baselines: dict[str, Any] = report.get("baselines") or {}
        for metric, value in (report.get("metrics") or {}).items():
            interval = (report.get("intervals") or {}).get(metric)
            others = [
                f"{name.replace('_', ' ')} {part['metrics'][metric]:.1f}"
                for name, part in baselines.items()
                if metric in part.get("metrics", {})
            ]
            between = f"{interval[0]:.1f} to {interval[1]:.1f}" if interval else ""
            rows.append([f"{metric}, {split}", f"{value:.1f}", between, "; ".join(others)])
    return table(
        "Scores",
        ["Metric", "Score", "95 % interval", "Baselines"],
        rows,
        numbers=[1, 2],
        titled=True,
    )


def _curves(card: Card, name: str) -> Html | None:
    if card.path is None:
        return None
    with suppress(UserError):
        curves = summarize(read_runs(card.path.parent))["curves"]
        for curve in curves:
            if len(curve["arms"]) == 1:
                curve["arms"] = {name: next(iter(curve["arms"].values()))}
        return figures(curves)
    return None


def _confusion(card: Card) -> Html | None:
    """Targets and predictions of the rows that the prompt is judged by."""
    counts: dict[str, dict[str, int]] = card.judged.get("confusion") or {}
    labels = list(dict.fromkeys([*counts, *(name for row in counts.values() for name in row)]))
    if not labels or len(labels) > MOST_CLASSES:
        return None
    rows: list[list[Child]] = []
    for target in labels:
        row = counts.get(target, {})
        total = sum(row.values()) or 1
        rows.append([target, *(_shaded(row.get(label, 0), total) for label in labels)])
    caption = "Rows by target (down) and prediction (across)"
    columns: list[Child] = ["Target", *labels]
    return section("Confusion", table(caption, columns, rows, class_="heat"))


def _long(words: str) -> Html:
    """A cell that stays wide enough to read on a phone."""
    return element("td", words, class_="long")


def _shaded(count: int, total: int) -> Html:
    return element("td", count or "·", class_=f"number shade-{round(count / total * SHADES)}")


# -- nearest words ---------------------------------------------------------------------------------


async def words(studio: Studio, visit: Visit) -> Page:
    """What its tokens are close to, and what a mixture sends where."""
    served = await visit.prompt(studio, visit.name)
    loaded = await asyncio.to_thread(studio.engine.store.load, served.name)
    if not loaded.tuned.prompt.table.shape[1]:
        return Page(f"{served.name}: nearest words", notice("This prompt has no tokens."))
    explanation = await studio.cached(
        f"words {served.name}",
        loaded.stamp,
        lambda: asyncio.to_thread(_explain, loaded, served.card),
    )
    body = [
        element("ul", [element("li", sentence) for sentence in findings(explanation)]),
        _word_tables(explanation),
        _routing(explanation, visit.unrestricted),
    ]
    return Page(f"{served.name}: nearest words", text(body))


def _explain(loaded: LoadedPrompt, card: Card) -> Explanation:
    rows = _own_rows(card)[:ROUTED_ROWS] if card.prompt.count > 1 else []
    history = [] if card.path is None else RunFolder(card.path.parent).history()
    return explain(loaded.tuned, rows, worth=False, history=history)


def _word_tables(explanation: Explanation) -> list[Html]:
    """A table for each prompt of a mixture; all but the first are folded away."""
    prompts: dict[int, list[list[Child]]] = {}
    for token in explanation.tokens:
        words = [f"{plain_word(n.word) or n.word} {n.cosine:.2f}" for n in token.neighbours]
        row: list[Child] = [token_name(token, explanation), ", ".join(words)]
        prompts.setdefault(token.prompt, []).append(row)
    tables = [
        table(
            f"The words nearest to each token{f' of prompt {k}' * (len(prompts) > 1)}",
            ["Token", "Nearest words and their cosines"],
            rows,
            class_="texts",
        )
        for k, rows in prompts.items()
    ]
    first, *others = tables
    if not others:
        return [first]
    more = f"{len(others)} more prompt{'s' if len(others) > 1 else ''}"
    return [first, element("details", element("summary", more), *others)]


def _routing(explanation: Explanation, with_texts: bool) -> Html | None:
    if not explanation.routing:
        return None
    total = sum(part.rows for part in explanation.routing) or 1
    rows: list[list[Child]] = []
    for part in explanation.routing:
        if part.rows:
            share = [bar(part.rows / total), f"{part.rows:,}"]
            classes = ", ".join(f"{label} {count}" for label, count in part.classes.items())
            examples = " · ".join(shortened(example, SHOWN_LETTERS) for example in part.examples)
            rows.append(
                [
                    element("span", f"prompt {part.prompt}", class_="score"),
                    element("span", share, class_="score"),
                    _long(classes),
                    *([_long(examples)] if with_texts else []),
                ]
            )
    columns: list[Child] = ["Prompt", "Rows", "Classes", *(["Examples"] if with_texts else [])]
    idle = len(explanation.routing) - len(rows)
    caption = f"Where the router sends {total:,} validation rows"
    return section(
        "Routing",
        table(caption, columns, rows, class_="texts"),
        paragraph(f"{idle} of {len(explanation.routing)} prompts receive no rows.")
        if idle
        else None,
        level=3,
    )


# -- similar prompts -------------------------------------------------------------------------------


def _library_of(studio: Studio, card: Card) -> Path | None:
    """The library that a prompt is in; None if it is served from elsewhere."""
    folder = None if card.path is None else card.path.parent.parent
    return folder if folder in studio.engine.store.folders else None


async def similar(studio: Studio, visit: Visit) -> Page:
    """The prompts of its library whose tasks are most like its own."""
    served = await visit.prompt(studio, visit.name)
    title = f"{served.name}: similar tasks"
    matches = await asyncio.to_thread(_matches, studio, visit, served)
    if not matches:
        return Page(title, notice("There is no other prompt to compare it with."))
    rows = [[prompt_link(match.entry.name), f"{match.similarity:.3f}"] for match in matches]
    return Page(
        title, table("Similar tasks", ["Prompt", "Similarity"], rows, numbers=[1], titled=True)
    )


def _matches(studio: Studio, visit: Visit, served: ServedPrompt) -> list[Match]:
    library, path = _library_of(studio, served.card), served.card.path
    if library is None or path is None:
        return []
    hidden = {name for name in studio.engine.names() if not visit.key.allows(name)}
    return Library(library, ignore_warning).search(
        RunFolder(path.parent).task_vectors(),
        studio.engine.backbone.fingerprint,
        k=SIMILAR,
        without=hidden | {served.name},
    )


# -- errors ----------------------------------------------------------------------------------------


def _own_rows(card: Card) -> list[Example]:
    """The validation rows of the prompt's task, if they are on this machine."""
    with suppress(UserError):
        config = TaskConfig.of(card.task_settings)
        if config.task is not None or config.train is not None:
            return list(load_task(config).validation)
    return []


async def errors(studio: Studio, visit: Visit) -> Page:
    """The validation rows that it answers wrongly, the surest errors first."""
    served = await visit.prompt(studio, visit.name)
    if not visit.unrestricted:
        raise HttpError(403, "This key is for some prompts only, and may not read their rows.")
    title = f"{served.name}: examples it gets wrong"
    if not served.labels:
        return Page(title, notice("It generates free text, which is not simply right or wrong."))
    examples = (await asyncio.to_thread(_own_rows, served.card))[:CHECKED_ROWS]
    if not examples:
        return Page(title, notice("The rows of its task are not on this machine."))
    loaded = await asyncio.to_thread(studio.engine.store.load, served.name)
    wrong = await studio.cached(
        f"errors {served.name}",
        loaded.stamp,
        lambda: unless_gone(visit.request, _wrong(studio, loaded, examples)),
    )
    rows = [
        [str(number), _long(example.input), example.target, answer, f"{probability:.0%}"]
        for number, (example, answer, probability) in enumerate(wrong[:SHOWN_ERRORS], 1)
    ]
    count = f"{len(wrong):,} of {len(examples):,} validation rows are wrong."
    columns = ["Row", "Text", "Target", "Answer", "Probability"]
    listing = table(
        "Examples it gets wrong", columns, rows, numbers=[4], class_="texts", titled=True
    )
    return Page(title, text([paragraph(count), listing if wrong else None]))


async def _wrong(
    studio: Studio, loaded: LoadedPrompt, examples: Sequence[Example]
) -> list[tuple[Example, str, float]]:
    """Rows with another label than their target, and how probable it was. Whoever asks a prompt
    comes first."""
    deadline = time.monotonic() + studio.timeout
    jobs = [Job(loaded, e.input, "studio", PRIORITY, deadline, ignore) for e in examples]
    wrong = []
    size = max(1, studio.engine.limits.queue // 2)
    for first in range(0, len(jobs), size):
        some = slice(first, first + size)
        answers = await together([studio.engine.result(job) for job in jobs[some]])
        for example, answer in zip(examples[some], answers, strict=True):
            assert isinstance(answer, Classified)
            if answer.label != example.target:
                wrong.append((example, answer.label, answer.probabilities[answer.label]))
    return sorted(wrong, key=lambda error: -error[2])
