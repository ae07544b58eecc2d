"""The command `softprompts evaluate`."""

import argparse
import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import TaskConfig
from ..errors import UserError, spelled
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
from .command import add_tuned_prompt, check_prompt_folder, load_tuned_prompt, make_parser
from .output import describe_classes, describe_report, invalid_answers, print_result
from .table_file import write_table_file

if TYPE_CHECKING:
    from ..tuning.tuned import Tuned

EXAMPLES = """softprompts evaluate runs/stars --file test.csv
  softprompts evaluate runs/qqp --task glue/mrpc --data-dir DATA      # zero-shot"""


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


def main(argv: Sequence[str]) -> int:
    """Score a tuned prompt on labelled rows."""
    options = _parser().parse_args(argv)
    rows = _check(options)

    from ..tasks.score_report import score_report
    from ..tuning.advice import advice, exploded
    from .progress import RowProgress

    tuned = load_tuned_prompt(options)
    data = evaluation_set(tuned, options, rows)
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
    baselines = _baselines(tuned, data, options)
    report = score_report(examples, predictions, data.metrics, labels, baselines, probabilities)
    if options.errors:
        _write_errors(options.errors, data, predictions, probabilities)
    result: dict[str, Any] = {
        "prompt": str(options.prompt),
        "task": options.task or tuned.card.task.name,
        "scoring": options.scoring or tuned.card.scoring,
        **report.plain(),
        "majority": report.baselines["majority"]["metrics"],
    }
    lines = [*describe_report(result), *describe_classes(result)]
    longer = bool(tuned.card.steps) and not exploded(tuned.card)
    if note := invalid_answers(report.invalid, len(examples), longer):
        lines.append(note)
    if (text := advice(tuned.card, result)) is not None:
        lines.append(spelled(text))
    if options.errors:
        lines.append(f"the rows it got wrong are in {options.errors}")
    return print_result(options, result, "\n".join(lines))


def _baselines(
    tuned: "Tuned", data: EvaluationSet, options: argparse.Namespace
) -> dict[str, list[str]]:
    """The baselines' answers; without the training rows, only the majority class."""
    from ..tasks.score_report import MAJORITY, baseline_predictions

    if data.task is not None and options.baselines:
        return baseline_predictions(data.task, data.examples)
    majority = tuned.card.task.commonest
    if options.task or not majority:
        majority = Counter(example.target for example in data.examples).most_common(1)[0][0]
    return {MAJORITY: [majority] * len(data.examples)}


def _check(options: argparse.Namespace) -> list[Row]:
    """Refuse what can be refused before torch is imported; returns the rows of --file."""
    if options.errors is not None and options.errors.suffix not in (".csv", ".jsonl"):
        raise UserError(f"--errors is {options.errors}; end its name in .csv or .jsonl.")
    check_prompt_folder(options.prompt, default_folder())
    return file_rows(options)


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


def _write_errors(
    path: Path,
    data: EvaluationSet,
    predictions: Sequence[str],
    probabilities: Sequence[Mapping[str, float]] | None,
) -> None:
    """The rows that the prompt got wrong, with the probabilities of the labels if there are any."""
    from ..tasks.statistics import is_wrong

    names, wrong = ["row", "input", "target", "prediction"], list[dict[str, Any]]()
    columns = {label: f"probability of {label}" for label in data.labels}
    names += columns.values() if path.suffix == ".csv" else ["probabilities"]
    for number, (example, prediction) in enumerate(zip(data.examples, predictions, strict=True)):
        if is_wrong(data.metrics[0], example, prediction, data.labels):
            shares = {} if probabilities is None else probabilities[number]
            rounded: dict[str, Any] = {label: round(share, 4) for label, share in shares.items()}
            by_column = {column: rounded.get(label) for label, column in columns.items()}
            values = [number + 1, example.input, example.target, prediction]
            values += by_column.values() if path.suffix == ".csv" else [rounded]
            wrong.append(dict(zip(names, values, strict=True)))
    write_table_file(path, wrong, names)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("evaluate", EXAMPLES, main.__doc__)
    add_tuned_prompt(parser)
    add_rows(parser)
    parser.add_argument(
        "--errors",
        metavar="FILE",
        type=Path,
        help="write the rows it got wrong, with probabilities, to a .csv or .jsonl file",
    )
    parser.add_argument(
        "--no-baselines",
        dest="baselines",
        action="store_false",
        help="do not compare with a bag-of-words classifier on the training rows",
    )
    return parser


def add_rows(parser: argparse.ArgumentParser) -> None:
    """The flags that say which rows are evaluated."""
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="labelled rows with the task's columns (default: the task's own rows)",
    )
    parser.add_argument(
        "--task",
        metavar="NAME",
        help="another named task to evaluate on; its labels are matched with the prompt's in order",
    )
    parser.add_argument(
        "--split",
        default="validation",
        help="train, validation, or another split of the task or dataset (default validation)",
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="a folder with named tasks' rows (default: as tuned)",
    )
    parser.add_argument("--encoding", default="utf-8", help="encoding of --file (default utf-8)")
    parser.add_argument(
        "--skip-bad-rows", action="store_true", help="skip rows with an empty text or label"
    )


def evaluation_set(
    tuned: "Tuned", options: argparse.Namespace, rows: Sequence[Row]
) -> EvaluationSet:
    form, metrics = tuned.form, tuned.card.task.metrics or tuned.form.metrics
    if rows:
        form.check_columns(rows)
        examples = form.examples(rows, options.skip_bad_rows, "validation")
        return EvaluationSet(examples, metrics, form.labels, task=_training_task(tuned))
    data_dir = {"data_dir": options.data_dir} if options.data_dir else {}
    config = TaskConfig.of({**tuned.card.task_settings, **data_dir})
    if not options.task:
        return _own_rows(tuned, config, options)
    member = _mixture_member(config, options.task)
    if member is not None:
        return _own_rows(tuned, member, options, load_task(member))
    other = definition(options.task)
    examples = form.wrap(named_split(other, options.split, data_folder(config), form.task_word))
    check_labelled(other.name, options.split, examples)
    translation = _translation(form.labels, other)
    return EvaluationSet(examples, other.metrics, list(other.labels), translation)


def _own_rows(
    tuned: "Tuned", config: TaskConfig, options: argparse.Namespace, member: Task | None = None
) -> EvaluationSet:
    """Rows of the task that the prompt was tuned on, or of one `member` of its mixture."""
    split, form = options.split, tuned.form if member is None else member.form
    metrics = (tuned.card.task if member is None else member).metrics or form.metrics
    if form.task is not None and split != "validation" and config.splits == "official":
        named = named_split(definition(form.task), split, data_folder(config), form.task_word)
        examples = form.wrap(named)
        check_labelled(form.task, split, examples)
        task = member or _training_task(tuned)
        return EvaluationSet(examples, metrics, form.labels, task=task)
    if config.task is None and config.train is None:
        raise UserError(
            f"{options.prompt} was imported without rows of its own; "
            "give labelled rows with --file."
        )
    task = member or load_task(config)
    if task.metrics[0] == "mean":
        raise UserError("A mixture is evaluated one task at a time; name one with --task.")
    if member is None and (form.task is None or config.splits != "official"):
        _check_same_rows(tuned, task, options)
    return EvaluationSet(own_split(config, task, split), metrics, form.labels, task=task)


def _training_task(tuned: "Tuned") -> Task | None:
    """The task that the prompt was tuned on, if its rows are on this machine and unchanged."""
    with suppress(UserError):
        config = TaskConfig.of(tuned.card.task_settings)
        if config.train is not None or config.task in STARTERS:
            task = load_task(config)
            digests = tuned.card.task.digests
            return task if digests.get("train") == task.digests["train"] else None
    return None


def _check_same_rows(tuned: "Tuned", task: Task, options: argparse.Namespace) -> None:
    """Changed rows would be split differently, and training rows could be evaluated on."""
    digest = tuned.card.task.digests.get(options.split)
    if digest is not None and task.digests[options.split] != digest:
        raise UserError(
            f"The {options.split} rows of {task.name} have changed since {options.prompt} was "
            "tuned; restore them, or give labelled rows with --file."
        )


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
