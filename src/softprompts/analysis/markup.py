"""Tables and pages as Markdown and HTML."""

import html
import re
from collections.abc import Iterable, Sequence

WEAK = "†"
"""Marks a task that nothing can be concluded from."""
BOLD = r"^\*\*(.*)\*\*$", r"<b>\1</b>"
"""In Markdown, and in HTML."""
TEXT_COLUMNS = ("against", "task", "settings", "")
"""Columns of words, which begin at the left."""


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [list(columns), ["---"] * len(columns), *([*row] for row in rows)]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped)


def html_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column names the rows; wide ones scroll."""
    kinds = [" class='text'" if name in TEXT_COLUMNS else "" for name in columns]
    head = "".join(
        f"<th scope='col'{kind}>{html.escape(name)}</th>"
        for name, kind in zip(columns, kinds, strict=True)
    )
    body = "".join(
        f"<tr><th scope='row'>{html.escape(row[0])}</th>"
        + "".join(
            f"<td{kind}>{re.sub(*BOLD, html.escape(cell))}</td>"
            for cell, kind in zip(row[1:], kinds[1:], strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return (
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        "</div>"
    )


def html_page(title: str, style: str, body: str) -> str:
    """A page without anything from outside."""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{html.escape(title)}</title><style>{style}</style></head>"
        f"<body><main><h1>{html.escape(title)}</h1>{body}</main></body></html>\n"
    )
