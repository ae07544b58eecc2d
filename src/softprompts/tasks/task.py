"""Task: rows in, (input text, target text) out; predictions in, metrics out."""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from ..config.task import TaskConfig
from ..errors import UserError
from .definition import Definition, Example, labelled
from .draw import by_class, few_shot, held_out, sample, stratified_split
from .form import Form, check_template
from .metrics import METRICS, score, settled
from .registry import definition
from .sources import Few, NoSplitError, Row, has_named, is_file, read_named, read_rows, read_split
from .starter import STARTERS
from .text import PREFIX_LM, prefix_lm

DATA_VARIABLE = "SOFTPROMPTS_DATA"
OWN = ("train", "text", "template", "label", "labels", "validation")
"""Settings of a person's own data, which a named task brings itself."""


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
    usual: str | None = None
    """The commonest label of all training rows, where only some of them are learned from."""

    @cached_property
    def digests(self) -> dict[str, str]:
        """What its examples are, as hashes."""
        return {"train": _digest(self.train), "validation": _digest(self.validation)}

    @cached_property
    def digest(self) -> str:
        """The same of all."""
        return _digest([self.train, self.validation])

    @property
    def brief(self) -> "Task":
        """Itself with one example of each split."""
        return dataclasses.replace(
            self, train=self.train[:1], validation=self.validation[:1], test=self.test[:1]
        )

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
        return (
            self.form.definition.answer_length
            if self.form.definition is not None and not self.labels
            else None
        )

    @property
    def mixed(self) -> "tuple[Task, ...]":
        """The tasks whose examples are its own, one task's after another's; of one task, itself."""
        return (self,)

    @property
    def parts(self) -> tuple[int, ...]:
        """How many training examples belong to each."""
        return tuple(len(task.train) for task in self.mixed)

    @property
    def limit(self) -> int | None:
        """The most examples of a part in one epoch."""
        return None

    @property
    def commonest(self) -> str:
        """The training rows' commonest label: always answering it is the line every result is read against."""
        return self.usual or Counter(e.target for e in self.train).most_common(1)[0][0]

    def majority(self) -> dict[str, float]:
        return self.score([self.commonest] * len(self.validation))

    def score(
        self, predictions: Sequence[str], examples: Sequence[Example] | None = None
    ) -> dict[str, float]:
        return settled(
            score(
                self.metrics,
                self.validation if examples is None else examples,
                predictions,
                self.labels,
            )
        )

    def card(self) -> dict[str, Any]:
        """What a prompt's card says of its task: enough to use it on new rows."""
        sizes = {
            "train": len(self.train),
            "validation": len(self.validation),
            "skipped": self.skipped,
        }
        form = dataclasses.asdict(self.form)
        return {
            "name": self.name,
            "form": form,
            "commonest": self.commonest,
            "metrics": list(self.metrics),
            "rows": sizes,
            "digests": self.digests,
            "answer_length": self.answer_length,
        }


def _digest(rows: Any) -> str:
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:32]


Load = Callable[[TaskConfig], Task]


def load_task(config: TaskConfig, part: Load | None = None, named: Load | None = None) -> Task:
    """The task a config describes, with every promise about its rows checked; `part` loads what is mixed in it (default: this), `named`
    reads a named one (default: with its rows)."""
    if config.metric is not None and config.metric not in METRICS:
        raise UserError(
            f"There is no metric {config.metric!r}; choose one of {', '.join(METRICS)}."
        )
    if config.task is not None and "+" in config.task:
        from .mixture import load_mixture

        return load_mixture(config, part or load_task)
    if config.task is not None and config.task not in (*STARTERS, PREFIX_LM):
        return _chosen(config, (named or _named)(config))
    if config.splits != "official":
        raise UserError(
            f"--splits {config.splits} is for named tasks such as superglue/rte; leave it out."
        )
    task = _prefix_lm(config) if config.task == PREFIX_LM else _own(_resolved(config))
    return _chosen(config, task)


def sketch(config: TaskConfig) -> Task:
    """A task, to see whether its settings could be: a person's own with its rows, a named one with a stand-in for them, unless its
    settings depend on them."""
    return load_task(config, sketch, _stand_in)


def _stand_in(config: TaskConfig) -> Task:
    assert config.task is not None
    if config.shots is not None or config.metric == "exact_match":
        return _named(config)
    _refuse(config, OWN)
    defined = definition(config.task)
    examples = [Example(defined.name, next(iter(defined.labels), defined.name))]
    return Task(
        defined.name, named_form(defined, config.task_word), examples, examples, defined.metrics
    )


def _own(config: TaskConfig) -> Task:
    """A person's own data, or the starter data."""
    assert config.train is not None
    held = (
        read_rows(config.validation, "validation")
        if config.validation is not None
        else read_split(config.train, "validation")
    )
    few = _few(config) if held is not None else None  # what is held back is taken from all rows
    rows = read_rows(config.train, few=few)
    form = _form(config, rows)
    flag = "--text" if config.template is None else "--template"
    form.check_columns(
        rows,
        dict.fromkeys(form.columns, f"name one with {flag}")
        | {form.label: "name one with --label"},
    )
    if held is not None:
        form.check_columns(
            held, dict.fromkeys((*form.columns, form.label), f"rename one as in {config.train}")
        )
    unknown = "give it a word with --labels" if config.labels else ""
    train = form.examples(rows, config.skip_bad_rows, unknown=unknown)
    skipped = len(rows) - len(train)
    if not config.labels:
        seen = (
            [*train, *form.examples(held or [], True, "validation")] if few else train
        )  # a few rows may lack a class
        form = dataclasses.replace(form, words=_words(config, seen))
    if held is None:
        train, validation = stratified_split(train, 0.1, config.split_seed)
    else:
        validation = form.examples(held, config.skip_bad_rows, "validation", unknown)
        skipped += len(held) - len(validation)
    if len({e.target for e in train}) < 2:
        raise UserError(
            f"All training rows have the label {train[0].target!r}; there is nothing to learn from one class."
        )
    name = config.task or f"{config.train.rstrip('/').rpartition('/')[2]}:{form.label}"
    return Task(name, form, train, validation, ("accuracy", "macro_f1"), skipped)


def own_split(config: TaskConfig, task: Task, split: str) -> list[Example]:
    """One split of a loaded task, as it has it; of a dataset, any other that it holds."""
    found = {"train": task.train, "validation": task.validation, "test": task.test}
    there = [name for name, examples in found.items() if examples]
    if split in there:
        return found[split]
    if config.train is not None and config.task is None and not is_file(config.train):
        return task.form.examples(read_rows(config.train, split), config.skip_bad_rows, split)
    raise NoSplitError(f"{task.name} has no split {split!r}; it has {', '.join(there)}.")


def data_folder(config: TaskConfig) -> str | None:
    return config.data_dir or os.environ.get(DATA_VARIABLE) or None


def _few(config: TaskConfig) -> Few | None:
    """The rows that a capped run may need: of data too large to hold, only they are held. Shots are drawn from all rows."""
    return (
        Few(config.cap, config.split_seed)
        if config.cap is not None and config.shots is None
        else None
    )


def has_rows(name: str, folder: str | None) -> bool:
    """Whether a task's training rows are at hand: starter data, in the data folder, or on the hub where there is none."""
    if name in STARTERS:
        return True
    defined = definition(name)
    return has_named(defined.name, defined.hub, "train", defined.splits.get("train"), folder)


def named_split(
    defined: Definition,
    split: str,
    folder: str | None,
    task_word: bool = True,
    skip_bad: bool = False,
    few: Few | None = None,
) -> list[Example]:
    """One split of a named task, in the official order."""
    form = named_form(defined, task_word)
    if defined.files:
        if split not in defined.files:
            raise NoSplitError(
                f"{defined.name} has no split {split!r}; it has {', '.join(defined.files)}."
            )
        rows = read_rows(defined.files[split], few=few)
    else:
        rows = read_named(defined.name, defined.hub, split, defined.splits.get(split), folder, few)
    return form.examples(rows, skip_bad, split)


def check_labelled(name: str, split: str, examples: Sequence[Example]) -> None:
    """What is judged by must have labels, or an answer that is none would be right."""
    if not all(map(labelled, examples)):
        raise UserError(
            f"{name} has no labels in {split}, or not in all rows, so nothing can be scored; choose another --split."
        )


def named_form(defined: Definition, task_word: bool = True) -> Form:
    return Form("", "", {word: word for word in defined.labels}, defined.name, task_word)


def _named(config: TaskConfig) -> Task:
    """A task of the registry, with official splits or SMoP's."""
    assert config.task is not None
    _refuse(config, OWN)
    defined = definition(config.task)
    folder = data_folder(config)
    read = partial(
        named_split,
        defined,
        folder=folder,
        task_word=config.task_word,
        skip_bad=config.skip_bad_rows,
    )
    held: list[Example] | None = None
    try:
        held = read("validation")
    except NoSplitError:
        if config.splits == "smop":
            raise
    few = (
        _few(config) if config.splits == "official" and held is not None else None
    )  # what is held back is taken from all rows
    train: list[Example] = []
    with contextlib.suppress(UserError):  # that no row is usable, which of all rows may not be so
        train = read("train", few=few) if few is not None else []
    if few is None or len(train) < few.most:  # not every row is an example
        train = read("train")
    test = held if held is not None and config.splits == "smop" else []
    if held is None or config.splits == "smop":
        train, held = held_out(train, 0.1, config.split_seed, bool(defined.labels))
    parts = {"training": train, "validation": held, "test": test}
    for split, examples in parts.items():
        if not all(map(labelled, examples)):
            parts[split] = list(filter(labelled, examples)) if config.skip_bad_rows else []
        if examples and not parts[split]:
            raise UserError(
                f"The {split} rows of {defined.name} have no labels, or not all; take a copy that has them."
            )
    train, held, test = parts.values()
    return Task(
        defined.name, named_form(defined, config.task_word), train, held, defined.metrics, 0, test
    )


def _prefix_lm(config: TaskConfig) -> Task:
    _refuse(config, ("text", "template", "label", "labels"))
    if config.train is None:
        raise UserError(
            f"--task {PREFIX_LM} learns to go on with a text; name a text file with --train."
        )
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
        answers = random.Random(config.split_seed).sample(
            [example.target for example in train], len(train)
        )
        train = [
            example._replace(target=answer) for example, answer in zip(train, answers, strict=True)
        ]
    form, test = task.form, task.test
    if config.instruction or config.demonstrations:
        before, after = _design(config, dataclasses.replace(task, train=train))
        form = dataclasses.replace(form, before=before, after=after)
        train, validation, test = (form.designed(part) for part in (train, validation, test))
    if config.metric is not None:
        if config.metric == "f1" and len(task.labels) not in (0, 2):
            raise UserError(
                f"--metric f1 is of two classes, and {task.name} has {len(task.labels)}; take macro_f1."
            )
        if config.metric == "exact_match" and not any(
            "question" in example.facts for example in validation
        ):
            raise UserError(
                f"--metric exact_match is of questions with several answers, and {task.name} has none; take accuracy, or em."
            )
        metrics = (config.metric, *(name for name in task.metrics if name != config.metric))
    form = dataclasses.replace(form, sentinel=config.sentinel)
    return dataclasses.replace(
        task,
        form=form,
        train=train,
        validation=validation,
        test=test,
        metrics=metrics,
        usual=task.commonest,
    )


def _design(config: TaskConfig, task: Task) -> tuple[str, str]:
    """An instruction and solved examples, the classes in turn, as what stands before and after every text."""
    before = f"{config.instruction.strip()} " if config.instruction else ""
    if not config.demonstrations:
        return before, ""
    rng = random.Random(config.split_seed)
    piles = (
        [rng.sample(places, len(places)) for places in by_class(task.train).values()]
        if task.labels
        else []
    )
    order = (
        [place for turn in itertools.zip_longest(*piles) for place in turn if place is not None]
        if piles
        else []
    )
    order = order or rng.sample(range(len(task.train)), len(task.train))
    solved = [task.train[place] for place in order[: config.demonstrations]]
    return before + "".join(f"{e.input} answer: {e.target}\n\n" for e in solved), " answer:"


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
    _refuse(config, ("text", "label", "validation"))
    starter = STARTERS[config.task]
    if config.template is not None:
        starter = {name: value for name, value in starter.items() if name != "text"}
    return dataclasses.replace(config, **starter)


def _refuse(config: TaskConfig, names: Sequence[str]) -> None:
    """Settings that a task brings itself."""
    given = next((name for name in names if getattr(config, name) is not None), None)
    if given is not None:
        raise UserError(f"--task {config.task} has its own {given}; leave --{given} out.")


def _form(config: TaskConfig, rows: Sequence[Row]) -> Form:
    if config.label is None:
        raise UserError(
            f"No label column is named; choose one with --label from {', '.join(rows[0].values)}."
        )
    if (config.text is None) == (config.template is None):
        raise UserError(
            f"Name the text with either --text COLUMN or --template; the columns are {', '.join(rows[0].values)}."
        )
    template = config.template if config.template is not None else f"{{{config.text}}}"
    return Form(check_template(template), config.label, dict(config.labels or {}))


def _words(config: TaskConfig, train: Sequence[Example]) -> dict[str, str]:
    """Without a mapping, a label's value is its own word."""
    found = Counter(e.target for e in train)
    if len(train) >= 20 and len(found) > len(train) / 2:
        many = f"{len(found)} different values in {len(train)} rows"
        raise UserError(
            f"The column {config.label!r} has {many}, so it is no class label; name another with --label."
        )
    return {value: value for value in sorted(found)}
