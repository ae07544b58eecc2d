"""Form: how a row becomes the texts that a model reads and writes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import UserError
from .definition import PREDICT, Definition, Example
from .registry import definition
from .sources import Row

_FIELD = re.compile(r"\{([^{}]+)\}")
"""A column in a template: `{premise}`."""


class UnknownLabelError(UserError):
    """A label that has no word."""


@dataclass(frozen=True)
class Form:
    """How rows become examples; all of it is data, so a prompt's card can carry it: a template and words, or the name of a task."""

    template: str
    label: str
    words: dict[str, str] = field(default_factory=dict)
    """Label value to label word."""
    task: str | None = None
    """The named task that makes the examples instead."""
    task_word: bool = True
    before: str = ""
    after: str = ""
    """What stands around every text: a written prompt, solved examples."""
    sentinel: bool = False
    """Whether the model writes a sentinel before every answer (`sentinel.py`)."""

    @property
    def definition(self) -> Definition | None:
        return definition(self.task) if self.task is not None else None

    @property
    def columns(self) -> list[str]:
        return list(self.definition.columns) if self.definition else _FIELD.findall(self.template)

    @property
    def labels(self) -> list[str]:
        """The label words, each once, in order."""
        return list(dict.fromkeys(self.words.values()))

    def made(self, row: Row, split: str) -> list[Example]:
        """A row's examples: one, or for some named tasks one for each question or answer, or none."""
        if self.definition is not None:
            found = list(self.definition.examples(row, split, self.task_word))
        else:
            text = _FIELD.sub(lambda field: _word(row, field[1]), self.template)
            found = [Example(text, "" if split == PREDICT else self._target(row))]
        return self.designed(found)

    def designed(self, examples: Sequence[Example]) -> list[Example]:
        """With what stands around every text."""
        if not self.before and not self.after:
            return list(examples)
        return [
            example._replace(input=f"{self.before}{example.input}{self.after}")
            for example in examples
        ]

    def inputs(self, row: Row) -> list[str]:
        """The texts of a row that is to be answered."""
        return [example.input for example in self.made(row, PREDICT)]

    def _target(self, row: Row) -> str:
        value = _word(row, self.label)
        if self.words and value not in self.words:
            known = ", ".join(self.words)
            raise UnknownLabelError(f"{row.where}: the label {value!r} is none of {known}.")
        return self.words.get(value, value)

    def check_columns(
        self, rows: Sequence[Row], fixes: Mapping[str, str] | None = None, labelled: bool = True
    ) -> None:
        """A column that no row has was misspelt, or is called otherwise there; `fixes` tells what to do about each."""
        if self.definition is not None or not rows:
            return
        for column in [*self.columns, *([self.label] if labelled else [])]:
            if not any(column in row.values for row in rows):
                fix = (fixes or {}).get(column, f"rename one to {column!r}, which the prompt reads")
                raise UserError(
                    f"{_file(rows[0])} has no column {column!r}; its columns are {', '.join(rows[0].values)}: {fix}."
                )

    def examples(
        self, rows: Sequence[Row], skip_bad: bool = False, split: str = "train", unknown: str = ""
    ) -> list[Example]:
        """All rows, or the good ones; without `skip_bad`, the first bad row is named, and how many more there are.

        `unknown` says what else may be done about a label that has no word.
        """
        examples, bad = list[Example](), list[UserError]()
        for row in rows:
            try:
                examples += self.made(row, split)
            except UserError as error:
                bad.append(error)
        if bad and not skip_bad:
            more = (
                f" ({len(bad) - 1} more such {'row' if len(bad) == 2 else 'rows'})"
                if len(bad) > 1
                else ""
            )
            also = f", {unknown}," if unknown and isinstance(bad[0], UnknownLabelError) else ","
            raise UserError(
                f"{bad[0]}{more} Mend it{also} or leave such rows out with --skip-bad-rows."
            )
        if not examples:
            first = f"; the first: {bad[0]}" if bad else "."
            raise UserError(f"No row of {_file(rows[0])} is usable{first}")
        return examples


def check_template(template: str) -> str:
    """A template may name columns and nothing else."""
    if not _FIELD.search(template) or re.search(r"[{}]", _FIELD.sub("", template)):
        raise UserError(
            f'The template {template!r} must name columns in braces, such as "premise: {{premise}} hypothesis: {{hypothesis}}".'
        )
    return template


def _file(row: Row) -> str:
    """Where a row stands, without its line."""
    return row.where.rpartition(":")[0]


def _word(row: Row, column: str) -> str:
    """A cell as text; one that is missing or empty is a sentence that names its row."""
    if column not in row.values:
        raise UserError(
            f"{row.where} has no column {column!r}; its columns are {', '.join(row.values)}."
        )
    value = row.values[column]
    if value is None or str(value).strip().lower() in ("", "nan"):
        raise UserError(f"{row.where}: the column {column!r} is empty.")
    if not isinstance(value, (str, int, float)):
        raise UserError(
            f"{row.where}: the column {column!r} holds a {type(value).__name__}, not a text or a number."
        )
    word = str(value).strip()
    if not word.isascii() and any("\ud800" <= c <= "\udfff" for c in word):
        raise UserError(f"{row.where}: the column {column!r} is not valid Unicode text.")
    return word
