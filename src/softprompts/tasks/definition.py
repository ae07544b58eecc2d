"""Definitions: a named task is one short declaration: where its rows are, how a row becomes examples, its label words, its metrics.

Formats are T5's to the letter: `key: value` pairs joined by one space, text untouched, the task's word in front (SPoT) or not (Prompt
Tuning). A maker gives examples without the word. Rows come from the Hugging Face hub or from a local copy, whose columns may differ: makers
take both.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import UserError
from .sources import Row

UNLABELLED = "<unk>"
"""The target of a row without a label, as T5 writes it."""


PREDICT = "predict"
"""The split of rows that are to be answered: they need no label."""


class Example(NamedTuple):
    """A text pair, and what a metric must know besides: groups, further answers, a class."""

    input: str
    target: str
    facts: Mapping[str, Any] = {}


def labelled(example: Example) -> bool:
    """Whether it can be learned from or judged by."""
    return example.target != UNLABELLED and example.facts.get("label") != -1


Maker = Callable[[Row, str], Iterator[Example]]
"""A row and its split in, examples without the task's word out."""


@dataclass(frozen=True)
class Definition:
    """A named task."""

    name: str
    hub: str
    """The Hugging Face dataset, `id` or `id:config`; empty where the rows come along."""
    make: Maker
    metrics: tuple[str, ...]
    """The first one picks the best checkpoint."""
    labels: tuple[str, ...] = ()
    """Label words in the order of their numbers; none where the answer is free text."""
    word: str | None = None
    """The task's word; None: the last part of its name; empty: it has none."""
    columns: tuple[str, ...] = ()
    """The columns its input is made of."""
    splits: Mapping[str, str] = field(default_factory=dict)
    """Where the hub's or the folder's name of a split is another one."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The embedded file of each split, where the rows come along."""
    answer_length: int = 32
    """The most tokens of a free answer."""
    start_words: tuple[str, ...] = ()
    """What a class-label start uses where there are no label words (Lester 2021, footnote 7)."""

    @property
    def prefix(self) -> str:
        return self.name.rpartition("/")[2] if self.word is None else self.word

    def examples(self, row: Row, split: str, task_word: bool = True) -> Iterator[Example]:
        for example in self.make(row, split):
            yield (
                example._replace(input=f"{self.prefix} {example.input}")
                if task_word and self.prefix
                else example
            )


def text_of(row: Row, column: str) -> str:
    """A cell exactly as it stands."""
    if column not in row.values:
        raise UserError(
            f"{row.where} has no column {column!r}; its columns are {', '.join(row.values)}."
        )
    value = row.values[column]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UserError(
            f"{row.where}: the column {column!r} holds a {type(value).__name__}, not a text."
        )
    return str(value)


def collapsed(text: str) -> str:
    """Runs of white space as one space: T5 does it where it pads punctuation, SPoT in its own tasks, neither in GLUE and SuperGLUE."""
    return re.sub(r"[\t\n\f\r ]+", " ", text)


def label_of(
    row: Row, column: str, labels: Sequence[str], names: Mapping[str, str] | None = None
) -> str:
    """A label's word from its word, its number, a truth value, or another name for it; a row without one is `<unk>`."""
    value = row.values.get(column)
    if value is None or value in (-1, "-1", ""):
        return UNLABELLED
    if names and str(value) in names:
        return names[str(value)]
    if isinstance(value, str) and value in labels:
        return value
    number = int(value) if isinstance(value, (bool, int, float)) or str(value).isdigit() else -1
    if names or not 0 <= number < len(labels):
        raise UserError(f"{row.where}: the label {value!r} is none of {', '.join(labels)}.")
    return labels[number]


def column_of(row: Row, key: str, others: Mapping[str, str]) -> str:
    """The column that holds `key`: of that name, or of the other name that the hub or a local copy has for it."""
    return key if key in row.values else others.get(key, key)


def classification(
    name: str,
    hub: str,
    keys: Sequence[str],
    labels: Sequence[str],
    metrics: Sequence[str] = ("accuracy",),
    label: str = "label",
    others: Mapping[str, str] | None = None,
    names: Mapping[str, str] | None = None,
    collapse: bool = True,
    **options: Any,
) -> Definition:
    """The commonest kind: `key: value key: value`, and a label's word."""
    there = others or {}

    def make(row: Row, split: str) -> Iterator[Example]:
        text = " ".join(f"{key}: {text_of(row, column_of(row, key, there))}" for key in keys)
        yield Example(
            collapsed(text) if collapse else text,
            label_of(row, column_of(row, label, there), labels, names),
        )

    return Definition(
        name, hub, make, tuple(metrics), tuple(labels), columns=tuple(keys), **options
    )
