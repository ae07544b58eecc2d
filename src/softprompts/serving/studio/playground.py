"""Several prompts side by side on one text, and their ensemble."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import UserError
from ..answers import Asker, unless_gone
from ..concurrency import together
from ..engine import majority
from ..gate import exchange_of
from ..http_errors import HttpError, as_http
from ..requests import QueueFull, Sampling, ServedPrompt
from .context import Page, Studio, Visit, score_of
from .markup import (
    ROOT,
    Child,
    Html,
    answers_area,
    bar,
    element,
    field,
    link,
    notice,
    paragraph,
    prompt_link,
    text,
)

PATH = f"{ROOT}/playground"
MOST_PROMPTS = 12
"""Prompts that are asked at once."""
MOST_LISTED = 200
"""Prompts to choose among; others are named."""
MOST_BARS = 8
"""Labels whose probabilities are shown."""


@dataclass(frozen=True)
class Result:
    """One prompt's answer to the text, or why there is none."""

    name: str
    answer: str = ""
    probabilities: Mapping[str, float] | None = None
    route: Sequence[float] | None = None
    seconds: float = 0.0
    error: str = ""


async def show(studio: Studio, visit: Visit) -> Page:
    prompts = await visit.prompts(studio)
    others = [name.strip() for name in visit.value("others").split(",")]
    chosen = list(dict.fromkeys(filter(None, [*visit.values("prompt"), *others])))
    question = visit.value("text")
    answers = None
    if visit.request.method == "POST":
        answers = await _answers(studio, visit, chosen, prompts, question)
    body = [
        paragraph("One text, several prompts, one batch of one frozen model."),
        _form(prompts, chosen, question),
        answers_area(answers),
    ]
    return Page("Playground", text(body), PATH)


async def _answers(
    studio: Studio, visit: Visit, chosen: list[str], prompts: Sequence[ServedPrompt], question: str
) -> Html:
    by_name = {prompt.name: prompt for prompt in prompts}
    unknown = [name for name in chosen if name not in by_name]
    if unknown:
        return notice(f"There is no prompt {unknown[0]!r}.", error=True)
    if not chosen or not question:
        return notice("Choose at least one prompt, and write a text.", error=True)
    if len(chosen) > MOST_PROMPTS:
        return notice(f"Choose at most {MOST_PROMPTS} prompts.", error=True)
    work = _ask_all(studio, visit, [by_name[name] for name in chosen], _row(question))
    results = await unless_gone(visit.request, work)
    return element("div", _ensembles(results), map(_result_card, results), class_="cards")


async def _ask_all(
    studio: Studio, visit: Visit, prompts: Sequence[ServedPrompt], row: str | dict[str, Any]
) -> list[Result]:
    """The answers of all prompts, which are asked when all are in memory, to share a batch."""
    exchange_of(visit.request).prompt = prompts[-1].name
    await studio.engine.preload((prompt.name for prompt in prompts), studio.timeout)
    return await together(_ask(visit.asker(studio, prompt.name), prompt, row) for prompt in prompts)


def _row(question: str) -> str | dict[str, Any]:
    """A text, or a row of several columns as JSON."""
    if question.startswith("{"):
        try:
            row = json.loads(question)
        except json.JSONDecodeError:
            return question
        if isinstance(row, dict):
            return row
    return question


async def _ask(asker: Asker, prompt: ServedPrompt, row: str | dict[str, Any]) -> Result:
    name, began = prompt.name, time.perf_counter()
    try:
        if prompt.labels:
            one = await asker.classify(row)
            seconds = time.perf_counter() - began
            return Result(name, one.label, one.probabilities, one.route, seconds)
        pieces = [p async for _, p in asker.pieces([row], Sampling(stream=False), labels=False)]
        answer = "".join(piece.text for piece in pieces)
        return Result(name, answer, seconds=time.perf_counter() - began)
    except QueueFull:
        raise
    except (UserError, HttpError) as error:
        http = error if isinstance(error, HttpError) else as_http(error, name)
        return Result(name, error=str(http.detail))


def _ensembles(results: Sequence[Result]) -> list[Html]:
    """What prompts with the same labels say together: their mean probabilities. Prompts that
    generate vote."""
    groups: dict[frozenset[str], list[Result]] = {}
    for result in results:
        if not result.error:
            groups.setdefault(frozenset(result.probabilities or ()), []).append(result)
    return [_ensemble(group) for group in groups.values() if len(group) > 1]


def _ensemble(group: Sequence[Result]) -> Html:
    names = ", ".join(result.name for result in group)
    scored = [result.probabilities for result in group if result.probabilities]
    if scored:
        mean = {label: sum(part[label] for part in scored) / len(scored) for label in scored[0]}
        answer, how = max(mean, key=mean.__getitem__), f"The mean of {names}."
        return _answer_card("Ensemble", answer, mean, [paragraph(how)], "card ensemble")
    answers = [result.answer for result in group]
    answer = majority(answers)
    how = f"Majority vote of {names}: {answers.count(answer)} of {len(answers)} agree."
    return _answer_card("Ensemble", answer, None, [paragraph(how)], "card ensemble")


def _result_card(result: Result) -> Html:
    title = prompt_link(result.name)
    if result.error:
        return element(
            "article", element("h2", title), notice(result.error, error=True), class_="card"
        )
    notes: list[Child] = [paragraph(f"{result.seconds * 1000:.0f} ms", class_="hint")]
    if result.route is not None:
        best = max(range(len(result.route)), key=result.route.__getitem__)
        share = result.route[best]
        notes.insert(0, paragraph(f"Routed to prompt {best} of {len(result.route)} ({share:.0%})."))
    return _answer_card(title, result.answer, result.probabilities, notes, "card")


def _answer_card(
    title: Child,
    answer: str,
    probabilities: Mapping[str, float] | None,
    notes: Sequence[Child],
    class_: str,
) -> Html:
    bars: Child = None
    if probabilities:
        ranked = sorted(probabilities.items(), key=lambda pair: -pair[1])[:MOST_BARS]
        rows = [
            element(
                "li",
                element("span", label),
                bar(share),
                element("span", f"{share:.1%}", class_="number"),
            )
            for label, share in ranked
        ]
        left = len(probabilities) - len(ranked)
        more = paragraph(f"and {left} more labels", class_="hint") if left else None
        bars = [element("ul", rows, class_="bars", aria_label="Probabilities"), more]
    return element(
        "article",
        element("h2", title),
        element("p", answer or "(an empty answer)", class_="answer"),
        bars,
        *notes,
        class_=class_,
    )


def _form(prompts: Sequence[ServedPrompt], chosen: Sequence[str], question: str) -> Html:
    ranked = sorted(prompts, key=lambda prompt: (prompt.name not in chosen, prompt.name))
    listed = ranked[: max(MOST_LISTED, len(chosen))]
    boxes = [_choice(prompt, prompt.name in chosen) for prompt in listed]
    find = element("input", type="search", id="find", data_filter="choices", autocomplete="off")
    others: Child = None
    if len(listed) < len(prompts):
        control = element("input", name="others", id="others")
        hint = f"{len(prompts) - len(listed):,} prompts are not listed; separate names with commas."
        others = field("Other prompts", control, "others", hint)
    box = element(
        "textarea",
        question,
        name="text",
        id="text",
        rows=4,
        required=True,
        aria_describedby="text-hint",
    )
    hint = 'A prompt with several columns takes a row such as {"premise": "…", "hypothesis": "…"}.'
    return element(
        "form",
        field("Text", box, "text", hint),
        element(
            "fieldset",
            element("legend", "Prompts"),
            field("Find", find, "find") if len(prompts) > 8 else None,
            element("ul", boxes, id="choices", class_="choices"),
            others,
        ),
        element("button", "Run", type="submit"),
        paragraph("There is no prompt yet; ", link(f"{ROOT}/tune", "tune one"), ".")
        if not prompts
        else None,
        method="post",
        action=PATH,
        class_="card",
        data_replaces="answers",
    )


def _choice(prompt: ServedPrompt, checked: bool) -> Html:
    score = score_of(prompt.card)
    task = prompt.card.task.name + ("" if score is None else f", {score[1]:.1f}")
    box = element("input", type="checkbox", name="prompt", value=prompt.name, checked=checked)
    return element("li", element("label", box, f" {prompt.name} ", element("small", task)))
