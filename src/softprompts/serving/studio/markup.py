"""HTML as Python values: elements whose texts are escaped, and the frame of every page."""

import html
from collections.abc import Iterable, Sequence
from urllib.parse import quote

ROOT = "/studio"
VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
PAGES = {
    ROOT: "Library",
    f"{ROOT}/map": "Map",
    f"{ROOT}/playground": "Playground",
    f"{ROOT}/sources": "Sources",
    f"{ROOT}/tune": "Tune",
    f"{ROOT}/studies": "Studies",
}
"""The pages of the navigation bar, by path."""


class Html(str):
    """Markup, which is not escaped again."""

    __slots__ = ()


Child = str | float | Iterable["Child"] | None
"""What an element may hold: markup, text that is to be escaped, numbers, or several of these."""


def text(child: Child) -> Html:
    if isinstance(child, Html):
        return child
    if child is None:
        return Html()
    if isinstance(child, str | int | float):
        return Html(html.escape(str(child)))
    return Html("".join(map(text, child)))


def element(tag: str, *children: Child, **attributes: str | float | bool | None) -> Html:
    """An element; `class_` and `aria_label` become class and aria-label, True a bare attribute, and
    None or False none."""
    parts = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        parts.append(name if value is True else f'{name}="{html.escape(str(value))}"')
    opening = f"<{' '.join(parts)}>"
    return Html(opening if tag in VOID else f"{opening}{text(children)}</{tag}>")


def section(title: str, *children: Child, level: int = 2) -> Html:
    return element("section", element(f"h{level}", title), *children)


def paragraph(*children: Child, class_: str | None = None) -> Html:
    return element("p", *children, class_=class_)


def link(path: str, *children: Child, **attributes: str | bool | None) -> Html:
    return element("a", *children, href=path, **attributes)


def prompt_path(name: str, part: str = "") -> str:
    return f"{ROOT}/prompts/{quote(name, safe='')}{part}"


def playground_path(name: str) -> str:
    """The playground with a prompt chosen."""
    return f"{ROOT}/playground?prompt={quote(name, safe='')}"


def prompt_link(name: str) -> Html:
    return link(prompt_path(name), name)


def table(
    caption: str,
    columns: Sequence[Child],
    rows: Iterable[Sequence[Child]],
    numbers: Iterable[int] = (),
    class_: str | None = None,
    titled: bool = False,
) -> Html:
    """A table whose first column names its rows; those in `numbers` are set right.

    `titled`: a heading above says what the caption does, which is for screen readers then.
    """
    right = set(numbers)

    def cell(tag: str, index: int, value: Child, scope: str | None = None) -> Html:
        # A cell that is markup of a cell itself stays as it is.
        if isinstance(value, Html) and value.startswith("<td"):
            return value
        return element(tag, value, scope=scope, class_="number" if index in right else None)

    head = [cell("th", index, name, "col") for index, name in enumerate(columns)]
    body = [
        element(
            "tr",
            [
                cell("th" if index == 0 else "td", index, value, None if index else "row")
                for index, value in enumerate(row)
            ],
        )
        for row in rows
    ]
    whole = element(
        "table",
        element("caption", caption, class_="unseen" if titled else None),
        element("thead", element("tr", head)),
        element("tbody", body),
        class_=class_,
    )
    return element("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def facts(pairs: Iterable[tuple[str, Child]]) -> Html:
    """Names and values; those without a value are left out."""
    return element(
        "dl",
        [
            element("div", element("dt", name), element("dd", value))
            for name, value in pairs
            if value not in (None, "")
        ],
    )


def bar(share: float) -> Html:
    """A share from 0 to 1 as a bar, beside its number."""
    width = max(0.0, min(1.0, share)) * 100
    return element(
        "svg",
        element("rect", class_="track", width=100, height=10),
        element("rect", class_="fill", width=f"{width:.1f}", height=10),
        class_="bar",
        aria_hidden="true",
        viewBox="0 0 100 10",
        preserveAspectRatio="none",
    )


def shortened(words: str, most: int) -> str:
    """At most so many characters."""
    return words if len(words) <= most else f"{words[: most - 1]}…"


def capitalized(words: str) -> str:
    """With a capital first letter; the rest stays as it is."""
    return words[:1].upper() + words[1:]


def notice(*children: Child, error: bool = False) -> Html:
    return element(
        "p",
        *children,
        class_="notice error" if error else "notice",
        role="alert" if error else None,
    )


def button_form(action: str, label: str, *inputs: Child, **attributes: str | bool) -> Html:
    """A form that is only a button."""
    button = element("button", label, type="submit", **attributes)
    return element("form", *inputs, button, method="post", action=action)


def answers_area(answers: Html | None) -> Html:
    """Where `studio.js` puts the answers to a form."""
    return element("div", answers, id="answers", aria_live="polite" if answers is None else None)


def field(label: str, control: Html, identity: str, hint: str = "") -> Html:
    """A control with its label; the control has the id `identity`."""
    return element(
        "div",
        element("label", label, for_=identity),
        control,
        element("p", hint, class_="hint", id=f"{identity}-hint") if hint else None,
        class_="field",
    )


def options(values: Iterable[str], chosen: str | None) -> list[Html]:
    return [element("option", value, value=value, selected=value == chosen) for value in values]


def page(title: str, *body: Child, current: str = "") -> Html:
    """A whole page; `current` is the path of its entry in the navigation bar."""
    entries = [
        element("li", link(path, name, aria_current="page" if path == current else None))
        for path, name in PAGES.items()
    ]
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} · softprompts studio"),
        element("link", rel="icon", href=f"{ROOT}/static/icon.svg", type="image/svg+xml"),
        element("link", rel="stylesheet", href=f"{ROOT}/static/studio.css"),
        element("script", src=f"{ROOT}/static/studio.js", defer=True),
    )
    header = element(
        "header",
        link("#main", "Skip to the content", class_="skip"),
        link(ROOT, "softprompts studio", class_="brand"),
        element("nav", element("ul", entries), aria_label="Pages"),
    )
    main = element("main", element("h1", title), *body, id="main", tabindex="-1")
    return Html(f"<!doctype html>{element('html', head, element('body', header, main), lang='en')}")
