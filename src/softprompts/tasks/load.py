"""Loading tasks: named ones, a user's own data, raw text, and mixtures of them."""

import contextlib
import dataclasses
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from ..config import TaskConfig
from ..errors import UserError, setting
from .metrics import is_number, metric
from .named import check_available, data_folder, named_format, named_split
from .prefix_lm import PREFIX_LM, prefix_lm
from .registry import definition
from .sampling import few_shot, indices_by_class, sample, split_held_out
from .sources import NoSplitError, Reservoir, Row, check_dataset, is_file, read_rows, read_split
from .starter import STARTERS
from .statistics import CORRELATIONS
from .task import MEAN, Task, load_mixture, mixture_names
from .task_definition import Definition, Example, is_labelled
from .text_format import TextFormat, check_template

_DATA_SETTINGS = ("train", "text", "template", "label", "validation")
"""The settings of a user's own data, which a named task brings itself."""

SMALL_FILE = 2**21
"""Bytes of a file that is read in a moment, so that its rows are checked before all else."""

FREE_LENGTH = 32
"""The fewest tokens that a free-text answer may have."""

Load = Callable[[TaskConfig], Task]


def load_task(config: TaskConfig, member: Load | None = None, named: Load | None = None) -> Task:
    """The task that the settings describe, with its rows read and checked.

    `member` loads the tasks of a mixture (default: this function), and `named` a named task.
    """
    _check_metric(config)
    if config.free_text and (config.task is not None or config.labels is not None):
        raise UserError(
            f"{setting('task.free_text')} is only for free text in your own data; leave it out "
            f"with {setting('task.task' if config.task is not None else 'task.labels')}."
        )
    if config.task is not None and "+" in config.task:
        return load_mixture(config, member or load_task)
    if config.task is not None and config.task not in (*STARTERS, PREFIX_LM):
        return _apply_settings(config, (named or _load_named)(config))
    if config.splits != "official":
        raise UserError(
            f"{setting('task.splits', config.splits)} is for named tasks such as superglue/rte; "
            "leave it out."
        )
    load = _load_prefix_lm if config.task == PREFIX_LM else _load_own
    return _apply_settings(config, load(config))


def preview_task(config: TaskConfig) -> Task:
    """A task for checking settings, without reading the rows of named tasks.

    A named task has one placeholder example, unless its settings depend on the rows.
    """
    return load_task(config, preview_task, _load_placeholder)


def check_task(config: TaskConfig) -> None:
    """Refuse what can be refused at once: unknown names, missing files, and bad rows of small
    files."""
    _check_metric(config)
    if config.task is not None:
        unnamed = ("", *STARTERS, PREFIX_LM)
        names = [name for name in mixture_names(config.task) if name not in unnamed]
        for task in [definition(name) for name in names]:
            check_available(task, data_folder(config))
        if config.task in STARTERS:
            load_task(config)
        return
    paths = [Path(name) for name in (config.train, config.validation) if name and is_file(name)]
    small = all(path.stat().st_size <= SMALL_FILE for path in paths if path.is_file())
    dataset = config.train is not None and "://" not in config.train and not is_file(config.train)
    if dataset:
        check_dataset(str(config.train))
    elif small:
        load_task(config)


def own_split(config: TaskConfig, task: Task, split: str) -> list[Example]:
    """A split of a loaded task; for a dataset, also a split that the task did not load."""
    splits = {"train": task.train, "validation": task.validation, "test": task.test}
    loaded = [name for name, examples in splits.items() if examples]
    if split in loaded:
        return splits[split]
    if config.train is not None and config.task is None and not is_file(config.train):
        return task.form.examples(read_rows(config.train, split), config.skip_bad_rows, split)
    raise NoSplitError(f"{task.name} has no split {split!r}; it has {', '.join(loaded)}.")


# -- named tasks -----------------------------------------------------------------------------------


def _load_named(config: TaskConfig) -> Task:
    task = _definition(config)
    read = partial(
        named_split,
        task,
        folder=data_folder(config),
        task_word=config.task_word,
        skip_bad=config.skip_bad_rows,
        words=config.labels,
    )
    validation: list[Example] | None = None
    try:
        validation = read("validation")
    except NoSplitError:
        if config.splits == "smop":
            raise
    # a held-out part is taken from all training rows, not from a sample of them
    sampled = config.splits == "official" and validation is not None
    train = _read_train(read, _reservoir(config) if sampled else None)
    test = validation if validation is not None and config.splits == "smop" else []
    if validation is None or config.splits == "smop":
        train, validation = split_held_out(train, 0.1, config.split_seed, bool(task.labels))
    splits = {"training": train, "validation": validation, "test": test}
    for split, examples in splits.items():
        if not all(map(is_labelled, examples)):
            splits[split] = list(filter(is_labelled, examples)) if config.skip_bad_rows else []
        if examples and not splits[split]:
            raise UserError(
                f"Not all {split} rows of {task.name} have labels; use a copy with labels."
            )
    train, validation, test = splits.values()
    return Task(
        task.name,
        named_format(task, config.task_word, config.labels),
        train,
        validation,
        task.metrics,
        test=test,
    )


def _read_train(read: Callable[..., list[Example]], reservoir: Reservoir | None) -> list[Example]:
    """The training examples, of a sample of the rows if that yields enough of them."""
    if reservoir is not None:
        with contextlib.suppress(UserError):  # a sample may have no usable row, unlike all rows
            train = read("train", reservoir=reservoir)
            if len(train) >= reservoir.size:  # some rows have no example
                return train
    return read("train")


def _load_placeholder(config: TaskConfig) -> Task:
    if config.shots is not None or config.metric == "exact_match":
        return _load_named(config)
    task = _definition(config)
    form = named_format(task, config.task_word, config.labels)
    examples = [Example(task.name, next(iter(form.labels), task.name))]
    return Task(task.name, form, examples, examples, task.metrics)


def _definition(config: TaskConfig) -> Definition:
    """The definition of a named task, whose settings and metrics are checked."""
    assert config.task is not None
    _check_unset(config, _DATA_SETTINGS)
    task = definition(config.task)
    unknown = [word for word in config.labels or () if word not in task.labels]
    if unknown:
        raise UserError(
            f"{task.name} has no label {unknown[0]!r} to replace with {setting('task.labels')}; "
            f"its labels are {', '.join(task.labels) or 'free text'}."
        )
    for name in task.metrics:
        metric(name)
    return task


# -- a user's own data, and raw text ---------------------------------------------------------------


def _load_own(config: TaskConfig) -> Task:
    config = _expand_starter(config)
    assert config.train is not None
    held_out_rows = (
        read_split(config.train, "validation", config.encoding)
        if config.validation is None
        else read_rows(config.validation, "validation", encoding=config.encoding)
    )
    # a held-out part is taken from all training rows, not from a sample of them
    reservoir = _reservoir(config) if held_out_rows is not None else None
    rows = read_rows(config.train, reservoir=reservoir, encoding=config.encoding)
    form = _own_format(config, rows, held_out_rows)
    remedy = f"give it a label word with {setting('task.labels')}" if config.labels else ""
    train = form.examples(rows, config.skip_bad_rows, remedy=remedy)
    skipped = len(rows) - len(train)
    if not config.labels and not config.free_text:
        labelled = train
        if reservoir is not None:  # a sample may lack a class
            labelled = [*train, *form.examples(held_out_rows or [], True, "validation")]
        form = dataclasses.replace(form, words=_label_words(config, labelled))
    if held_out_rows is None:
        train, validation = split_held_out(train, 0.1, config.split_seed, not config.free_text)
    else:
        validation = form.examples(held_out_rows, config.skip_bad_rows, "validation", remedy)
        skipped += len(held_out_rows) - len(validation)
    if not config.free_text and len({example.target for example in train}) < 2:
        alike = [value for value, word in form.words.items() if word == train[0].target]
        if len(alike) > 1:
            raise UserError(
                f"{setting('task.labels')} gives {' and '.join(alike)} the same word "
                f"{train[0].target!r}, and no row has another; give them different words."
            )
        raise UserError(
            f"All training rows have the label {train[0].target!r}; "
            "there is nothing to learn from one class."
        )
    words = max(len(example.target.split()) for example in [*train, *validation])
    longest = max(FREE_LENGTH, 2 * words)  # a word is rarely more than two tokens
    return Task(
        config.title, form, train, validation, form.metrics, skipped, longest_answer=longest
    )


def _expand_starter(config: TaskConfig) -> TaskConfig:
    if config.task is None:
        if config.train is None:
            raise UserError(
                f"No training data is given; name a task with {setting('task.task')} "
                f"(such as {', '.join(STARTERS)}; list them all with `softprompts tasks list`), "
                f"or give your own data with {setting('task.train', 'FILE')}, "
                f"{setting('task.text', 'COLUMN')} and {setting('task.label', 'COLUMN')}."
            )
        return config
    if config.train is not None:
        raise UserError(
            f"Both {setting('task.task')} and {setting('task.train')} are given; leave one out."
        )
    _check_unset(config, ("text", "label", "validation"))
    starter = STARTERS[config.task]
    if config.template is not None:
        starter = {name: value for name, value in starter.items() if name != "text"}
    return dataclasses.replace(config, **starter)


def _own_format(
    config: TaskConfig, rows: Sequence[Row], held_out_rows: Sequence[Row] | None
) -> TextFormat:
    """The format of a user's own rows, whose columns are checked."""
    columns = ", ".join(rows[0].values)
    if config.label is None:
        raise UserError(
            f"No label column is named; choose one with {setting('task.label')} from {columns}."
        )
    if (config.text is None) == (config.template is None):
        raise UserError(
            f"Name the text with either {setting('task.text', 'COLUMN')} or "
            f"{setting('task.template')}; the columns are {columns}."
        )
    template = config.template if config.template is not None else f"{{{config.text}}}"
    form = TextFormat(check_template(template), config.label, dict(config.labels or {}))
    named_by = setting("task.text" if config.template is None else "task.template")
    if form.label in form.columns:
        raise UserError(
            f"The label column {form.label!r} is also in {named_by}, which gives the answer away; "
            "name other columns."
        )
    remedies = dict.fromkeys(form.columns, f"name one with {named_by}")
    form.check_columns(rows, remedies | {form.label: f"name one with {setting('task.label')}"})
    if held_out_rows is not None:
        remedy = f"rename one as in {config.train}"
        form.check_columns(held_out_rows, dict.fromkeys((*form.columns, form.label), remedy))
    return form


def _label_words(config: TaskConfig, examples: Sequence[Example]) -> dict[str, str]:
    """Without given label words, a label's value is its word."""
    counts = Counter(example.target for example in examples)
    if len(examples) >= 20 and len(counts) > len(examples) / 2:
        raise UserError(
            f"The column {config.label!r} has {len(counts)} different values in {len(examples)} "
            f"rows, so it is not a class label; name another with {setting('task.label')}, or set "
            f"{setting('task.free_text')} if it is text to generate."
        )
    return {value: value for value in sorted(counts)}


def _load_prefix_lm(config: TaskConfig) -> Task:
    _check_unset(config, ("text", "template", "label", "labels"))
    if config.train is None:
        raise UserError(
            f"The task {PREFIX_LM} learns to continue a text; "
            f"name a text file with {setting('task.train')}."
        )
    train, validation = prefix_lm(config.train, config.validation, config.split_seed)
    return Task(PREFIX_LM, TextFormat("{text}", "rest"), train, validation, ("f1", "em"))


# -- settings that apply to every task -------------------------------------------------------------


def _apply_settings(config: TaskConfig, task: Task) -> Task:
    train, validation, test = _training_examples(config, task), task.validation, task.test
    metrics = _metrics(config, task)
    if config.hold_out is not None and len(task.members) == 1 and len(train) > 1:
        train, validation = split_held_out(
            train, config.hold_out, config.split_seed, bool(task.labels)
        )
        test = []
    if config.cap_validation is not None:
        validation = sample(validation, config.cap_validation, config.split_seed)
    before, after = _prompt_design(config, train, bool(task.labels))
    form = dataclasses.replace(task.form, sentinel=config.sentinel, before=before, after=after)
    return dataclasses.replace(
        task,
        form=form,
        train=form.wrap(train),
        validation=form.wrap(validation),
        test=form.wrap(test),
        metrics=metrics,
        full_majority_label=task.majority_label,
    )


def _training_examples(config: TaskConfig, task: Task) -> list[Example]:
    train = task.train
    if config.shots is not None:
        if not task.labels:
            raise UserError(
                f"{task.name} has no classes for {setting('task.shots')}; "
                f"use {setting('task.cap')}."
            )
        train = few_shot(train, config.shots, config.split_seed)
    if config.cap is not None:
        train = sample(train, config.cap, config.split_seed)
    if config.shuffle_labels:
        targets = [example.target for example in train]
        targets = random.Random(config.split_seed).sample(targets, len(targets))
        train = [e._replace(target=target) for e, target in zip(train, targets, strict=True)]
    return train


def _check_metric(config: TaskConfig) -> None:
    if config.metric not in (None, MEAN):
        metric(str(config.metric))


def _metrics(config: TaskConfig, task: Task) -> tuple[str, ...]:
    """The task's metrics, with the chosen one first."""
    chosen = "+".join(task.metrics) if config.metric == MEAN else config.metric
    if chosen is None:
        return task.metrics
    if config.metric != MEAN and "f1" in chosen.split("+") and len(task.labels) not in (0, 2):
        raise UserError(
            f"{setting('task.metric', 'f1')} is for two classes, but {task.name} has "
            f"{len(task.labels)}; use {setting('task.metric', 'macro_f1')}."
        )
    if config.metric != MEAN and not CORRELATIONS.isdisjoint(chosen.split("+")):
        targets = task.labels or [example.target for example in task.validation]
        word = next((target for target in targets if not is_number(target)), None)
        if word is not None:
            raise UserError(
                f"{setting('task.metric', chosen)} is for labels that are numbers, but {task.name} "
                f"has the label {word!r}; use another metric, such as accuracy."
            )
    if chosen == "exact_match" and not any("question" in e.metadata for e in task.validation):
        raise UserError(
            f"{setting('task.metric', 'exact_match')} is for questions with several answers, "
            f"which {task.name} does not have; use accuracy or em."
        )
    return (chosen, *(name for name in task.metrics if name != chosen))


def _prompt_design(
    config: TaskConfig, train: Sequence[Example], has_labels: bool
) -> tuple[str, str]:
    """An instruction and demonstrations, one class after another, to put around every input."""
    before = f"{config.instruction.strip()} " if config.instruction else ""
    if not config.demonstrations:
        return before, ""
    rng = random.Random(config.split_seed)
    classes = indices_by_class(train).values() if has_labels else [range(len(train))]
    rounds = itertools.zip_longest(*(rng.sample(indices, len(indices)) for indices in classes))
    order = [index for indices in rounds for index in indices if index is not None]
    for example in [train[index] for index in order[: config.demonstrations]]:
        before += f"{example.input} answer: {example.target}\n\n"
    return before, " answer:"


def _reservoir(config: TaskConfig) -> Reservoir | None:
    """Holds only the rows that a capped run may need; shots are drawn from all rows."""
    if config.cap is None or config.shots is not None:
        return None
    return Reservoir(config.cap, config.split_seed)


def _check_unset(config: TaskConfig, names: Sequence[str]) -> None:
    for name in names:
        if getattr(config, name) is not None:
            raise UserError(
                f"The task {config.task} has its own {name}; leave out {setting(f'task.{name}')}."
            )
