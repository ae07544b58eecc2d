"""The command line: a dict of plain functions. Exit codes: 0 done, 1 failed, 2 your input."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .errors import UserError

if TYPE_CHECKING:
    from .api import Tuned


def tune(argv: Sequence[str]) -> int:
    """Tune a prompt on a task or on your own data."""
    from . import flags
    from .api import sections, tune_config
    from .progress import ProgressWatcher
    from .tuning import RunFailedError, run_config
    from .tuning.config import read_yaml

    parser = _parser(
        "tune",
        "softprompts tune --task helpdesk/intent\n"
        "  softprompts tune --train reviews.csv --text review --label stars --preset residual --output runs/stars\n"
        "  softprompts tune --config runs/stars/config.yaml --seed 1 --output runs/stars-1",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="settings from a YAML file; flags override it")
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=_path,
        help="where the result goes (default runs/TASK-PRESET-seedN); an unfinished run in it goes on",
    )
    parser.add_argument("--overwrite", action="store_true", help="start anew even if the folder holds a run")
    flags.add(parser)
    options, settings = flags.parse(parser, argv)
    file = read_yaml(options.config) if options.config else {}
    for name in {"preset", "paper"} & settings.keys() & file.keys():
        if settings[name] != file[name]:
            raise UserError(
                f"{options.config} sets {name} to {file[name]} and the rest to match; leave --{name} out, or name another file."
            )
    config = run_config(file, sections(settings))
    try:
        with ProgressWatcher(options.quiet) as watcher:
            tuned = tune_config(config, options.output or _folder(config), options.overwrite, watcher)
    except RunFailedError as failed:
        print(f"softprompts: {failed}", file=sys.stderr)
        return 1
    _tell(options, tuned.card, _summary(tuned))
    return 1 if tuned.card["failed"] else 0


def evaluate(argv: Sequence[str]) -> int:
    """Score a tuned prompt on labelled rows."""
    parser = _parser("evaluate", "softprompts evaluate runs/stars --file test.csv")
    _prompt_arguments(parser)
    parser.add_argument("--file", metavar="FILE", help="labelled rows with the task's columns (default: the task's own validation rows)")
    parser.add_argument("--skip-bad-rows", action="store_true", help="leave out rows with an empty text or label")
    options = parser.parse_args(argv)

    from .choice import from_mapping
    from .progress import RowProgress
    from .tasks import TaskConfig, load_task
    from .tasks.metrics import score
    from .tasks.sources import read_rows

    tuned = _load(options)
    if options.file:
        examples = tuned.form.examples(read_rows(options.file, "validation"), options.skip_bad_rows)
    else:
        examples = load_task(from_mapping(TaskConfig, tuned.card["config"]["task"])).validation
    with RowProgress("evaluating", len(examples), options.quiet) as progress:
        predictions = tuned.predictor(options.scoring)([e.input for e in examples], progress.tick)
    targets, names = [e.target for e in examples], tuned.card["task"]["metrics"]
    result = {
        "prompt": str(options.prompt),
        "rows": len(examples),
        "scoring": options.scoring or tuned.card["scoring"],
        "metrics": score(names, targets, predictions),
        "majority": score(names, targets, [tuned.card["task"]["commonest"]] * len(targets)),
        "invalid": sum(p not in tuned.form.labels for p in predictions),
    }
    _tell(options, result, f"{_scores(result)} on {len(examples)} rows")
    return 0


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
    inputs = [tuned.form.input(row) for row in rows] or tuned.inputs(texts)
    with RowProgress("predicting", len(inputs), options.quiet) as progress:
        predictor = tuned.predictor(options.scoring)
        answers = predictor(inputs, progress.tick)
        shares = predictor.probabilities(inputs) if options.json else []
    for index, (text, answer) in enumerate(zip(inputs, answers, strict=True)):
        if options.json:
            rounded = {label: round(share, 4) for label, share in shares[index].items()}
            print(json.dumps({"input": text, "prediction": answer, "probabilities": rounded}, ensure_ascii=False))
        else:
            print(answer)
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"tune": tune, "evaluate": evaluate, "predict": predict}


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
        print(f"softprompts: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("softprompts: stopped; tune goes on from its last checkpoint when the same command is given again.", file=sys.stderr)
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


def _parser(name: str, examples: str) -> argparse.ArgumentParser:
    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            raise UserError(f"{message[0].upper()}{message[1:]}; see softprompts {name} --help.")

    parser = Parser(
        prog=f"softprompts {name}",
        description=COMMANDS[name].__doc__,
        epilog=f"examples:\n  {examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _prompt_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", type=Path, help="the folder that tune wrote")
    parser.add_argument(
        "--scoring", choices=["generate", "labels"], help="greedy generation, or the likeliest label word (default: as tuned)"
    )
    parser.add_argument("--model", help="the backbone's place, when it is not where the card says")
    parser.add_argument("--dtype", default="auto", help="fp32, bf16 or auto")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that a hub model brings along")


def _path(text: str) -> Path:
    if not text.strip():
        raise UserError("The output folder has no name; give one with --output.")
    return Path(text)


def _load(options: argparse.Namespace) -> "Tuned":
    from .api import load

    return load(options.prompt, options.model, options.dtype, options.device, options.trust_remote_code)


def _folder(config: Any) -> Path:
    from .prompt.store import safe_name

    what = config.task.task or f"{Path(config.task.train or '').stem}-{config.task.label}"
    return Path("runs") / safe_name(f"{what}-{config.method}-seed{config.seed}")


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
    lines.append(f"the prompt, its card and its learning curve are in {tuned.folder}")
    return "\n".join(lines)


def _scores(result: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value:.1f} (majority class {result['majority'][name]:.1f})" for name, value in result["metrics"].items())


def _tell(options: argparse.Namespace, result: dict[str, Any], text: str) -> None:
    print(json.dumps(result, ensure_ascii=False) if options.json else text)


if __name__ == "__main__":
    sys.exit(main())
