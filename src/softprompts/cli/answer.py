"""The commands `softprompts evaluate` and `softprompts predict`: a tuned prompt in use."""

import argparse
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .command import add_model, make_parser, scores, tell, wordless

if TYPE_CHECKING:
    from ..tasks import TaskConfig
    from ..tasks.definition import Definition
    from ..tasks.sources import Row
    from ..tuning.api import Tuned


def evaluate(argv: Sequence[str]) -> int:
    """Score a tuned prompt on labelled rows."""
    parser = make_parser(
        "evaluate",
        "softprompts evaluate runs/stars --file test.csv\n"
        "  softprompts evaluate runs/qqp --task glue/mrpc --data-dir DATA      # zero-shot on another domain",
        evaluate.__doc__,
    )
    _prompt_arguments(parser)
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="labelled rows with the task's columns (default: the task's own rows)",
    )
    parser.add_argument(
        "--task",
        metavar="NAME",
        help="another named task to be judged by, its label words taken for this one's",
    )
    parser.add_argument(
        "--split",
        default="validation",
        help="train, validation, or what else the task or the dataset has (default validation)",
    )
    parser.add_argument(
        "--data-dir", metavar="DIR", help="a folder with named tasks' rows (default: as tuned)"
    )
    parser.add_argument(
        "--skip-bad-rows", action="store_true", help="leave out rows with an empty text or label"
    )
    options = parser.parse_args(argv)

    from ..tasks.metrics import score, settled
    from .progress import RowProgress

    if options.file and options.task:
        raise UserError("Rows come from --file or from --task; leave one out.")
    tuned = _load(options)
    examples, names, labels, rewrite = _judged_by(tuned, options)
    with RowProgress("evaluating", len(examples), options.quiet) as progress:
        told = tuned.predictor(options.scoring)([e.input for e in examples], progress.tick)
    predictions = [rewrite.get(answer, answer) for answer in told]
    commonest = tuned.card["task"]["commonest"]
    if options.task or not commonest:
        commonest = Counter(e.target for e in examples).most_common(1)[0][0]
    result: dict[str, Any] = {
        "prompt": str(options.prompt),
        "task": options.task or tuned.card["task"]["name"],
        "rows": len(examples),
        "scoring": options.scoring or tuned.card["scoring"],
        "metrics": settled(score(names, examples, predictions, labels)),
        "majority": settled(score(names, examples, [commonest] * len(examples), labels)),
        "invalid": sum(p not in labels for p in predictions) if labels else 0,
    }
    why = wordless(result["invalid"], len(examples), bool(tuned.card.get("steps")))
    tell(options, result, f"{scores(result)} on {len(examples)} rows" + (f"\n{why}" if why else ""))
    return 0


def _judged_by(
    tuned: "Tuned", options: argparse.Namespace
) -> tuple[list[Any], list[str], list[str], dict[str, str]]:
    """Examples, metrics, label words, and what each of the prompt's own label words means there."""
    from ..config.choice import from_mapping
    from ..tasks import TaskConfig, load_task
    from ..tasks.registry import definition
    from ..tasks.task import check_labelled, data_folder, named_split, own_split

    form, names = tuned.form, list(tuned.card["task"]["metrics"])
    own = from_mapping(
        TaskConfig,
        {
            **tuned.card["config"]["task"],
            **({"data_dir": options.data_dir} if options.data_dir else {}),
        },
    )
    if options.file:
        rows = _rows(options)
        form.check_columns(rows)
        return form.examples(rows, options.skip_bad_rows, "validation"), names, form.labels, {}
    mixed = _of_mixture(own, options.task)
    task = None
    if mixed is not None:
        own, task = mixed, load_task(mixed)
        form, names = task.form, list(task.metrics)
    elif options.task:
        other = definition(options.task)
        examples = form.designed(
            named_split(other, options.split, data_folder(own), form.task_word)
        )
        check_labelled(other.name, options.split, examples)
        return examples, list(other.metrics), list(other.labels), _meanings(form.labels, other)
    if form.task is not None and options.split != "validation" and own.splits == "official":
        examples = form.designed(
            named_split(definition(form.task), options.split, data_folder(own), form.task_word)
        )
        check_labelled(form.task, options.split, examples)
        return examples, names, form.labels, {}
    if own.task is None and own.train is None:
        raise UserError(
            f"{options.prompt} was imported and brings no rows of its own; give labelled rows with --file."
        )
    task = task or load_task(own)
    if task.metrics[0] == "mean":
        raise UserError("A mixture is judged task by task; name one with --task.")
    drawn = mixed is None and (
        form.task is None or own.splits != "official"
    )  # rows that were learned from might be among others now
    told = (tuned.card["task"].get("digests") or {}).get(options.split) if drawn else None
    if told is not None and task.digests[options.split] != told:
        mend = "put the old rows back, or give labelled rows with --file"
        raise UserError(
            f"The {options.split} rows of {task.name} are not those that {options.prompt} was tuned with any more; {mend}."
        )
    return own_split(own, task, options.split), names, form.labels, {}


def _rows(options: argparse.Namespace) -> "list[Row]":
    """The rows of --file; only a dataset has splits."""
    from ..tasks.sources import is_file, read_rows

    if options.split != "validation" and is_file(options.file):
        raise UserError(f"{options.file} is one file without splits; leave --split out.")
    return read_rows(options.file, options.split)


def _of_mixture(own: "TaskConfig", name: str | None) -> "TaskConfig | None":
    """One task of the mixture that a prompt was tuned on, with the mixture's settings."""
    from ..tasks.mixture import mixed_names
    from ..tasks.registry import definition
    from ..tasks.text import PREFIX_LM

    if name is None or own.task is None or "+" not in own.task:
        return None
    wanted = definition(name).name
    parts = [
        part
        for part in mixed_names(own.task)
        if part != PREFIX_LM and definition(part).name == wanted
    ]
    return dataclasses.replace(own, task=parts[0]) if parts else None


def _meanings(labels: Sequence[str], other: "Definition") -> dict[str, str]:
    """Label words of the prompt, one for one, as another task's; words that are the same mean the same."""
    if set(other.labels) == set(labels):
        return {}
    if len(other.labels) != len(labels):
        told = f"{other.name} has {len(other.labels) or 'no'} labels, and the prompt knows {len(labels) or 'none'}"
        raise UserError(f"{told}; name a task with as many.")
    return dict(zip(labels, other.labels, strict=True))


def predict(argv: Sequence[str]) -> int:
    """Answer texts with a tuned prompt."""
    parser = make_parser(
        "predict",
        'softprompts predict runs/stars "Great value, would buy again."\n'
        "  softprompts predict runs/stars --file new.csv --json > answers.jsonl\n"
        "  cat lines.txt | softprompts predict runs/stars -",
        predict.__doc__,
    )
    _prompt_arguments(parser)
    parser.add_argument(
        "texts",
        nargs="*",
        metavar="TEXT",
        help="texts to answer; - reads one per line from standard input",
    )
    parser.add_argument(
        "--file",
        metavar="FILE",
        help="rows with the task's columns: CSV, TSV, JSONL, Parquet or a dataset",
    )
    options = parser.parse_intermixed_args(argv)

    from ..tasks.sources import read_rows
    from .progress import RowProgress

    if (options.file and options.texts) or ("-" in options.texts and len(options.texts) > 1):
        raise UserError("Texts, - and --file are three ways to say what to answer; use one.")
    rows = read_rows(options.file, "validation") if options.file else []
    texts = (
        [line.rstrip("\n") for line in sys.stdin if line.strip()]
        if "-" in options.texts
        else options.texts
    )
    if not rows and not (texts and all(text.strip() for text in texts)):
        raise UserError("There is nothing to answer; give texts, - for standard input, or --file.")
    tuned = _load(options)
    tuned.form.check_columns(rows, labelled=False)
    inputs = [text for row in rows for text in tuned.form.inputs(row)] or tuned.inputs(texts)
    with RowProgress("predicting", len(inputs), options.quiet) as progress:
        predictor = tuned.predictor(options.scoring)
        answers = predictor(inputs, progress.tick)
        shares = (
            predictor.probabilities(inputs)
            if options.json and predictor.labels
            else [{}] * len(inputs)
        )
    for index, (text, answer) in enumerate(zip(inputs, answers, strict=True)):
        if options.json:
            rounded = {label: round(share, 4) for label, share in shares[index].items()}
            print(
                json.dumps(
                    {"input": text, "prediction": answer, "probabilities": rounded},
                    ensure_ascii=False,
                )
            )
        else:
            print(answer)
    return 0


def _prompt_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", type=Path, help="the folder that tune wrote")
    parser.add_argument(
        "--scoring",
        choices=["generate", "labels"],
        help="greedy generation, or the likeliest label word (default: as tuned)",
    )
    add_model(parser, "the backbone's place, when it is not where the card says")


def _load(options: argparse.Namespace) -> "Tuned":
    from ..tuning.api import load

    return load(
        options.prompt, options.model, options.dtype, options.device, options.trust_remote_code
    )
