"""The library as a table that can be searched and sorted."""

from collections.abc import Callable
from urllib.parse import urlencode

from ..requests import ServedPrompt
from .context import Page, Studio, Visit, is_number, score_of, size_of
from .markup import (
    ROOT,
    Child,
    Html,
    bar,
    element,
    field,
    link,
    notice,
    options,
    paragraph,
    prompt_link,
    table,
    text,
)

ROWS = 50
"""Prompts on a page."""
SORTS: dict[str, Callable[[ServedPrompt], object]] = {
    "name": lambda prompt: prompt.name,
    "score": lambda prompt: (-(score_of(prompt.card) or ("", -1.0))[1], prompt.name),
    "newest": lambda prompt: (-prompt.created, prompt.name),
    "task": lambda prompt: (prompt.card.task.name, prompt.name),
}


async def show(studio: Studio, visit: Visit) -> Page:
    prompts = await visit.prompts(studio)
    query, sort = visit.value("q"), visit.value("sort", "name")
    sort = sort if sort in SORTS else "name"
    matches = sorted((p for p in prompts if matches_query(p, query)), key=SORTS[sort])  # type: ignore[arg-type]
    page = visit.value("page")
    last_page = -(-len(matches) // ROWS)
    first = max(0, min(int(page) if is_number(page) else 1, last_page) - 1) * ROWS
    shown = matches[first : first + ROWS]
    body = [
        paragraph(
            f"{len(prompts):,} prompt{'s' * (len(prompts) != 1)} of {studio.engine.backbone.name}, "
            "served by one frozen model. Choose one to see what it learned, or several to try them "
            "on one text."
        ),
        _search_form(query, sort),
        element("div", _results(shown, len(matches), first, query, sort), id="results"),
    ]
    return Page("Library", text(body), ROOT)


def matches_query(prompt: ServedPrompt, query: str) -> bool:
    """Whether all words of a query are in the prompt's name, task, labels or method."""
    card = prompt.card
    words = [prompt.name, card.task.name, card.method or "", *prompt.labels]
    known = " ".join(words).lower()
    return all(word in known for word in query.lower().split())


def _search_form(query: str, sort: str) -> Html:
    box = element("input", type="search", name="q", id="q", value=query, autocomplete="off")
    order = element("select", options(SORTS, sort), name="sort", id="sort")
    return element(
        "form",
        field("Search names, tasks and labels", box, "q"),
        field("Sort by", order, "sort"),
        element("button", "Search", type="submit"),
        method="get",
        action=ROOT,
        role="search",
        class_="row",
        data_live="results",
    )


def _results(
    shown: list[ServedPrompt], total: int, first: int, query: str, sort: str
) -> list[Child]:
    if not shown:
        why = "No prompt matches." if query else "There is no prompt yet."
        return [
            element("p", why, role="status"),
            notice("Tune one on ", link(f"{ROOT}/tune", "your own rows"), "."),
        ]
    rows = [
        [
            [
                element(
                    "input",
                    type="checkbox",
                    name="prompt",
                    value=prompt.name,
                    aria_label=f"Try {prompt.name}",
                ),
                " ",
                prompt_link(prompt.name),
                element("small", prompt.card.task.name),
            ],
            _score(prompt),
            _answers(prompt.labels),
            prompt.card.method or "",
            size_of(prompt.card),
        ]
        for prompt in shown
    ]
    columns: list[Child] = ["Prompt and task", "Score", "Answers", "Method", "Size"]
    count = element(
        "p",
        f"{first + 1:,} to {first + len(shown):,} of {total:,} prompt{'s' * (total != 1)}",
        role="status",
    )
    chosen = element(
        "form",
        table("Prompts of the library", columns, rows, class_="prompts", titled=True),
        element("button", "Try the chosen prompts", type="submit"),
        method="get",
        action=f"{ROOT}/playground",
    )
    return [count, chosen, _pages(first, total, query, sort)]


def _answers(labels: list[str]) -> str:
    if not labels:
        return "free text"
    more = f" and {len(labels) - 4} more" if len(labels) > 4 else ""
    return ", ".join(labels[:4]) + more


def _score(prompt: ServedPrompt) -> Child:
    score = score_of(prompt.card)
    if score is None:
        return "not scored"
    metric, value = score
    return element(
        "span",
        bar(value / 100),
        f"{value:.1f} ",
        element("small", metric),
        class_="score",
    )


def _pages(first: int, total: int, query: str, sort: str) -> Html | None:
    """Links to the pages before and after."""

    def path(start: int) -> str:
        return f"{ROOT}?{urlencode({'q': query, 'sort': sort, 'page': start // ROWS + 1})}"

    links = [
        link(path(first - ROWS), "Earlier", rel="prev") if first else None,
        link(path(first + ROWS), "Later", rel="next") if first + ROWS < total else None,
    ]
    return (
        element("nav", links, aria_label="Pages of the table", class_="row")
        if total > ROWS
        else None
    )
