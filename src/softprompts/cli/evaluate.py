"""The command `softprompts evaluate`."""

import argparse
import csv
import dataclasses
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import TaskConfig
from ..errors import UserError, as_flag, spelled
from ..files import write_text
from ..tasks import (
    PREFIX_LM,
    STARTERS,
    Definition,
    Example,
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
from .arguments import add_tuned_prompt, load_tuned_prompt
from .command import make_parser
from .output import invalid_answers, print_result
from .scores import describe_classes, describe_report

if TYPE_CHECKING:
    from ..tuning.tuned import Tuned

EXAMPLES = """softprompts evaluate runs/stars --file test.csv
  softprompts evaluate runs/qqp --task glue/mrpc --data-dir DATA      # zero-shot"""


@dataclass(frozen=True)
class EvaluationSet:
    """Labelled rows, and how predictions for them are scored."""

    examples: list[Example]
    metrics: list[str]
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
    if options.file and options.task:
        raise UserError("Rows come from --file or from --task; leave one out.")

    _check_errors_file(options.errors)

    from ..tasks.score_report import score_report
    from ..tuning.advice import advice, exploded
    from .progress import RowProgress

    tuned = load_tuned_prompt(options)
    data = _evaluation_set(tuned, options)
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
        lines.append(spelled(text, as_flag))
    if options.errors:
        lines.append(f"the rows it got wrong are in {options.errors}")
    print_result(options, result, "\n".join(lines))
    return 0


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


def _check_errors_file(path: Path | None) -> None:
    if path is not None and path.suffix not in (".csv", ".jsonl"):
        raise UserError(f"--errors is {path}; end its name in .csv or .jsonl.")


def _write_errors(
    path: Path,
    data: EvaluationSet,
    predictions: Sequence[str],
    probabilities: Sequence[Mapping[str, float]] | None,
) -> None:
    """The rows that the prompt got wrong, with the probabilities of the labels if there are any."""
    from ..tasks.statistics import is_wrong

    wrong: list[dict[str, Any]] = []
    for number, (example, prediction) in enumerate(zip(data.examples, predictions, strict=True)):
        if is_wrong(data.metrics[0], example, prediction, data.labels):
            question = {"row": number + 1, "input": example.input, "target": example.target}
            shares = {} if probabilities is None else probabilities[number]
            rounded = {label: round(share, 4) for label, share in shares.items()}
            wrong.append({**question, "prediction": prediction, "probabilities": rounded})
    if path.suffix == ".jsonl":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in wrong)
    else:
        labels = list(data.labels)
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        names = ["row", "input", "target", "prediction"]
        writer.writerow([*names, *(f"probability of {label}" for label in labels)])
        for row in wrong:
            values = [row["probabilities"].get(label) for label in labels]
            writer.writerow([*(row[name] for name in names), *values])
        text = table.getvalue()
    write_text(path, text)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("evaluate", EXAMPLES, main.__doc__)
    add_tuned_prompt(parser)
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


def _evaluation_set(tuned: "Tuned", options: argparse.Namespace) -> EvaluationSet:
    form, metrics = tuned.form, list(tuned.card.task.metrics)
    if options.file:
        if options.split != "validation" and is_file(options.file):
            raise UserError(f"{options.file} is a file without splits; leave out --split.")
        rows = read_rows(options.file, options.split, encoding=options.encoding)
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
    return EvaluationSet(examples, list(other.metrics), list(other.labels), translation)


def _own_rows(
    tuned: "Tuned", config: TaskConfig, options: argparse.Namespace, member: Task | None = None
) -> EvaluationSet:
    """Rows of the task that the prompt was tuned on, or of one `member` of its mixture."""
    form, metrics, split = tuned.form, list(tuned.card.task.metrics), options.split
    if member is not None:
        form, metrics = member.form, list(member.metrics)
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
    full_name = definition(name).name
    matches = [part for part in names if definition(part).name == full_name]
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
