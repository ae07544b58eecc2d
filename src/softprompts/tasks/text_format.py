"""TextFormat: how a row becomes input and target texts."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, time
from decimal import Decimal
from typing import Any

from ..errors import UserError, closest, setting
from .registry import definition
from .sources import Row, is_nan
from .task_definition import PREDICT, Definition, Example, UnknownLabelError, unknown_label

_FIELD = re.compile(r"\{([^{}]+)\}")
"""A column in a template: `{premise}`."""


SENTINEL = "<extra_id_0>"  # T5's first


@dataclass(frozen=True)
class TextFormat:
    """How rows become examples: by a template and label words, or by a named task.

    All of it is plain data, because a prompt's card stores it (as `form`).
    """

    template: str
    label: str
    words: dict[str, str] = field(default_factory=dict)
    """The label word of each label value."""
    task: str | None = None
    """The named task whose preprocessor is used instead of a template."""
    task_word: bool = True
    before: str = ""
    after: str = ""
    """What surrounds every input: an instruction, demonstrations."""
    sentinel: bool = False
    """Whether the model generates a sentinel before every answer (`prepend_sentinel`)."""

    @property
    def definition(self) -> Definition | None:
        return definition(self.task) if self.task is not None else None

    @property
    def columns(self) -> list[str]:
        return list(self.definition.columns) if self.definition else _FIELD.findall(self.template)

    @property
    def labels(self) -> list[str]:
        """The distinct label words, in order."""
        return list(dict.fromkeys(self.words.values()))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics of rows in this format, unless settings choose others."""
        if self.definition is not None:
            return self.definition.metrics
        return ("accuracy", "macro_f1") if self.words else ("f1", "em")

    def row_examples(self, row: Row, split: str) -> list[Example]:
        """A row's examples: usually one; for some named tasks one per question or answer."""
        if self.definition is not None:
            examples = self.definition.examples(row, split, self.task_word)
            return self.wrap(
                [e._replace(target=self.words.get(e.target, e.target)) for e in examples]
            )
        text = _FIELD.sub(lambda field: _cell(row, field[1]), self.template)
        return self.wrap([Example(text, "" if split == PREDICT else self._target(row))])

    def wrap(self, examples: Sequence[Example]) -> list[Example]:
        """The examples with `before` and `after` around their inputs."""
        if not self.before and not self.after:
            return list(examples)
        return [e._replace(input=f"{self.before}{e.input}{self.after}") for e in examples]

    def inputs(self, row: Row) -> list[str]:
        """The input texts of a row to predict."""
        return [example.input for example in self.row_examples(row, PREDICT)]

    def _target(self, row: Row) -> str:
        value = _cell(row, self.label)
        if not self.words:
            return value
        known = next((same for same in _spellings(value) if same in self.words), None)
        if known is None:
            raise unknown_label(row, value, self.words)
        return self.words[known]

    def check_columns(
        self, rows: Sequence[Row], remedies: Mapping[str, str] | None = None, labelled: bool = True
    ) -> None:
        """Raise if a column is missing from all rows; `remedies` says what to do about each."""
        if self.definition is not None or not rows:
            return
        for column in [*self.columns, *([self.label] if labelled else [])]:
            if all(_value(row, column) is _MISSING for row in rows):
                reads = "holds the labels" if column == self.label else "the prompt reads"
                remedy = (remedies or {}).get(column, f"rename the one that {reads} to {column!r}")
                similar = closest(column, rows[0].values)
                hint = f"did you mean {similar!r}? Its" if similar else "its"
                raise UserError(
                    f"{_source(rows[0])} has no column {column!r}; {hint} columns are "
                    f"{', '.join(rows[0].values)}: {remedy}."
                )

    def examples(
        self, rows: Sequence[Row], skip_bad: bool = False, split: str = "train", remedy: str = ""
    ) -> list[Example]:
        """The examples of all rows; a bad row is an error, or left out with `skip_bad`.

        `remedy` says what else can be done about a label without a label word.
        """
        examples, errors = list[Example](), list[UserError]()
        for row in rows:
            try:
                examples += self.row_examples(row, split)
            except UserError as error:
                errors.append(error)
        if errors and not skip_bad:
            others = len(errors) - 1
            more = f" ({others} more such {'row' if others == 1 else 'rows'})" if others else ""
            also = f", {remedy}" if remedy and isinstance(errors[0], UnknownLabelError) else ""
            raise UserError(
                f"{errors[0].message}{more} Correct it{also}, "
                f"or leave such rows out with {setting('task.skip_bad_rows')}."
            )
        if not examples:
            first = f"; the first: {errors[0].message}" if errors else "."
            raise UserError(f"No row of {_source(rows[0])} is usable{first}")
        return examples


def check_template(template: str) -> str:
    """The template, if it names columns in braces and has no other braces."""
    if not _FIELD.search(template) or re.search(r"[{}]", _FIELD.sub("", template)):
        raise UserError(
            f"The template {template!r} must name columns in braces, "
            'such as "premise: {premise} hypothesis: {hypothesis}".'
        )
    return template


def _source(row: Row) -> str:
    """A row's location without the line."""
    return row.location.rpartition(":")[0]


_MISSING = object()


def _value(row: Row, column: str) -> Any:
    """The value of a column, or of a nested field by its path, such as `review.body`."""
    if column in row.values:
        return row.values[column]
    value: Any = row.values
    for name in column.split("."):
        if isinstance(value, Mapping) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _MISSING
    return value


def _cell(row: Row, column: str) -> str:
    """A cell as text, which must not be missing or empty."""
    value = _value(row, column)
    if value is _MISSING:
        columns = ", ".join(row.values) or "none"
        raise UserError(f"{row.location} has no column {column!r}; its columns are {columns}.")
    if value is None or is_nan(value) or not str(value).strip():
        raise UserError(f"{row.location}: the column {column!r} is empty.")
    if not isinstance(value, (str, int, float, Decimal, date, time)):
        raise UserError(
            f"{row.location}: the column {column!r} holds a {type(value).__name__}, "
            "not a text or a number."
        )
    text = str(value).strip()
    if not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text):
        raise UserError(f"{row.location}: the column {column!r} is not valid Unicode text.")
    return text


def _spellings(value: str) -> Iterator[str]:
    """A label value, and how else files and tables write a boolean or a whole number."""
    yield value
    if value.lower() in ("true", "false"):
        yield from (value.lower(), value.title(), value.upper())
    elif re.fullmatch(r"-?\d+(\.0)?", value):
        yield from (value.removesuffix(".0"), f"{value}.0")


def prepend_sentinel(
    answers: list[list[int]], tokenizer: Any, model: str, sentinel: bool
) -> list[list[int]]:
    """The token ids of answers, after the sentinel of `model`'s tokenizer if `sentinel`.

    A model trained only by span corruption has never generated text that does not begin with one
    (Lester 2021, §2.2, "Span Corruption + Sentinel").
    """
    if not sentinel:
        return answers
    vocabulary = tokenizer.get_vocab()
    if SENTINEL not in vocabulary:
        raise UserError(
            f"The tokenizer of {model} has no token {SENTINEL} to begin an answer with; "
            f"use a T5 model, or leave out {setting('task.sentinel')}."
        )
    return [[vocabulary[SENTINEL], *ids] for ids in answers]
