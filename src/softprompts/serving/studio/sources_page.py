"""Which prompt should a new task start from? Judged by a few pasted examples."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from ...errors import UserError
from ...tasks import Row
from ..answers import unless_gone
from ..requests import BadRequest, Fit, ServedPrompt
from .columns import Columns, guess_columns, parse_rows
from .context import Page, Studio, Visit, score_of
from .markup import (
    ROOT,
    Html,
    answers_area,
    bar,
    button_form,
    element,
    field,
    link,
    notice,
    paragraph,
    prompt_link,
    table,
    text,
)

PATH = f"{ROOT}/sources"
MOST_ROWS = 64
SHOWN = 10


async def show(studio: Studio, visit: Visit) -> Page:
    pasted = visit.value("rows")
    results = await _results(studio, visit, pasted) if visit.request.method == "POST" else None
    body = [
        paragraph(
            "Paste a few labelled examples of your task. Each prompt that reads such rows is "
            "asked how probable it finds their labels; the best ones know your task already, or "
            "are good starts for it."
        ),
        _form(pasted),
        answers_area(results),
    ]
    return Page("Sources", text(body), PATH)


def _form(pasted: str) -> Html:
    box = element(
        "textarea",
        pasted,
        name="rows",
        id="rows",
        rows=8,
        required=True,
        spellcheck="false",
        placeholder="text,label\nThe whole office is offline!,high\nNo rush.,low",
    )
    hint = f"CSV with a header, or a JSON object per line; up to {MOST_ROWS} rows."
    return element(
        "form",
        field("Labelled examples", box, "rows", hint),
        element("button", "Find sources", type="submit"),
        method="post",
        action=PATH,
        class_="card",
        data_replaces="answers",
    )


async def _results(studio: Studio, visit: Visit, pasted: str) -> Html:
    rows = (await asyncio.to_thread(parse_rows, pasted))[:MOST_ROWS]
    prompts = {prompt.name: prompt for prompt in await visit.prompts(studio)}
    columns = guess_columns(rows)
    for number, row in enumerate(rows, 1):
        for name in (columns.text, columns.label):
            if row.values.get(name) in (None, ""):
                raise UserError(f"Row {number} has no {name}; complete it, or leave it out.")
    search = studio.engine.search(
        [_as_read(row, columns, list(prompts.values())) for row in rows],
        SHOWN,
        names=list(prompts),
        timeout=studio.timeout,
    )
    read = paragraph(f"Texts are in the column {columns.text}, labels in {columns.label}.")
    try:
        fits = await unless_gone(visit.request, search)
    except BadRequest:
        fits = []
    if not fits:
        return text([read, _nothing(rows, columns)])
    can_tune = visit.unrestricted and studio.runs.library is not None
    start = _start_form(fits[0], pasted) if can_tune else None
    return text([read, _table(fits, prompts), start])


def _as_read(row: Row, columns: Columns, prompts: Sequence[ServedPrompt]) -> dict[str, Any]:
    """A row that also has its text and label under the names that the prompts read them by."""
    values = dict(row.values)
    for prompt in prompts:
        form = prompt.card.task.form
        if form is not None and len(form.columns) == 1:
            values.setdefault(form.columns[0], values[columns.text])
            values.setdefault(form.label, values[columns.label])
    return values


def _nothing(rows: Sequence[Row], columns: Columns) -> Html:
    labels = ", ".join(dict.fromkeys(str(row.values.get(columns.label)) for row in rows))
    return notice(
        f"No prompt answers with these labels ({labels[:200]}). ",
        link(f"{ROOT}/tune", "Tune a prompt"),
        " on your rows; its page then shows the most similar tasks to start from.",
    )


def _table(fits: Sequence[Fit], prompts: dict[str, ServedPrompt]) -> Html:
    rows = []
    for fit in fits:
        card = prompts[fit.name].card
        score = score_of(card)
        probability = math.exp(fit.score)
        rows.append(
            [
                [prompt_link(fit.name), element("small", card.task.name)],
                element(
                    "span",
                    bar(probability),
                    f"{probability:.0%}",
                    class_="score",
                ),
                "" if score is None else f"{score[1]:.1f}",
            ]
        )
    caption = "Prompts by the probability that they give to the labels"
    columns = ["Prompt and task", "Probability", "Score on its task"]
    return table(caption, columns, rows, numbers=[2], class_="sources")


def _start_form(best: Fit, pasted: str) -> Html:
    """A button that takes the rows to the page where a run is started."""
    return button_form(
        f"{ROOT}/tune",
        f"Tune on these rows, starting from {best.name}",
        element("input", type="hidden", name="rows", value=pasted),
        element("input", type="hidden", name="start", value=best.name),
    )
