"""The command `softprompts tasks`: list, show and export named tasks, and score predictions."""

import argparse
import json
import math
from functools import partial
from pathlib import Path
from typing import Any

from ..config import TaskConfig
from ..errors import UserError, counted
from ..tasks import (
    BENCHMARKS,
    PREFIX_LM,
    STARTERS,
    Definition,
    Example,
    check_labelled,
    data_folder,
    definition,
    definitions,
    named_split,
    read_predictions,
    score,
)
from .command import Argument, action, argument, run_action
from .output import print_result
from .table_file import check_table_file, write_table_file


def _task_flags(split: str = "train") -> tuple[Argument, ...]:
    return (
        argument(
            "task", metavar="TASK", help="a named task, such as helpdesk/intent or superglue/boolq"
        ),
        argument("--split", default=split, help=f"train, validation or test (default {split})"),
        argument(
            "--data-dir",
            metavar="DIR",
            help="a folder with its rows (default: SOFTPROMPTS_DATA, or the Hugging Face Hub)",
        ),
        argument(
            "--task-word",
            action=argparse.BooleanOptionalAction,
            default=True,
            help="put the task's name in front of its texts",
        ),
    )


@action("tasks list", "softprompts tasks list --json")
def list_tasks(options: argparse.Namespace) -> int:
    """List all named tasks and benchmarks."""
    tasks = definitions()
    result = {
        "tasks": [*STARTERS, *tasks, PREFIX_LM],
        "benchmarks": {name: list(names) for name, names in BENCHMARKS.items()},
    }
    return print_result(
        options,
        result,
        *(f"{name:<30} starter data, included" for name in STARTERS),
        *(
            f"{name:<30} {', '.join(task.metrics):<36} {task.hub or 'own rows'}"
            for name, task in tasks.items()
        ),
        f"{PREFIX_LM:<30} raw text, with --train FILE",
        "",
        "benchmarks (usable wherever several tasks are named, as in a+b+c):",
        *(f"{name:<30} {', '.join(names)}" for name, names in BENCHMARKS.items()),
    )


@action(
    "tasks show",
    """softprompts tasks show helpdesk/intent
  softprompts tasks show superglue/rte --data-dir DATA""",
    *_task_flags(),
)
def show_task(options: argparse.Namespace) -> int:
    """Show a task's columns, label words and metrics, and its first examples if available."""
    task = definition(options.task)
    result: dict[str, Any] = {
        "task": task.name,
        "hub": task.hub or None,
        "word": task.prefix or None,
        "columns": list(task.columns),
        "labels": list(task.labels),
        "metrics": list(task.metrics),
    }
    examples: list[Example] = []
    if data_folder(TaskConfig(data_dir=options.data_dir)) or task.files or task.rows:
        examples = _read_split(task, options)
        result |= {"split": options.split, "examples": len(examples)}
    shown = {name: value for name, value in result.items() if value is not None}
    if "examples" in result:
        result["first"] = [{"input": row.input, "target": row.target} for row in examples[:3]]
    return print_result(
        options,
        result,
        *(
            f"{name}: {', '.join(value) if isinstance(value, list) else value}"
            for name, value in shown.items()
        ),
        "its rows are included" if task.files else None,
        *(f"  {example.input}\n  -> {example.target}" for example in examples[:3]),
    )


@action(
    "tasks export",
    "softprompts tasks export superglue/boolq --split train --data-dir DATA",
    *_task_flags(),
    argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="a .jsonl, .csv, .tsv or .parquet file (default: standard output)",
    ),
)
def export_split(options: argparse.Namespace) -> int:
    """Write the inputs and targets of a split as JSON lines, or by the suffix of --output."""
    if options.output is not None:
        check_table_file(options.output)
    examples = _read_split(definition(options.task), options)
    objects = [{"input": example.input, "target": example.target} for example in examples]
    if options.output is None:
        for entry in objects:
            print(json.dumps(entry, ensure_ascii=False))
        return 0
    write_table_file(options.output, objects, ["input", "target"])
    result = {"task": options.task, "examples": len(objects), "file": str(options.output)}
    return print_result(options, result, f"{len(objects)} examples are in {options.output}")


@action(
    "tasks score",
    "softprompts tasks score superglue/rte --predictions answers.jsonl --data-dir DATA",
    *_task_flags("validation"),
    argument(
        "--predictions",
        metavar="FILE",
        required=True,
        type=Path,
        help='one per line: JSON lines with "prediction" (.jsonl), or plain text',
    ),
)
def score_predictions(options: argparse.Namespace) -> int:
    """Score predictions for a split, in its order, and print the metrics as JSON."""
    task = definition(options.task)
    predictions = read_predictions(options.predictions)
    examples = _read_split(task, options)
    check_labelled(task.name, options.split, examples)
    if len(predictions) != len(examples):
        raise UserError(
            f"{options.predictions} holds {counted(len(predictions), 'prediction')}, and "
            f"{task.name} has {counted(len(examples), 'example')} in {options.split}; "
            "give one for each."
        )
    metrics = score(task.metrics, examples, predictions, task.labels)
    shown = {name: None if math.isnan(value) else value for name, value in metrics.items()}
    print(json.dumps(shown))
    return 0


def _read_split(task: Definition, options: argparse.Namespace) -> list[Example]:
    folder = data_folder(TaskConfig(data_dir=options.data_dir))
    return named_split(task, options.split, folder, options.task_word)


ACTIONS = {
    "list": list_tasks,
    "show": show_task,
    "export": export_split,
    "score": score_predictions,
}
main = partial(run_action, "tasks", ACTIONS)
