"""Definitions of named tasks: where the rows are, how they become examples, labels, and metrics.

Formats follow T5 exactly: `key: value` pairs joined by single spaces, the text unchanged, with the
task word in front (SPoT) or without it (Prompt Tuning). A preprocessor returns examples without the
task word. Rows come from the Hugging Face Hub or from a local copy; where their column names
differ, preprocessors accept both.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import UserError, closest
from .sources import Row

UNLABELLED = "<unk>"
"""The target of a row without a label, as in T5."""

PREDICT = "predict"
"""The split of rows to predict, which need no label."""


class Example(NamedTuple):
    """An input and target text, and what else a metric needs: groups, further answers, a class."""

    input: str
    target: str
    metadata: Mapping[str, Any] = {}


def content_digest(content: Any) -> str:
    """A hash of examples or other plain data."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def is_labelled(example: Example) -> bool:
    """Whether an example can be used for training and evaluation."""
    return example.target != UNLABELLED and example.metadata.get("label") != -1


Preprocessor = Callable[[Row, str], Iterator[Example]]
"""Turns a row, given the name of its split, into examples without the task word."""

RowLoader = Callable[[str], Iterable[Mapping[str, Any]]]
"""Loads the rows of a split; no rows if there is no such split."""


@dataclass(frozen=True)
class Definition:
    """A named task. Its rows come from `rows`, from `files`, or from `hub` or a local copy."""

    name: str
    hub: str
    """The Hugging Face dataset, `id` or `id:config`; empty with `rows` or `files`."""
    preprocess: Preprocessor
    metrics: tuple[str, ...]
    """The first metric selects the best checkpoint."""
    labels: tuple[str, ...] = ()
    """Label words in the order of their numbers; empty if answers are free text."""
    word: str | None = None
    """The task word; None for the last part of the name, empty for none."""
    columns: tuple[str, ...] = ()
    """The columns that the input is made from."""
    splits: Mapping[str, str] = field(default_factory=dict)
    """The names of splits where the Hub or the local copy uses others."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The file of each split, for rows that are part of a package."""
    rows: RowLoader | None = None
    """Loads the rows of a split, for rows from anywhere else."""
    answer_length: int = 32
    """The maximum number of tokens of a free-text answer."""
    start_words: tuple[str, ...] = ()
    """Words for a class-label start without label words (Lester 2021, footnote 7)."""

    @property
    def prefix(self) -> str:
        """The task word, which precedes inputs."""
        return self.name.rpartition("/")[2] if self.word is None else self.word

    def examples(self, row: Row, split: str, task_word: bool = True) -> Iterator[Example]:
        """A row's examples, with the task word in front if `task_word`."""
        for example in self.preprocess(row, split):
            if task_word and self.prefix:
                example = example._replace(input=f"{self.prefix} {example.input}")
            yield example


def text_of(row: Row, column: str) -> str:
    """A cell's text, unchanged."""
    if column not in row.values:
        raise UserError(
            f"{row.location} has no column {column!r}; its columns are {', '.join(row.values)}."
        )
    value = row.values[column]
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise UserError(
            f"{row.location}: the column {column!r} holds a {type(value).__name__}, not text."
        )
    return str(value)


def collapse_spaces(text: str) -> str:
    """Replace each run of white space by one space.

    T5 does so where it pads punctuation, SPoT in its own tasks, neither in GLUE and SuperGLUE.
    """
    return re.sub(r"[\t\n\f\r ]+", " ", text)


class UnknownLabelError(UserError):
    """A label value without a label word."""


def unknown_label(row: Row, value: Any, labels: Iterable[str]) -> UnknownLabelError:
    similar = closest(value, labels)
    hint = f" Did you mean {similar!r}?" if similar else ""
    return UnknownLabelError(
        f"{row.location}: the label {value!r} is not one of {', '.join(labels)}.{hint}"
    )


def label_of(
    row: Row,
    column: str,
    labels: Sequence[str],
    names: Mapping[str, str] | None = None,
    first: int = 0,
) -> str:
    """The label word for a word, a number counted from `first`, a boolean or another name; `<unk>`
    without a label."""
    value = row.values.get(column)
    if value is None or value in (-1, "-1", ""):
        return UNLABELLED
    if names and str(value) in names:
        return names[str(value)]
    if isinstance(value, str) and value in labels:
        return value
    whole = value.is_integer() if isinstance(value, float) else isinstance(value, int)
    number = int(value) - first if whole or str(value).isdecimal() else -1
    if names or not 0 <= number < len(labels):
        raise unknown_label(row, value, labels)
    return labels[number]


def column_of(row: Row, key: str, aliases: Mapping[str, str]) -> str:
    """The column that holds `key`: of that name, or of its alias on the Hub or in a local copy."""
    return key if key in row.values else aliases.get(key, key)


def classification(
    name: str,
    hub: str,
    keys: Sequence[str],
    labels: Sequence[str],
    metrics: Sequence[str] = ("accuracy",),
    label: str = "label",
    aliases: Mapping[str, str] = {},
    label_names: Mapping[str, str] | None = None,
    collapse: bool = True,
    **options: Any,
) -> Definition:
    """The most common kind of task: `key: value key: value` in, a label word out."""

    def preprocess(row: Row, split: str) -> Iterator[Example]:
        text = " ".join(f"{key}: {text_of(row, column_of(row, key, aliases))}" for key in keys)
        target = label_of(row, column_of(row, label, aliases), labels, label_names)
        yield Example(collapse_spaces(text) if collapse else text, target)

    return Definition(
        name, hub, preprocess, tuple(metrics), tuple(labels), columns=tuple(keys), **options
    )
