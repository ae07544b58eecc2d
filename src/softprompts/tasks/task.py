"""Task: rows in, (input text, target text) out; predictions in, metrics out."""

import dataclasses
import hashlib
import itertools
import json
import os
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from ..errors import UserError
from .definition import PREDICT, UNLABELLED, Definition, Example
from .metrics import METRICS, score, settled
from .registry import definition
from .sources import Few, NoSplitError, Row, read_named, read_rows, read_split
from .starter import STARTERS
from .text import PREFIX_LM, prefix_lm

_FIELD = re.compile(r"\{([^{}]+)\}")
"""A column in a template: `{premise}`."""

DATA_VARIABLE = "SOFTPROMPTS_DATA"


@dataclass(frozen=True)
class TaskConfig:
    """What to learn: a named task, or your own data."""

    task: str | None = None
    """A task by name, such as helpdesk/intent or superglue/rte (softprompts tasks list); several joined with + are a mixture."""

    data_dir: str | None = None
    """A folder with named tasks' rows (DIR/superglue/rte/train.jsonl.gz); none: SOFTPROMPTS_DATA, or the Hugging Face hub."""

    task_word: bool = True
    """The task's name in front of a named task's texts, as in T5 and SPoT; --no-task-word as in Prompt Tuning."""

    splits: Literal["official", "smop"] = "official"
    """A named task's splits: official, or SMoP's: a tenth of train for validation, and the official validation for a test at the end."""

    mixture_limit: int = 2**19
    """The most examples of one task that count in a mixture (SPoT's K)."""

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

    instruction: str | None = None
    """A written prompt before every text, such as "Is the review positive or negative?"."""

    demonstrations: int = 0
    """Solved training examples before every text, the classes in turn (few-shot prompt design)."""

    shots: int | None = None
    """Train on so many examples of each class only."""

    cap: int | None = None
    """Train on so many examples at most, drawn by --split-seed."""

    cap_validation: int | None = None
    """Evaluate on so many held-out examples at most, drawn by --split-seed."""

    sentinel: bool = False
    """T5's <extra_id_0> before every answer, for a model trained by span corruption alone (Lester 2021 §2.2); never judged or shown."""

    shuffle_labels: bool = False
    """Give training rows each other's answers, by --split-seed: a control, in which nothing should be learned."""

    metric: str | None = None
    """The metric that picks the best checkpoint; none: the task's first, or accuracy."""

    split_seed: int = 0
    """Seed of the automatic split, of the shots, of the cap and of shuffled labels."""

    skip_bad_rows: bool = False
    """Leave out rows with an empty text or label instead of stopping."""

    def __post_init__(self) -> None:
        if self.demonstrations < 0:
            raise UserError(f"--demonstrations is {self.demonstrations}; it must not be negative.")
        for name in ("shots", "cap", "cap_validation", "mixture_limit"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1.")


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
        return [example._replace(input=f"{self.before}{example.input}{self.after}") for example in examples]

    def inputs(self, row: Row) -> list[str]:
        """The texts of a row that is to be answered."""
        return [example.input for example in self.made(row, PREDICT)]

    def _target(self, row: Row) -> str:
        value = _word(row, self.label)
        if self.words and value not in self.words:
            known = ", ".join(self.words)
            raise UserError(f"{row.where}: the label {value!r} is none of {known}; mend it, or give it a word with --labels.")
        return self.words.get(value, value)

    def examples(self, rows: Sequence[Row], skip_bad: bool = False, split: str = "train") -> list[Example]:
        """All rows, or the good ones; without `skip_bad`, the first bad row is named, and how many more there are."""
        examples, bad = [], []
        for row in rows:
            try:
                examples += self.made(row, split)
            except UserError as error:
                bad.append(str(error))
        if bad and not skip_bad:
            more = f" ({len(bad) - 1} more such rows)" if len(bad) > 1 else ""
            raise UserError(f"{bad[0]}{more} Mend it, or leave such rows out with --skip-bad-rows.")
        if not examples:
            first = f"; the first: {bad[0]}" if bad else "."
            raise UserError(f"No row of {rows[0].where.rpartition(':')[0]} is usable{first}")
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
    test: list[Example] = field(default_factory=list)
    """What the best prompt is judged by at the end, where the splits keep some."""

    @cached_property
    def digest(self) -> str:
        """What its examples are, as a hash."""
        rows = json.dumps([self.train, self.validation]).encode()
        return hashlib.sha256(rows).hexdigest()[:32]

    @property
    def labels(self) -> list[str]:
        return self.form.labels

    @property
    def start_words(self) -> list[str]:
        """What a class-label start draws on."""
        defined = self.form.definition
        return self.labels if defined is None else list(defined.start_words) or self.labels

    @property
    def answer_length(self) -> int | None:
        """The most tokens of an answer, where no labels say it."""
        return self.form.definition.answer_length if self.form.definition is not None and not self.labels else None

    @property
    def parts(self) -> tuple[int, ...]:
        """How many training examples belong to each task that is mixed here, in order; one task is one part."""
        return (len(self.train),)

    @property
    def limit(self) -> int | None:
        """The most examples of a part in one epoch."""
        return None

    @property
    def commonest(self) -> str:
        """The training rows' commonest label: always answering it is the line every result is read against."""
        return Counter(e.target for e in self.train).most_common(1)[0][0]

    def majority(self) -> dict[str, float]:
        return self.score([self.commonest] * len(self.validation))

    def score(self, predictions: Sequence[str], examples: Sequence[Example] | None = None) -> dict[str, float]:
        return settled(score(self.metrics, self.validation if examples is None else examples, predictions, self.labels))

    def card(self) -> dict[str, Any]:
        """What a prompt's card says of its task: enough to use it on new rows."""
        sizes = {"train": len(self.train), "validation": len(self.validation), "skipped": self.skipped}
        form = dataclasses.asdict(self.form)
        return {
            "name": self.name,
            "form": form,
            "commonest": self.commonest,
            "metrics": list(self.metrics),
            "rows": sizes,
            "answer_length": self.answer_length,
        }


def load_task(config: TaskConfig) -> Task:
    """The task a config describes, with every promise about its rows checked."""
    if config.metric is not None and config.metric not in METRICS:
        raise UserError(f"There is no metric {config.metric!r}; choose one of {', '.join(METRICS)}.")
    if config.task is not None and "+" in config.task:
        from .mixture import load_mixture

        return load_mixture(config)
    if config.task == PREFIX_LM:
        task = _prefix_lm(config)
    elif config.task is not None and config.task not in STARTERS:
        task = _named(config)
    else:
        task = _own(_resolved(config))
    return _chosen(config, task)


def _own(config: TaskConfig) -> Task:
    """A person's own data, or the starter data."""
    assert config.train is not None
    rows = read_rows(config.train, few=_few(config))
    form = _form(config, rows)
    train = form.examples(rows, config.skip_bad_rows)
    skipped = len(rows) - len(train)
    if not config.labels:
        form = dataclasses.replace(form, words=_words(config, train))
    held = read_rows(config.validation, "validation") if config.validation is not None else read_split(config.train, "validation")
    if held is None:
        train, validation = stratified_split(train, 0.1, config.split_seed)
    else:
        validation = form.examples(held, config.skip_bad_rows, "validation")
        skipped += len(held) - len(validation)
    if len({e.target for e in train}) < 2:
        raise UserError(f"All training rows have the label {train[0].target!r}; there is nothing to learn from one class.")
    name = config.task or f"{config.train.rstrip('/').rpartition('/')[2]}:{form.label}"
    return Task(name, form, train, validation, ("accuracy", "macro_f1"), skipped)


def data_folder(config: TaskConfig) -> str | None:
    return config.data_dir or os.environ.get(DATA_VARIABLE) or None


def _few(config: TaskConfig) -> Few | None:
    """The rows that a capped run may need: of data too large to hold, only they are held. Shots are drawn from all rows."""
    return Few(config.cap, config.split_seed) if config.cap is not None and config.shots is None else None


def named_split(
    defined: Definition, split: str, folder: str | None, task_word: bool = True, skip_bad: bool = False, few: Few | None = None
) -> list[Example]:
    """One split of a named task, in the official order."""
    form = named_form(defined, task_word)
    rows = read_named(defined.name, defined.hub, split, defined.splits.get(split), folder, few)
    return form.examples(rows, skip_bad, split)


def named_form(defined: Definition, task_word: bool = True) -> Form:
    return Form("", "", {word: word for word in defined.labels}, defined.name, task_word)


def _named(config: TaskConfig) -> Task:
    """A task of the registry, with official splits or SMoP's."""
    given = [name for name in ("train", "text", "template", "label", "labels", "validation") if getattr(config, name) is not None]
    assert config.task is not None
    if given:
        raise UserError(f"--task {config.task} has its own {given[0]}; leave --{given[0]} out.")
    defined = definition(config.task)
    folder = data_folder(config)
    few = _few(config) if config.splits == "official" else None
    train = named_split(defined, "train", folder, config.task_word, config.skip_bad_rows, few)
    test: list[Example] = []
    try:
        validation = named_split(defined, "validation", folder, config.task_word, config.skip_bad_rows)
    except NoSplitError:
        if config.splits == "smop":
            raise
        train, validation = held_out(train, 0.1, config.split_seed, bool(defined.labels))
    else:
        if config.splits == "smop":
            test = validation
            train, validation = held_out(train, 0.1, config.split_seed, bool(defined.labels))
    if any(e.target == UNLABELLED for e in train):
        raise UserError(f"The training rows of {defined.name} have no labels; take a copy that has them.")
    return Task(defined.name, named_form(defined, config.task_word), train, validation, defined.metrics, 0, test)


def _prefix_lm(config: TaskConfig) -> Task:
    if config.train is None:
        raise UserError(f"--task {PREFIX_LM} learns to go on with a text; name a text file with --train.")
    train, validation = prefix_lm(config.train, config.validation, config.split_seed)
    form = Form("{text}", "rest")
    return Task(PREFIX_LM, form, train, validation, ("f1", "em"))


def _chosen(config: TaskConfig, task: Task) -> Task:
    """Shots, caps and the metric that was asked for."""
    train, validation, metrics = task.train, task.validation, task.metrics
    if config.shots is not None:
        if not task.labels:
            raise UserError(f"{task.name} has no classes to take --shots of; use --cap.")
        train = few_shot(train, config.shots, config.split_seed)
    if config.cap is not None:
        train = sample(train, config.cap, config.split_seed)
    if config.cap_validation is not None:
        validation = sample(validation, config.cap_validation, config.split_seed)
    if config.shuffle_labels:
        answers = random.Random(config.split_seed).sample([example.target for example in train], len(train))
        train = [example._replace(target=answer) for example, answer in zip(train, answers, strict=True)]
    form, test = task.form, task.test
    if config.instruction or config.demonstrations:
        before, after = _design(config, task)
        form = dataclasses.replace(form, before=before, after=after)
        train, validation, test = (form.designed(part) for part in (train, validation, test))
    if config.metric is not None:
        metrics = (config.metric, *(name for name in task.metrics if name != config.metric))
    form = dataclasses.replace(form, sentinel=config.sentinel)
    return dataclasses.replace(task, form=form, train=train, validation=validation, test=test, metrics=metrics)


def _design(config: TaskConfig, task: Task) -> tuple[str, str]:
    """An instruction and solved examples, the classes in turn, as what stands before and after every text."""
    before = f"{config.instruction.strip()} " if config.instruction else ""
    if not config.demonstrations:
        return before, ""
    rng = random.Random(config.split_seed)
    piles = [rng.sample(places, len(places)) for places in _by_class(task.train).values()] if task.labels else []
    order = [place for turn in itertools.zip_longest(*piles) for place in turn if place is not None] if piles else []
    order = order or rng.sample(range(len(task.train)), len(task.train))
    solved = [task.train[place] for place in order[: config.demonstrations]]
    return before + "".join(f"{e.input} answer: {e.target}\n\n" for e in solved), " answer:"


def sample(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    """At most `count` examples, drawn by seed; order kept."""
    if len(examples) <= count:
        return list(examples)
    kept = sorted(random.Random(seed).sample(range(len(examples)), count))
    return [examples[index] for index in kept]


def held_out(examples: Sequence[Example], share: float, seed: int, classes: bool) -> tuple[list[Example], list[Example]]:
    """`share` of the examples for validation, of every class where there are classes; order kept."""
    if classes:
        return stratified_split(examples, share, seed)
    held = set(random.Random(seed).sample(range(len(examples)), max(1, round(share * len(examples)))))
    return [e for i, e in enumerate(examples) if i not in held], [e for i, e in enumerate(examples) if i in held]


def _resolved(config: TaskConfig) -> TaskConfig:
    """A starter task spelled out as the files it stands for."""
    if config.task is None:
        if config.train is None:
            raise UserError(
                f"Nothing to learn is named: give --task (such as {', '.join(STARTERS)}; softprompts tasks list tells all) "
                "or --train FILE --text COLUMN --label COLUMN."
            )
        return config
    if config.train is not None:
        raise UserError("Both --task and --train are given; leave one out.")
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
