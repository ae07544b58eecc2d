"""The command line: a dict of plain functions. Exit codes: 0 done, 1 failed, 2 your input."""

import argparse
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .command import Parser, act, add_model, make_parser, output_folder, tell
from .errors import UserError

if TYPE_CHECKING:
    from .api import Tuned
    from .tuning.lists import Member


def tune(argv: Sequence[str]) -> int:
    """Tune a prompt on a task or on your own data, or many at once."""
    from . import flags
    from .api import sections, tune_config
    from .progress import ProgressWatcher
    from .tuning import RunFailedError
    from .tuning.config import read_yaml
    from .tuning.lists import run_configs
    from .tuning.team import leave_team

    parser = _parser(
        "tune",
        "softprompts tune --task helpdesk/intent\n"
        "  softprompts tune --train reviews.csv --text review --label stars --preset residual --output runs/stars\n"
        "  softprompts tune --config runs/stars/config.yaml --seed 1 --output runs/stars-1\n"
        "  softprompts tune --task helpdesk/intent,helpdesk/urgency --lr 0.1,0.3 --seed 0,1,2 --output runs/study      # twelve runs",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings from a YAML file; flags override it")
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=output_folder,
        help="where the result goes (default runs/TASK-PRESET-seedN); an unfinished run in it goes on; of lists, a folder for each run",
    )
    parser.add_argument("--overwrite", action="store_true", help="start anew even if the folder holds a run")
    parser.add_argument("--trackers", metavar="NAMES", default="", help="tell tensorboard, wandb, mlflow or trackio; several with commas")
    flags.add(parser)
    options, settings = flags.parse(parser, argv)
    file = read_yaml(options.config) if options.config else {}
    for name in {"preset", "paper"} & settings.keys() & file.keys():
        if settings[name] != file[name]:
            raise UserError(
                f"{options.config} sets {name} to {file[name]} and the rest to match; leave --{name} out, or name another file."
            )
    members = run_configs(file, sections(settings))
    trackers = [name.strip() for name in options.trackers.split(",") if name.strip()]
    try:
        if members[0].apart:
            return _tune_cohort(members, options, trackers)
        folder = options.output or _folder(members[0])
        with ProgressWatcher(options.quiet or not _speaks()) as watcher:
            tuned = tune_config(members[0].config, folder, options.overwrite, watcher, trackers=trackers)
    except RunFailedError as failed:
        if _speaks():
            print(f"softprompts: {failed}", file=sys.stderr)
        return _ended(failed=True)
    finally:
        leave_team()
    if _speaks():
        tell(options, tuned.card | {"cost": tuned.cost}, _summary(tuned))
    return _ended(tuned.card["failed"])


def _tune_cohort(members: "Sequence[Member]", options: argparse.Namespace, trackers: Sequence[str]) -> int:
    from .api import tune_cohort
    from .progress import CohortWatcher
    from .summary import over_seeds, records, table

    folder = options.output or _folder(members[0])
    with CohortWatcher([member.apart for member in members], options.quiet or not _speaks()) as watcher:
        results = tune_cohort(members, folder, options.overwrite, watcher, trackers=trackers, began=watcher.began)
    runs = records(members, results, folder)
    if _speaks():
        tell(options, {"runs": runs, "summary": over_seeds(runs)}, table(runs, folder))
    return _ended(any(run["failed"] for run in runs))


def evaluate(argv: Sequence[str]) -> int:
    """Score a tuned prompt on labelled rows."""
    parser = _parser(
        "evaluate",
        "softprompts evaluate runs/stars --file test.csv\n"
        "  softprompts evaluate runs/qqp --task glue/mrpc --data-dir DATA      # zero-shot on another domain",
    )
    _prompt_arguments(parser)
    parser.add_argument("--file", metavar="FILE", help="labelled rows with the task's columns (default: the task's own validation rows)")
    parser.add_argument("--task", metavar="NAME", help="another named task to be judged by, its label words taken for this one's")
    parser.add_argument("--split", default="validation", help="the split of a named task (default validation)")
    parser.add_argument("--data-dir", metavar="DIR", help="a folder with named tasks' rows (default: as tuned)")
    parser.add_argument("--skip-bad-rows", action="store_true", help="leave out rows with an empty text or label")
    options = parser.parse_args(argv)

    from .progress import RowProgress
    from .tasks.metrics import score, settled

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
    result = {
        "prompt": str(options.prompt),
        "task": options.task or tuned.card["task"]["name"],
        "rows": len(examples),
        "scoring": options.scoring or tuned.card["scoring"],
        "metrics": settled(score(names, examples, predictions, labels)),
        "majority": settled(score(names, examples, [commonest] * len(examples), labels)),
        "invalid": sum(p not in labels for p in predictions) if labels else 0,
    }
    tell(options, result, f"{_scores(result)} on {len(examples)} rows")
    return 0


def _judged_by(tuned: "Tuned", options: argparse.Namespace) -> tuple[list[Any], list[str], list[str], dict[str, str]]:
    """Examples, metrics, label words, and what each of the prompt's own label words means there."""
    from .choice import from_mapping
    from .tasks import TaskConfig, load_task
    from .tasks.registry import definition
    from .tasks.sources import read_rows
    from .tasks.task import data_folder, named_split

    form, names = tuned.form, list(tuned.card["task"]["metrics"])
    own = from_mapping(TaskConfig, {**tuned.card["config"]["task"], **({"data_dir": options.data_dir} if options.data_dir else {})})
    if options.task:
        other = definition(options.task)
        labels = list(other.labels)
        rewrite: dict[str, str] = {}
        if labels != form.labels:
            if len(labels) != len(form.labels):
                told = f"{other.name} has {len(labels) or 'no'} labels, and the prompt knows {len(form.labels) or 'none'}"
                raise UserError(f"{told}; name a task with as many.")
            rewrite = dict(zip(form.labels, labels, strict=True))
        return form.designed(named_split(other, options.split, data_folder(own), form.task_word)), list(other.metrics), labels, rewrite
    if options.file:
        return form.examples(read_rows(options.file, "validation"), options.skip_bad_rows, "validation"), names, form.labels, {}
    if form.task is not None and options.split != "validation":
        return form.designed(named_split(definition(form.task), options.split, data_folder(own), form.task_word)), names, form.labels, {}
    if own.task is None and own.train is None:
        raise UserError(f"{options.prompt} was imported and brings no rows of its own; give labelled rows with --file.")
    task = load_task(own)
    if task.metrics[0] == "mean":
        raise UserError("A mixture is judged task by task; name one with --task.")
    return task.validation, names, form.labels, {}


def predict(argv: Sequence[str]) -> int:
    """Answer texts with a tuned prompt."""
    parser = _parser(
        "predict",
        'softprompts predict runs/stars "Great value, would buy again."\n'
        "  softprompts predict runs/stars --file new.csv --json > answers.jsonl\n"
        "  cat lines.txt | softprompts predict runs/stars -",
    )
    _prompt_arguments(parser)
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts to answer; - reads one per line from standard input")
    parser.add_argument("--file", metavar="FILE", help="rows with the task's columns: CSV, TSV, JSONL, Parquet or a dataset")
    options = parser.parse_intermixed_args(argv)

    from .progress import RowProgress
    from .tasks.sources import read_rows

    if (options.file and options.texts) or ("-" in options.texts and len(options.texts) > 1):
        raise UserError("Texts, - and --file are three ways to say what to answer; use one.")
    rows = read_rows(options.file, "validation") if options.file else []
    texts = [line.rstrip("\n") for line in sys.stdin if line.strip()] if "-" in options.texts else options.texts
    if not rows and not (texts and all(text.strip() for text in texts)):
        raise UserError("There is nothing to answer; give texts, - for standard input, or --file.")
    tuned = _load(options)
    inputs = [text for row in rows for text in tuned.form.inputs(row)] or tuned.inputs(texts)
    with RowProgress("predicting", len(inputs), options.quiet) as progress:
        predictor = tuned.predictor(options.scoring)
        answers = predictor(inputs, progress.tick)
        shares = predictor.probabilities(inputs) if options.json and predictor.labels else [{}] * len(inputs)
    for index, (text, answer) in enumerate(zip(inputs, answers, strict=True)):
        if options.json:
            rounded = {label: round(share, 4) for label, share in shares[index].items()}
            print(json.dumps({"input": text, "prediction": answer, "probabilities": rounded}, ensure_ascii=False))
        else:
            print(answer)
    return 0


def prompts(argv: Sequence[str]) -> int:
    """A library of prompts: list, show, search; bring runs and PEFT adapters in, take prompts out."""
    from .library.command import main as act_on

    return act_on(argv)


def tasks(argv: Sequence[str]) -> int:
    """The named tasks: list them, show one, export a split, score predictions."""
    return act("tasks", {"list": _list_tasks, "show": _show_task, "export": _export_task, "score": _score_task}, argv)


def _list_tasks(argv: Sequence[str]) -> int:
    """All named tasks and benchmarks."""
    parser = _parser("tasks list", "softprompts tasks list --json", _list_tasks.__doc__)
    options = parser.parse_args(argv)

    from .tasks.registry import BENCHMARKS, definitions
    from .tasks.starter import STARTERS
    from .tasks.text import PREFIX_LM

    known = definitions()
    result = {"tasks": [*STARTERS, *known, PREFIX_LM], "benchmarks": {name: list(names) for name, names in BENCHMARKS.items()}}
    rows = [f"{name:<30} starter data, embedded" for name in STARTERS]
    rows += [f"{name:<30} {', '.join(task.metrics):<36} {task.hub}" for name, task in known.items()]
    rows += [f"{PREFIX_LM:<30} raw text, with --train FILE", "", "benchmarks (of a + b + c, each may be one):"]
    rows += [f"{name:<30} {', '.join(names)}" for name, names in BENCHMARKS.items()]
    tell(options, result, "\n".join(rows))
    return 0


def _show_task(argv: Sequence[str]) -> int:
    """A task's columns, label words, metrics, and first examples where its rows are at hand."""
    parser = _parser("tasks show", "softprompts tasks show superglue/rte --data-dir DATA", _show_task.__doc__)
    _task_arguments(parser)
    options = parser.parse_args(argv)

    from .tasks.config import TaskConfig
    from .tasks.registry import definition
    from .tasks.task import data_folder, named_split

    task = definition(options.task)
    result: dict[str, Any] = {
        "task": task.name,
        "hub": task.hub,
        "word": task.prefix,
        "columns": list(task.columns),
        "labels": list(task.labels),
        "metrics": list(task.metrics),
    }
    folder = data_folder(TaskConfig(data_dir=options.data_dir))
    if folder is not None:
        examples = named_split(task, options.split, folder, options.task_word)
        result |= {"split": options.split, "examples": len(examples)}
        result["first"] = [{"input": e.input, "target": e.target} for e in examples[:3]]
    lines = [f"{name}: {', '.join(value) if isinstance(value, list) else value}" for name, value in result.items() if name != "first"]
    lines += [f"  {e['input']}\n  -> {e['target']}" for e in result.get("first", [])]
    tell(options, result, "\n".join(lines))
    return 0


def _export_task(argv: Sequence[str]) -> int:
    """Write a split as JSON lines {"input": ..., "target": ...} in the official order."""
    parser = _parser(
        "tasks export", "softprompts tasks export superglue/boolq --split train --data-dir DATA [--no-task-word]", _export_task.__doc__
    )
    _task_arguments(parser)
    parser.add_argument("--output", metavar="FILE", type=Path, help="where the lines go (default: standard output)")
    options = parser.parse_args(argv)

    from .files import write_text
    from .tasks.config import TaskConfig
    from .tasks.registry import definition
    from .tasks.task import data_folder, named_split

    examples = named_split(definition(options.task), options.split, data_folder(TaskConfig(data_dir=options.data_dir)), options.task_word)
    lines = [json.dumps({"input": e.input, "target": e.target}, ensure_ascii=False) for e in examples]
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


def _score_task(argv: Sequence[str]) -> int:
    """Score predictions for a split, in its order; the metrics are printed as JSON."""
    parser = _parser(
        "tasks score", "softprompts tasks score superglue/rte --predictions answers.jsonl --data-dir DATA", _score_task.__doc__
    )
    _task_arguments(parser, "validation")
    parser.add_argument(
        "--predictions", metavar="FILE", required=True, type=Path, help='one per line: JSON lines with "prediction" (.jsonl), or plain text'
    )
    options = parser.parse_args(argv)

    from .tasks.config import TaskConfig
    from .tasks.definition import UNLABELLED
    from .tasks.metrics import score
    from .tasks.registry import definition
    from .tasks.sources import read_predictions
    from .tasks.task import data_folder, named_split

    task = definition(options.task)
    predictions = read_predictions(options.predictions)
    examples = named_split(task, options.split, data_folder(TaskConfig(data_dir=options.data_dir)), options.task_word)
    if any(e.target == UNLABELLED or e.facts.get("label") == -1 for e in examples):
        raise UserError(f"{task.name} has no labels in {options.split}, so nothing can be scored; choose another --split.")
    if len(predictions) != len(examples):
        held = f"{options.predictions} holds {len(predictions)} predictions"
        raise UserError(f"{held}, and {task.name} has {len(examples)} examples in {options.split}; give one for each.")
    found = score(task.metrics, examples, predictions, task.labels)
    print(json.dumps({name: None if math.isnan(value) else value for name, value in found.items()}))
    return 0


def _task_arguments(parser: argparse.ArgumentParser, split: str = "train") -> None:
    parser.add_argument("task", metavar="TASK", help="a named task, such as superglue/boolq")
    parser.add_argument("--split", default=split, help=f"train, validation or test (default {split})")
    parser.add_argument("--data-dir", metavar="DIR", help="a folder with its rows (default: SOFTPROMPTS_DATA, or the Hugging Face hub)")
    parser.add_argument("--task-word", action=argparse.BooleanOptionalAction, default=True, help="the task's name in front of its texts")


def bench(argv: Sequence[str]) -> int:
    """Measure speed and memory on this machine, beside PEFT."""
    from .bench.command import main as measure

    return measure(argv)


def transfer(argv: Sequence[str]) -> int:
    """Tune a prompt for a new task from prompts of tasks like it."""
    from .transfer.command import main as start_from_others

    return start_from_others(argv)


def study(argv: Sequence[str]) -> int:
    """Run a grid of transfers that resumes, and report it as the paper does."""
    from .transfer.study_command import main as run_study

    return run_study(argv)


def pretrain(argv: Sequence[str]) -> int:
    """Train a T5 from raw text, or go on with one."""
    from .pretraining.command import main as train

    return train(argv)


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "tune": tune,
    "evaluate": evaluate,
    "predict": predict,
    "prompts": prompts,
    "transfer": transfer,
    "study": study,
    "tasks": tasks,
    "bench": bench,
    "pretrain": pretrain,
}


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in argv
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0
    if argv[0] in ("-V", "--version"):
        print(f"softprompts {__version__}")
        return 0
    try:
        if argv[0] not in COMMANDS:
            raise UserError(f"There is no command {argv[0]!r}; choose one of {', '.join(COMMANDS)}.")
        return COMMANDS[argv[0]]([a for a in argv[1:] if a != "--debug"])
    except UserError as error:
        if debug:
            raise
        if argv[0] != "tune" or _speaks():
            print(f"softprompts: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "softprompts: stopped; tune, transfer, study and pretrain go on from their last checkpoint when the command is given again.",
            file=sys.stderr,
        )
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:
        if debug:
            raise
        print(
            f"softprompts: {type(error).__name__}: {' '.join(str(error).split())} (run again with --debug for the traceback)",
            file=sys.stderr,
        )
        return 1


def _help() -> str:
    rows = "\n".join(f"  {name:<10} {function.__doc__}" for name, function in COMMANDS.items())
    return (
        "softprompts: one frozen model, many tiny prompts.\n\n"
        f"usage: softprompts COMMAND [options]     (softprompts COMMAND --help tells the options)\n\n{rows}\n\n"
        'example:\n  softprompts tune --task helpdesk/intent --output runs/intent\n  softprompts predict runs/intent "Where is my parcel?"'
    )


def _parser(name: str, examples: str, about: str | None = None) -> Parser:
    return make_parser(name, examples, about or COMMANDS[name].__doc__)


def _prompt_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", type=Path, help="the folder that tune wrote")
    parser.add_argument(
        "--scoring", choices=["generate", "labels"], help="greedy generation, or the likeliest label word (default: as tuned)"
    )
    add_model(parser, "the backbone's place, when it is not where the card says")


def _load(options: argparse.Namespace) -> "Tuned":
    from .api import load

    return load(options.prompt, options.model, options.dtype, options.device, options.trust_remote_code)


def _folder(member: "Member") -> Path:
    """`runs/TASK-PRESET-seedN`; of a cohort, what its runs share, and the names of what they do not."""
    from .prompt.store import safe_name

    task, config = member.config.task, member.config
    what = {"task": task.task or f"{Path(task.train or '').stem}-{task.label}", "preset": config.method, "seed": f"seed{config.seed}"}
    shared = [text for name, text in what.items() if name not in member.apart]
    return Path("runs") / safe_name("-".join([*shared, *(("by", *member.apart) if member.apart else ())]))


def _summary(tuned: "Tuned") -> str:
    card = tuned.card
    best = f"best at step {card['best_step']} of {card['steps']}"
    lines = [f"{card['task']['name']} on {card['backbone']['name']}: {_scores(card)}, {best}"]
    if card["task"]["rows"]["skipped"]:
        lines.append(f"{card['task']['rows']['skipped']} bad rows were left out")
    if card["stopped"]:
        lines.append(f"stopped early: {card['stopped']}")
    if card["cut_texts"]:
        most = card["config"]["tuning"]["max_length"]
        lines.append(f"{card['cut_texts']} of {card['task']['rows']['train']} training texts were cut to {most} tokens, prompt included")
    if tuned.cost is not None:
        most = "" if tuned.cost["peak_gib"] is None else f" and {tuned.cost['peak_gib']:.1f} GiB at most"
        lines.append(f"training took {tuned.cost['seconds']:.0f} s{most}")
    lines.append(f"the prompt, its card and its learning curve are in {tuned.folder}")
    return "\n".join(lines)


def _scores(result: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.1f} (majority class {result['majority'][name]:.1f})" for name, value in result["metrics"].items())


def _speaks() -> bool:
    """Of several processes on one run, the first one speaks."""
    return os.environ.get("RANK", "0") == "0"


def _ended(failed: bool) -> int:
    """The exit code, from the process that speaks: a launcher ends all as soon as one fails, and this one may still be writing."""
    return 1 if failed and _speaks() else 0


if __name__ == "__main__":
    sys.exit(main())
