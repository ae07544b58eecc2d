"""The command `softprompts tasks`: list the named tasks, show one, export a split, score predictions."""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config.task import TaskConfig
from ..errors import UserError
from ..files import write_text
from ..tasks.metrics import score
from ..tasks.registry import BENCHMARKS, definition, definitions
from ..tasks.sources import read_predictions
from ..tasks.starter import STARTERS
from ..tasks.named import check_labelled, data_folder, named_split
from ..tasks.prefix_lm import PREFIX_LM
from .command import act, make_parser, tell


def main(argv: Sequence[str]) -> int:
    """One of the actions on tasks."""
    return act("tasks", {"list": _list, "show": _show, "export": _export, "score": _score}, argv)


def _list(argv: Sequence[str]) -> int:
    """All named tasks and benchmarks."""
    parser = make_parser("tasks list", "softprompts tasks list --json", _list.__doc__)
    options = parser.parse_args(argv)
    known = definitions()
    result = {
        "tasks": [*STARTERS, *known, PREFIX_LM],
        "benchmarks": {name: list(names) for name, names in BENCHMARKS.items()},
    }
    rows = [f"{name:<30} starter data, embedded" for name in STARTERS]
    rows += [
        f"{name:<30} {', '.join(task.metrics):<36} {task.hub or 'own rows'}"
        for name, task in known.items()
    ]
    rows += [
        f"{PREFIX_LM:<30} raw text, with --train FILE",
        "",
        "benchmarks (of a + b + c, each may be one):",
    ]
    rows += [f"{name:<30} {', '.join(names)}" for name, names in BENCHMARKS.items()]
    tell(options, result, "\n".join(rows))
    return 0


def _show(argv: Sequence[str]) -> int:
    """A task's columns, label words, metrics, and first examples where its rows are at hand."""
    parser = make_parser(
        "tasks show",
        "softprompts tasks show helpdesk/intent\n  softprompts tasks show superglue/rte --data-dir DATA",
        _show.__doc__,
    )
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
    folder = data_folder(TaskConfig(data_dir=options.data_dir))
    if folder is not None or task.files or task.rows:
        examples = named_split(task, options.split, folder, options.task_word)
        result |= {"split": options.split, "examples": len(examples)}
        result["first"] = [{"input": e.input, "target": e.target} for e in examples[:3]]
    told = {name: value for name, value in result.items() if name != "first" and value is not None}
    lines = [
        f"{name}: {', '.join(value) if isinstance(value, list) else value}"
        for name, value in told.items()
    ]
    lines += ["its rows are embedded"] if task.files else []
    lines += [f"  {e['input']}\n  -> {e['target']}" for e in result.get("first", [])]
    tell(options, result, "\n".join(lines))
    return 0


def _export(argv: Sequence[str]) -> int:
    """Write a split as JSON lines {"input": ..., "target": ...} in the official order."""
    parser = make_parser(
        "tasks export",
        "softprompts tasks export superglue/boolq --split train --data-dir DATA [--no-task-word]",
        _export.__doc__,
    )
    _add_task(parser)
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="where the lines go (default: standard output)"
    )
    options = parser.parse_args(argv)
    examples = named_split(
        definition(options.task),
        options.split,
        data_folder(TaskConfig(data_dir=options.data_dir)),
        options.task_word,
    )
    lines = [
        json.dumps({"input": e.input, "target": e.target}, ensure_ascii=False) for e in examples
    ]
    if options.output is None:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
    else:
        write_text(options.output, "".join(f"{line}\n" for line in lines))
        tell(
            options,
            {"task": options.task, "examples": len(lines), "file": str(options.output)},
            f"{len(lines)} examples in {options.output}",
        )
    return 0


def _score(argv: Sequence[str]) -> int:
    """Score predictions for a split, in its order; the metrics are printed as JSON."""
    parser = make_parser(
        "tasks score",
        "softprompts tasks score superglue/rte --predictions answers.jsonl --data-dir DATA",
        _score.__doc__,
    )
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
    examples = named_split(
        task, options.split, data_folder(TaskConfig(data_dir=options.data_dir)), options.task_word
    )
    check_labelled(task.name, options.split, examples)
    if len(predictions) != len(examples):
        held = f"{options.predictions} holds {len(predictions)} predictions"
        raise UserError(
            f"{held}, and {task.name} has {len(examples)} examples in {options.split}; give one for each."
        )
    found = score(task.metrics, examples, predictions, task.labels)
    print(json.dumps({name: None if math.isnan(value) else value for name, value in found.items()}))
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
        help="a folder with its rows (default: SOFTPROMPTS_DATA, or the Hugging Face hub)",
    )
    parser.add_argument(
        "--task-word",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the task's name in front of its texts",
    )
