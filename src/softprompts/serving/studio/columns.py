"""Pasted and uploaded rows: which columns hold the text and the label."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from ...tasks import Row, read_rows

LABEL_NAMES = frozenset(
    {"label", "labels", "target", "class", "category", "answer", "output", "summary", "y"}
)
MOST_CLASSES = 0.5
"""Distinct labels per row from which on they count as free text."""


@dataclass(frozen=True)
class Columns:
    """The columns of rows, and what they seem to hold."""

    names: list[str]
    text: str
    label: str
    free_text: bool
    """Whether the labels are texts to generate, and not classes."""


def guess_columns(rows: Sequence[Row]) -> Columns:
    """The label is in a column of such a name, or else in the one with the fewest values; the text
    is in the other column with the longest ones."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    if len(names) < 2:
        columns = f"one column, {names[0]!r}" if names else "no columns"
        raise UserError(f"The rows have {columns}; they need a text and a label, and a header.")
    values = {name: [str(row.values.get(name) or "") for row in rows] for name in names}
    named = [name for name in names if name.lower() in LABEL_NAMES]
    repeated = [name for name in names if len(set(values[name])) > 1]
    label = next(iter(named), None) or min(
        repeated or names, key=lambda name: (len(set(values[name])), -names.index(name))
    )
    lengths = {name: sum(map(len, values[name])) for name in names if name != label}
    distinct = len(set(values[label]))
    free_text = len(rows) >= 20 and distinct > MOST_CLASSES * len(rows)
    return Columns(names, max(lengths, key=lengths.__getitem__), label, free_text)


def ending_of(text: str) -> str:
    """The ending of a file of pasted rows: CSV or TSV with a header, or JSON."""
    first = text.strip().partition("\n")[0]
    if first.startswith(("{", "[")):
        return ".jsonl" if first.startswith("{") else ".json"
    return ".tsv" if "\t" in first else ".csv"


def parse_rows(text: str) -> list[Row]:
    """Pasted rows: CSV or TSV with a header, or JSON."""
    if not text.strip():
        raise UserError("There are no rows; paste some, with a header such as text,label.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"rows{ending_of(text)}"
        path.write_text(text.strip() + "\n", encoding="utf-8")
        try:
            rows = read_rows(str(path))
        except UserError as error:
            raise UserError(error.message.replace(str(path), "The pasted text")) from None
    if not rows:
        raise UserError("There is only a header; paste some rows below it.")
    return rows
