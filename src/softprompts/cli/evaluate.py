import argparse
import dataclasses
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..artifacts.card import Card
from ..config import TaskConfig
from ..errors import UserError
from ..library import default_folder
from ..tasks import (
    PREFIX_LM,
    STARTERS,
    Definition,
    Example,
    Row,
    Task,
    check_labelled,
    data_folder,
    definition,
    is_file,
    load_task,
    mixture_names,
    named_split,
    own_split,
    read_rows,
)
from .command import (
    BACKBONE,
    ENCODING,
    PROMPT,
    SCORING,
    action,
    argument,
    check_card_model,
    check_prompt_folder,
    load_tuned_prompt,
)
from .output import describe_classes, describe_report, invalid_answers, print_result
from .table_file import unused_names, write_table_file


@dataclass(frozen=True)
class EvaluationSet:
    """Labelled rows, and how predictions for them are scored."""

    examples: list[Example]
    metrics: Sequence[str]
    labels: list[str]
    translation: dict[str, str] = field(default_factory=dict)
    """The prompt's label words in the words of another task."""
    task: Task | None = None
    """The task whose training rows baselines learn from, if its rows are at hand."""


MAX_CALIBRATED = 1000
"""The most rows whose label probabilities are computed only for the calibration error."""


ROWS = (
    argument(
        "--file",
        metavar="FILE",
        help="labelled rows with the task's columns (default: the task's own rows)",
    ),
    argument(
        "--task",
        metavar="NAME",
        help="another named task to evaluate on; its labels are matched with the prompt's in order",
    ),
    argument(
        "--split",
        default="validation",
        help="train, validation, or another split of the task or dataset (default validation)",
    ),
    argument(
        "--data-dir",
        metavar="DIR",
        help="a folder with named tasks' rows (default: as tuned)",
    ),
    ENCODING,
    argument("--skip-bad-rows", action="store_true", help="skip rows with an empty text or label"),
)
"""The flags that say which rows are evaluated."""


@action(
    "evaluate",
    """softprompts evaluate runs/stars --file test.csv
  softprompts evaluate runs/qqp --task glue/mrpc --data-dir DATA      # zero-shot""",
    PROMPT,
    SCORING,
    *BACKBONE,
    *ROWS,
    argument(
        "--errors",
        metavar="FILE",
        type=Path,
        help="write the rows it got wrong, with probabilities, to a .csv or .jsonl file",
    ),
    argument(
        "--no-baselines",
        dest="baselines",
        action="store_false",
        help="do not compare with a bag-of-words classifier on the training rows",
    ),
)
def main(options: argparse.Namespace) -> int:
    """Score a tuned prompt on labelled rows."""
    if options.errors is not None and options.errors.suffix not in (".csv", ".jsonl"):
        raise UserError(f"--errors is {options.errors}; end its name in .csv or .jsonl.")
    check_prompt_folder(options.prompt, default_folder())
    rows = file_rows(options)
    card = Card.of_folder(options.prompt)
    data = evaluation_set(card, options, rows)
    check_card_model(card, options.model)

    from ..tasks.score_report import score_report
    from ..tuning.advice import advice, exploded
    from .row_progress import RowProgress

    tuned = load_tuned_prompt(options)
    examples, labels = data.examples, data.labels
    inputs = [example.input for example in examples]
    predictor = tuned.predictor(options.scoring)
    with RowProgress("evaluating", len(examples), options.quiet) as progress:
        answers = predictor(inputs, progress.advance_rows)
        probabilities = None
        if labels and (options.errors or len(inputs) <= MAX_CALIBRATED):
            probabilities = [
                {data.translation.get(label, label): share for label, share in shares.items()}
                for shares in predictor.probabilities(inputs)
            ]
    predictions = [data.translation.get(answer, answer) for answer in answers]
    baselines = _baselines(card, data, options)
    report = score_report(examples, predictions, data.metrics, labels, baselines, probabilities)
    if options.errors:
        columns = _other_columns(card, data.examples, rows or _own_file_rows(card, options))
        _write_errors(options.errors, data, predictions, probabilities, columns)
    result: dict[str, Any] = {
        "prompt": str(options.prompt),
        "task": options.task or card.task.name,
        "scoring": options.scoring or card.scoring,
        **report.plain(),
        "majority": report.baselines["majority"]["metrics"],
    }
    longer = bool(card.steps) and not exploded(card)
    return print_result(
        options,
        result,
        *describe_report(result),
        *describe_classes(result),
        invalid_answers(report.invalid, len(examples), longer),
        advice(card, result),
        f"the rows it got wrong are in {options.errors}" if options.errors else None,
    )


def _baselines(
    card: Card, data: EvaluationSet, options: argparse.Namespace
) -> dict[str, list[str]]:
    """The baselines' answers; without the training rows, only the majority class."""
    from ..tasks.score_report import MAJORITY, baseline_predictions

    if data.task is not None and options.baselines:
        return baseline_predictions(data.task, data.examples)
    majority = card.task.commonest
    if options.task or not majority:
        majority = Counter(example.target for example in data.examples).most_common(1)[0][0]
    return {MAJORITY: [majority] * len(data.examples)}


def file_rows(options: argparse.Namespace) -> list[Row]:
    """The rows of --file, if it is given; refuses wrong flags about rows."""
    if options.file and options.task:
        raise UserError("Rows come from --file or from --task; leave one out.")
    if options.task:
        definition(options.task)
    if not options.file:
        return []
    if options.split != "validation" and is_file(options.file):
        raise UserError(f"{options.file} is a file without splits; leave out --split.")
    return read_rows(options.file, options.split, encoding=options.encoding)


def _own_file_rows(card: Card, options: argparse.Namespace) -> list[Row]:
    """The rows of the files that the prompt was tuned on; none of a named task or a dataset."""
    config = TaskConfig.of(card.task_settings)
    files = [file for file in (config.train, config.validation) if file and is_file(file)]
    if options.task or config.task is not None:
        return []
    return [row for file in files for row in read_rows(file, encoding=config.encoding)]


def _other_columns(
    card: Card, examples: Sequence[Example], rows: Sequence[Row]
) -> list[dict[str, Any]]:
    """The columns that each example's row has besides text and label; none if it is uncertain
    which row it was."""
    form, rows_of = card.answering().form, defaultdict[tuple[str, str], list[Row]](list)
    for row in rows:
        with suppress(UserError):  # a bad row, which was skipped
            for example in form.row_examples(row, "validation"):
                rows_of[example.input, example.target].append(row)
    texts = [(example.input, example.target) for example in examples]
    counts, used = Counter(texts), {*form.columns, form.label}
    next_row = {text: iter(rows_of[text]) for text in texts if len(rows_of[text]) == counts[text]}
    return [
        {name: value for name, value in next(next_row[text]).values.items() if name not in used}
        if text in next_row
        else {}
        for text in texts
    ]


def _write_errors(
    path: Path,
    data: EvaluationSet,
    predictions: Sequence[str],
    probabilities: Sequence[Mapping[str, float]] | None,
    other_columns: Sequence[Mapping[str, Any]],
) -> None:
    """The rows that the prompt got wrong, with their other columns, such as an id, and with the
    probabilities of the labels if there are any."""
    from ..tasks.statistics import is_wrong

    kept = dict.fromkeys(name for row in other_columns for name in row)
    names = ["row", "input", "target", "prediction"]
    columns = {label: f"probability of {label}" for label in data.labels}
    names += columns.values() if path.suffix == ".csv" else ["probabilities"]
    names, wrong = list(unused_names(names, kept)), list[dict[str, Any]]()
    for number, (example, prediction) in enumerate(zip(data.examples, predictions, strict=True)):
        if is_wrong(data.metrics[0], example, prediction, data.labels):
            shares = {} if probabilities is None else probabilities[number]
            rounded: dict[str, Any] = {label: round(share, 4) for label, share in shares.items()}
            by_column = {column: rounded.get(label) for label, column in columns.items()}
            values = [number + 1, example.input, example.target, prediction]
            values += by_column.values() if path.suffix == ".csv" else [rounded]
            wrong.append(kept | {**other_columns[number]} | dict(zip(names, values, strict=True)))
    write_table_file(path, wrong, [*kept, *names])


def evaluation_set(card: Card, options: argparse.Namespace, rows: Sequence[Row]) -> EvaluationSet:
    form = card.answering().form
    metrics = card.task.metrics or form.metrics
    if rows:
        form.check_columns(rows)
        examples = form.examples(rows, options.skip_bad_rows, "validation")
        return EvaluationSet(examples, metrics, form.labels, task=_training_task(card))
    data_dir = {"data_dir": options.data_dir} if options.data_dir else {}
    config = TaskConfig.of({**card.task_settings, **data_dir})
    if not options.task:
        return _own_rows(card, config, options)
    member = _mixture_member(config, options.task)
    if member is not None:
        return _own_rows(card, member, options, load_task(member))
    other = definition(options.task)
    examples = form.wrap(named_split(other, options.split, data_folder(config), form.task_word))
    check_labelled(other.name, options.split, examples)
    translation = _translation(form.labels, other)
    return EvaluationSet(examples, other.metrics, list(other.labels), translation)


def _own_rows(
    card: Card, config: TaskConfig, options: argparse.Namespace, member: Task | None = None
) -> EvaluationSet:
    """Rows of the task that the prompt was tuned on, or of one `member` of its mixture."""
    split, form = options.split, card.answering().form if member is None else member.form
    metrics = (card.task if member is None else member).metrics or form.metrics
    if form.task is not None and split != "validation" and config.splits == "official":
        named = named_split(definition(form.task), split, data_folder(config), form.task_word)
        examples = form.wrap(named)
        check_labelled(form.task, split, examples)
        task = member or _training_task(card)
        return EvaluationSet(examples, metrics, form.labels, task=task)
    if config.task is None and config.train is None:
        raise UserError(
            f"{options.prompt} was imported, so it has no rows of its own; "
            "give labelled rows with --file."
        )
    task = member or load_task(config)
    if task.metrics[0] == "mean":
        raise UserError("A mixture is evaluated one task at a time; name one with --task.")
    own = member is None and (form.task is None or config.splits != "official")
    if own and card.task.digests.get(split) not in (None, task.digests.get(split)):
        # changed rows would be split differently, and training rows could be evaluated on
        raise UserError(
            f"The {split} rows of {task.name} have changed since {options.prompt} was tuned; "
            "restore them, or give labelled rows with --file."
        )
    return EvaluationSet(own_split(config, task, split), metrics, form.labels, task=task)


def _training_task(card: Card) -> Task | None:
    """The task that the prompt was tuned on, if its rows are on this machine and unchanged."""
    settings = card.task_settings
    named = settings.get("train") is None and settings.get("task") not in STARTERS
    task = None if named else own_task(card)
    same = task is not None and card.task.digests.get("train") == task.digests["train"]
    return task if same else None


def own_task(card: Card) -> Task | None:
    """The task that a prompt was tuned on; None if its rows are not on this machine."""
    with suppress(UserError):
        return load_task(TaskConfig.of(card.task_settings))
    return None


def _mixture_member(config: TaskConfig, name: str) -> TaskConfig | None:
    """A task of the mixture that a prompt was tuned on, with the mixture's settings."""
    if config.task is None or "+" not in config.task:
        return None
    names = [part for part in mixture_names(config.task) if part != PREFIX_LM]
    matches = [part for part in names if definition(part).name == definition(name).name]
    return dataclasses.replace(config, task=matches[0]) if matches else None


def _translation(labels: Sequence[str], other: Definition) -> dict[str, str]:
    """The prompt's label words as another task's, in order; none if the words are the same."""
    if set(other.labels) == set(labels):
        return {}
    if len(other.labels) != len(labels):
        raise UserError(
            f"{other.name} has {len(other.labels) or 'no'} labels, and the prompt has "
            f"{len(labels) or 'none'}; name a task with the same number of labels."
        )
    return dict(zip(labels, other.labels, strict=True))
