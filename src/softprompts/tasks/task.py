"""Task: rows in, (input text, target text) out; predictions in, metrics out."""

import dataclasses
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import UserError
from .metrics import METRICS, score
from .sources import Row, read_rows, read_split
from .starter import STARTERS

_FIELD = re.compile(r"\{([^{}]+)\}")
"""A column in a template: `{premise}`."""


@dataclass(frozen=True)
class TaskConfig:
    """What to learn: a named task, or your own data."""

    task: str | None = None
    """A task by name, such as helpdesk/intent."""

    train: str | None = None
    """Training data: a CSV, TSV, JSONL or Parquet file, or a Hugging Face dataset (folder or hub id)."""

    validation: str | None = None
    """Validation data; none: the dataset's own validation split, or one tenth of the training rows, stratified."""

    text: str | None = None
    """The column that holds the text."""

    template: str | None = None
    """Several columns as one text, such as "premise: {premise} hypothesis: {hypothesis}"."""

    label: str | None = None
    """The column that holds the label."""

    labels: dict[str, str] | None = None
    """Words for label values, such as 0=negative,1=positive; short words the model knows learn fastest."""

    shots: int | None = None
    """Train on so many examples of each class only."""

    metric: str = "accuracy"
    """The metric that picks the best checkpoint: accuracy or macro_f1."""

    split_seed: int = 0
    """Seed of the automatic split and of the shots."""

    skip_bad_rows: bool = False
    """Leave out rows with an empty text or label instead of stopping."""


class Example(NamedTuple):
    input: str
    target: str


@dataclass(frozen=True)
class Form:
    """How rows become examples; all of it is data, so a prompt's card can carry it."""

    template: str
    label: str
    words: dict[str, str] = field(default_factory=dict)
    """Label value to label word."""

    @property
    def columns(self) -> list[str]:
        return _FIELD.findall(self.template)

    @property
    def labels(self) -> list[str]:
        """The label words, each once, in order."""
        return list(dict.fromkeys(self.words.values()))

    def input(self, row: Row) -> str:
        """The row's columns in the template's places."""
        return _FIELD.sub(lambda field: _word(row, field[1]), self.template)

    def target(self, row: Row) -> str:
        value = _word(row, self.label)
        if self.words and value not in self.words:
            known = ", ".join(self.words)
            raise UserError(f"{row.where}: the label {value!r} is none of {known}; mend it, or give it a word with --labels.")
        return self.words.get(value, value)

    def examples(self, rows: Sequence[Row], skip_bad: bool = False) -> list[Example]:
        """All rows, or the good ones; without `skip_bad`, the first bad row is named, and how many more there are."""
        examples, bad = [], []
        for row in rows:
            try:
                examples.append(Example(self.input(row), self.target(row)))
            except UserError as error:
                bad.append(str(error))
        if bad and not skip_bad:
            more = f" ({len(bad) - 1} more such rows)" if len(bad) > 1 else ""
            raise UserError(f"{bad[0]}{more} Mend it, or leave such rows out with --skip-bad-rows.")
        if not examples:
            raise UserError(f"No row of {rows[0].where.rpartition(':')[0]} is usable; the first: {bad[0]}")
        return examples


@dataclass(frozen=True)
class Task:
    """A name, examples to learn from and to be judged by, and how to judge."""

    name: str
    form: Form
    train: list[Example]
    validation: list[Example]
    metrics: tuple[str, ...] = ("accuracy", "macro_f1")
    """The first one picks the best checkpoint."""
    skipped: int = 0
    """Bad rows that were left out."""

    @property
    def labels(self) -> list[str]:
        return self.form.labels

    @property
    def commonest(self) -> str:
        """The training rows' commonest label: always answering it is the line every result is read against."""
        return Counter(e.target for e in self.train).most_common(1)[0][0]

    def majority(self) -> dict[str, float]:
        return self.score([self.commonest] * len(self.validation))

    def score(self, predictions: Sequence[str]) -> dict[str, float]:
        return score(self.metrics, [e.target for e in self.validation], predictions)

    def card(self) -> dict[str, Any]:
        """What a prompt's card says of its task: enough to use it on new rows."""
        sizes = {"train": len(self.train), "validation": len(self.validation), "skipped": self.skipped}
        form = dataclasses.asdict(self.form)
        return {"name": self.name, "form": form, "commonest": self.commonest, "metrics": list(self.metrics), "rows": sizes}


def load_task(config: TaskConfig) -> Task:
    """The task a config describes, with every promise about its rows checked."""
    config = _resolved(config)
    if config.metric not in METRICS:
        raise UserError(f"There is no metric {config.metric!r}; choose one of {', '.join(METRICS)}.")
    assert config.train is not None
    rows = read_rows(config.train)
    form = _form(config, rows)
    train = form.examples(rows, config.skip_bad_rows)
    skipped = len(rows) - len(train)
    if not config.labels:
        form = dataclasses.replace(form, words=_words(config, train))
    held = read_rows(config.validation, "validation") if config.validation is not None else read_split(config.train, "validation")
    if held is None:
        train, validation = stratified_split(train, 0.1, config.split_seed)
    else:
        validation = form.examples(held, config.skip_bad_rows)
        skipped += len(held) - len(validation)
    if len({e.target for e in train}) < 2:
        raise UserError(f"All training rows have the label {train[0].target!r}; there is nothing to learn from one class.")
    if config.shots is not None:
        train = few_shot(train, config.shots, config.split_seed)
    metrics = (config.metric, *(name for name in METRICS if name != config.metric))
    name = config.task or f"{config.train.rstrip('/').rpartition('/')[2]}:{form.label}"
    return Task(name, form, train, validation, metrics, skipped)


def _resolved(config: TaskConfig) -> TaskConfig:
    """A named task spelled out as the files it stands for."""
    if config.task is None:
        if config.train is None:
            raise UserError(
                f"Nothing to learn is named: give --task (one of {', '.join(STARTERS)}) or --train FILE --text COLUMN --label COLUMN."
            )
        return config
    if config.train is not None:
        raise UserError("Both --task and --train are given; leave one out.")
    if config.task not in STARTERS:
        raise UserError(f"There is no task {config.task!r}; choose one of {', '.join(STARTERS)}, or bring your own with --train.")
    given = [name for name in ("text", "label", "validation") if getattr(config, name) is not None]
    if given:
        raise UserError(f"--task {config.task} has its own {given[0]}; leave --{given[0]} out.")
    starter = STARTERS[config.task]
    if config.template is not None:
        starter = {name: value for name, value in starter.items() if name != "text"}
    return dataclasses.replace(config, **starter)


def _form(config: TaskConfig, rows: Sequence[Row]) -> Form:
    if config.label is None:
        raise UserError(f"No label column is named; choose one with --label from {', '.join(rows[0].values)}.")
    if (config.text is None) == (config.template is None):
        raise UserError(f"Name the text with either --text COLUMN or --template; the columns are {', '.join(rows[0].values)}.")
    template = config.template if config.template is not None else f"{{{config.text}}}"
    return Form(check_template(template), config.label, dict(config.labels or {}))


def check_template(template: str) -> str:
    """A template may name columns and nothing else."""
    if not _FIELD.search(template) or re.search(r"[{}]", _FIELD.sub("", template)):
        raise UserError(
            f'The template {template!r} must name columns in braces, such as "premise: {{premise}} hypothesis: {{hypothesis}}".'
        )
    return template


def _words(config: TaskConfig, train: Sequence[Example]) -> dict[str, str]:
    """Without a mapping, a label's value is its own word."""
    found = Counter(e.target for e in train)
    if len(train) >= 20 and len(found) > len(train) / 2:
        many = f"{len(found)} different values in {len(train)} rows"
        raise UserError(f"The column {config.label!r} has {many}, so it is no class label; name another with --label.")
    return {value: value for value in sorted(found)}


def _word(row: Row, column: str) -> str:
    """A cell as text; one that is missing or empty is a sentence that names its row."""
    if column not in row.values:
        raise UserError(f"{row.where} has no column {column!r}; its columns are {', '.join(row.values)}.")
    value = row.values[column]
    if value is None or str(value).strip().lower() in ("", "nan"):
        raise UserError(f"{row.where}: the column {column!r} is empty.")
    if not isinstance(value, (str, int, float)):
        raise UserError(f"{row.where}: the column {column!r} holds a {type(value).__name__}, not a text or a number.")
    word = str(value).strip()
    if not word.isascii() and any("\ud800" <= c <= "\udfff" for c in word):
        raise UserError(f"{row.where}: the column {column!r} is not valid Unicode text.")
    return word


def stratified_split(examples: Sequence[Example], share: float, seed: int) -> tuple[list[Example], list[Example]]:
    """`share` of every class for validation (at least one where a class has two), the rest for training; order kept."""
    rng = random.Random(seed)
    held: set[int] = set()
    for indices in _by_class(examples).values():
        count = max(1, round(share * len(indices))) if len(indices) > 1 else 0
        held.update(rng.sample(indices, count))
    if not held:
        raise UserError("There are too few rows to hold some back for validation; give a file with --validation.")
    return [e for i, e in enumerate(examples) if i not in held], [e for i, e in enumerate(examples) if i in held]


def few_shot(examples: Sequence[Example], shots: int, seed: int) -> list[Example]:
    """`shots` examples of every class, drawn by seed; order kept."""
    if shots < 1:
        raise UserError(f"--shots is {shots}; it must be at least 1.")
    rng = random.Random(seed)
    kept: set[int] = set()
    for label, indices in _by_class(examples).items():
        if len(indices) < shots:
            raise UserError(f"The class {label!r} has {len(indices)} training rows, fewer than the {shots} shots asked for; lower --shots.")
        kept.update(rng.sample(indices, shots))
    return [e for i, e in enumerate(examples) if i in kept]


def _by_class(examples: Sequence[Example]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        places.setdefault(example.target, []).append(index)
    return dict(sorted(places.items()))
