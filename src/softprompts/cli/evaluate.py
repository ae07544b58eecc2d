"""The command `softprompts evaluate`."""

import argparse
import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..config import TaskConfig
from ..errors import UserError
from ..tasks import (
    PREFIX_LM,
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
    rounded,
    score,
)
from .arguments import add_tuned_prompt, load_tuned_prompt
from .command import make_parser
from .output import format_scores, invalid_answers, print_result

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


def main(argv: Sequence[str]) -> int:
    """Score a tuned prompt on labelled rows."""
    options = _parser().parse_args(argv)
    if options.file and options.task:
        raise UserError("Rows come from --file or from --task; leave one out.")

    from .progress import RowProgress

    tuned = load_tuned_prompt(options)
    data = _evaluation_set(tuned, options)
    examples, labels = data.examples, data.labels
    with RowProgress("evaluating", len(examples), options.quiet) as progress:
        inputs = [example.input for example in examples]
        answers = tuned.predictor(options.scoring)(inputs, progress.advance_rows)
    predictions = [data.translation.get(answer, answer) for answer in answers]
    majority = tuned.card.task.commonest
    if options.task or not majority:
        majority = Counter(example.target for example in examples).most_common(1)[0][0]
    constant = [majority] * len(examples)
    result: dict[str, Any] = {
        "prompt": str(options.prompt),
        "task": options.task or tuned.card.task.name,
        "rows": len(examples),
        "scoring": options.scoring or tuned.card.scoring,
        "metrics": rounded(score(data.metrics, examples, predictions, labels)),
        "majority": rounded(score(data.metrics, examples, constant, labels)),
        "invalid": sum(answer not in labels for answer in predictions) if labels else 0,
    }
    lines = [f"{format_scores(result)} on {len(examples)} rows"]
    if note := invalid_answers(result["invalid"], len(examples), bool(tuned.card.steps)):
        lines.append(note)
    print_result(options, result, "\n".join(lines))
    return 0


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
        help="another named task to evaluate on, with as many labels, matched in order",
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
    parser.add_argument(
        "--skip-bad-rows", action="store_true", help="skip rows with an empty text or label"
    )
    return parser


def _evaluation_set(tuned: "Tuned", options: argparse.Namespace) -> EvaluationSet:
    form, metrics = tuned.form, list(tuned.card.task.metrics)
    if options.file:
        if options.split != "validation" and is_file(options.file):
            raise UserError(f"{options.file} is a file without splits; leave out --split.")
        rows = read_rows(options.file, options.split)
        form.check_columns(rows)
        examples = form.examples(rows, options.skip_bad_rows, "validation")
        return EvaluationSet(examples, metrics, form.labels)
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
        return EvaluationSet(examples, metrics, form.labels)
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
    return EvaluationSet(own_split(config, task, split), metrics, form.labels)


def _check_same_rows(tuned: "Tuned", task: Task, options: argparse.Namespace) -> None:
    """Other rows would be split otherwise: training rows could be among those evaluated on."""
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
            f"{len(labels) or 'none'}; name a task with as many."
        )
    return dict(zip(labels, other.labels, strict=True))
