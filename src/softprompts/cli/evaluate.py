"""The command `softprompts evaluate`."""

import argparse
import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .command import make_parser, scores, tell, wordless
from .loading import add_prompt_folder, load_prompt

if TYPE_CHECKING:
    from ..config.task import TaskConfig
    from ..tasks.definition import Definition
    from ..tasks.sources import Row
    from ..tuning.tuned import Tuned


def main(argv: Sequence[str]) -> int:
    """Score a tuned prompt on labelled rows."""
    parser = make_parser(
        "evaluate",
        "softprompts evaluate runs/stars --file test.csv\n"
        "  softprompts evaluate runs/qqp --task glue/mrpc --data-dir DATA      # zero-shot on another domain",
        main.__doc__,
    )
    add_prompt_folder(parser)
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

    from ..tasks.metrics import score, rounded
    from .progress import RowProgress

    if options.file and options.task:
        raise UserError("Rows come from --file or from --task; leave one out.")
    tuned = load_prompt(options)
    examples, names, labels, rewrite = _judged_by(tuned, options)
    with RowProgress("evaluating", len(examples), options.quiet) as progress:
        told = tuned.predictor(options.scoring)([e.input for e in examples], progress.tick)
    predictions = [rewrite.get(answer, answer) for answer in told]
    commonest = tuned.card.task.commonest
    if options.task or not commonest:
        commonest = Counter(e.target for e in examples).most_common(1)[0][0]
    result: dict[str, Any] = {
        "prompt": str(options.prompt),
        "task": options.task or tuned.card.task.name,
        "rows": len(examples),
        "scoring": options.scoring or tuned.card.scoring,
        "metrics": rounded(score(names, examples, predictions, labels)),
        "majority": rounded(score(names, examples, [commonest] * len(examples), labels)),
        "invalid": sum(p not in labels for p in predictions) if labels else 0,
    }
    why = wordless(result["invalid"], len(examples), bool(tuned.card.steps))
    tell(options, result, f"{scores(result)} on {len(examples)} rows" + (f"\n{why}" if why else ""))
    return 0


def _judged_by(
    tuned: "Tuned", options: argparse.Namespace
) -> tuple[list[Any], list[str], list[str], dict[str, str]]:
    """Examples, metrics, label words, and what each of the prompt's own label words means there."""
    from ..config.task import TaskConfig
    from ..tasks import load_task
    from ..tasks.registry import definition
    from ..tasks.load import own_split
    from ..tasks.named import check_labelled, data_folder, named_split

    form, names = tuned.form, list(tuned.card.task.metrics)
    own = TaskConfig.of(
        {
            **tuned.card.task_settings,
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
        examples = form.wrap(named_split(other, options.split, data_folder(own), form.task_word))
        check_labelled(other.name, options.split, examples)
        return examples, list(other.metrics), list(other.labels), _meanings(form.labels, other)
    if form.task is not None and options.split != "validation" and own.splits == "official":
        examples = form.wrap(
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
    told = tuned.card.task.digests.get(options.split) if drawn else None
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
    from ..tasks.mixture import mixture_names
    from ..tasks.registry import definition
    from ..tasks.prefix_lm import PREFIX_LM

    if name is None or own.task is None or "+" not in own.task:
        return None
    wanted = definition(name).name
    parts = [
        part
        for part in mixture_names(own.task)
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
