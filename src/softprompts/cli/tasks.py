"""The command `softprompts tasks`: list, show and export named tasks, and score predictions."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import TaskConfig
from ..errors import UserError
from ..files import write_text
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
from .command import make_parser, run_action
from .output import print_result


def main(argv: Sequence[str]) -> int:
    """List named tasks, show one, export a split, score predictions."""
    return run_action("tasks", ACTIONS, argv)


def list_tasks(argv: Sequence[str]) -> int:
    """List all named tasks and benchmarks."""
    parser = make_parser("tasks list", "softprompts tasks list --json", list_tasks.__doc__)
    options = parser.parse_args(argv)
    tasks = definitions()
    result = {
        "tasks": [*STARTERS, *tasks, PREFIX_LM],
        "benchmarks": {name: list(names) for name, names in BENCHMARKS.items()},
    }
    lines = [f"{name:<30} starter data, included" for name in STARTERS]
    for name, task in tasks.items():
        lines.append(f"{name:<30} {', '.join(task.metrics):<36} {task.hub or 'own rows'}")
    lines += [
        f"{PREFIX_LM:<30} raw text, with --train FILE",
        "",
        "benchmarks (usable wherever several tasks are named, as in a+b+c):",
    ]
    lines += [f"{name:<30} {', '.join(names)}" for name, names in BENCHMARKS.items()]
    return print_result(options, result, "\n".join(lines))


def show_task(argv: Sequence[str]) -> int:
    """Show a task's columns, label words and metrics, and its first examples if available."""
    commands = """softprompts tasks show helpdesk/intent
  softprompts tasks show superglue/rte --data-dir DATA"""
    parser = make_parser("tasks show", commands, show_task.__doc__)
    _add_task(parser)
    options = parser.parse_args(argv)
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
    lines = [
        f"{name}: {', '.join(value) if isinstance(value, list) else value}"
        for name, value in result.items()
        if value is not None
    ]
    lines += ["its rows are included"] if task.files else []
    lines += [f"  {example.input}\n  -> {example.target}" for example in examples[:3]]
    if "examples" in result:
        result["first"] = [{"input": row.input, "target": row.target} for row in examples[:3]]
    return print_result(options, result, "\n".join(lines))


def export_split(argv: Sequence[str]) -> int:
    """Write a split as JSON lines {"input": ..., "target": ...} in the official order."""
    command = "softprompts tasks export superglue/boolq --split train --data-dir DATA"
    parser = make_parser("tasks export", command, export_split.__doc__)
    _add_task(parser)
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="the file to write (default: standard output)"
    )
    options = parser.parse_args(argv)
    examples = _read_split(definition(options.task), options)
    objects = [{"input": example.input, "target": example.target} for example in examples]
    lines = "".join(f"{json.dumps(entry, ensure_ascii=False)}\n" for entry in objects)
    if options.output is None:
        sys.stdout.write(lines)
        return 0
    write_text(options.output, lines)
    result = {"task": options.task, "examples": len(objects), "file": str(options.output)}
    return print_result(options, result, f"{len(objects)} examples are in {options.output}")


def score_predictions(argv: Sequence[str]) -> int:
    """Score predictions for a split, in its order, and print the metrics as JSON."""
    command = "softprompts tasks score superglue/rte --predictions answers.jsonl --data-dir DATA"
    parser = make_parser("tasks score", command, score_predictions.__doc__)
    _add_task(parser, "validation")
    parser.add_argument(
        "--predictions",
        metavar="FILE",
        required=True,
        type=Path,
        help='one per line: JSON lines with "prediction" (.jsonl), or plain text',
    )
    options = parser.parse_args(argv)
    task = definition(options.task)
    predictions = read_predictions(options.predictions)
    examples = _read_split(task, options)
    check_labelled(task.name, options.split, examples)
    if len(predictions) != len(examples):
        raise UserError(
            f"{options.predictions} holds {len(predictions)} predictions, and {task.name} has "
            f"{len(examples)} examples in {options.split}; give one for each."
        )
    metrics = score(task.metrics, examples, predictions, task.labels)
    shown = {name: None if math.isnan(value) else value for name, value in metrics.items()}
    print(json.dumps(shown))
    return 0


def _add_task(parser: argparse.ArgumentParser, split: str = "train") -> None:
    parser.add_argument(
        "task", metavar="TASK", help="a named task, such as helpdesk/intent or superglue/boolq"
    )
    parser.add_argument(
        "--split", default=split, help=f"train, validation or test (default {split})"
    )
    parser.add_argument(
        "--data-dir",
        metavar="DIR",
        help="a folder with its rows (default: SOFTPROMPTS_DATA, or the Hugging Face Hub)",
    )
    parser.add_argument(
        "--task-word",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="put the task's name in front of its texts",
    )


def _read_split(task: Definition, options: argparse.Namespace) -> list[Example]:
    folder = data_folder(TaskConfig(data_dir=options.data_dir))
    return named_split(task, options.split, folder, options.task_word)


ACTIONS = {
    "list": list_tasks,
    "show": show_task,
    "export": export_split,
    "score": score_predictions,
}
