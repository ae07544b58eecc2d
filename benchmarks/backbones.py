r"""How well prompts can be tuned on a frozen model: mean accuracy over ten tasks, three seeds each.

    python benchmarks/backbones.py old=t5-tiny new=models/new --data-dir DATA --output runs/new
    python benchmarks/backbones.py t5-tiny --tasks helpdesk/intent,helpdesk/urgency --steps 100 \
        --seeds 0 --output runs/laptop

The runs of a backbone form one cohort. An accuracy is the best validation accuracy of a run, with
that of the last step in brackets. An interrupted command resumes when it is given again. The result
is in FOLDER/backbones.json and FOLDER/backbones.md.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from softprompts import tune
from softprompts.backbone import load_backbone
from softprompts.config import TaskConfig, expand_lists, sections
from softprompts.errors import UserError, as_flag, setting
from softprompts.files import read_json, write_json, write_text
from softprompts.files.names import safe_name
from softprompts.tasks import load_task
from softprompts.tuning.tuned import Tuned

TASKS = (
    *("glue/sst2", "textcls/trec", "textcls/agnews", "textcls/cr", "glue/mrpc"),
    *("superglue/rte", "superglue/boolq", "superglue/cb", "superglue/wic", "glue/cola"),
)
SCORES = "scores.json"
MACHINE_SETTINGS = ("device", "data_dir")
"""Settings that say where a measurement runs, not what it measures."""

Record = dict[str, Any]


def tuning_settings(
    tasks: Sequence[str], seeds: Sequence[int], steps: int = 1000, **others: Any
) -> dict[str, Any]:
    """The settings of a measurement for `softprompts.tune`; by default four evaluations a run."""
    every = others.pop("evaluate_every", None) or max(1, -(-steps // 4))
    settings = {
        "task": list(tasks),
        "seed": list(seeds),
        "steps": steps,
        "evaluate_every": every,
        "checkpoint_every": every,
        "preset": "prompt-tuning",
        "batch_size": 32,
        "prompt": {"length": 20},
        "metric": "accuracy",
    }
    return settings | {name: value for name, value in others.items() if value is not None}


def parse_seeds(seeds: str) -> list[int]:
    """The seeds of the flag --seeds."""
    if not all(part.strip().isdecimal() for part in seeds.split(",")):
        raise UserError(
            f"{setting('seeds')} is {seeds!r}; give whole numbers separated by commas, such as "
            "0,1,2."
        )
    return [int(part) for part in seeds.split(",")]


def check(settings: Mapping[str, Any], folders: Iterable[Path]) -> None:
    """Report bad settings before long work, and bad rows unless all folders are finished."""
    members = expand_lists(sections(settings))
    tasks = {str(member.config.task): member.config.task for member in members}
    if not all((folder / SCORES).exists() for folder in folders):
        for task in tasks.values():
            load_task(task)


def measure(
    model: str, folder: Path, settings: Mapping[str, Any], scorings: Sequence[str] = ()
) -> Record:
    """Tune all runs as one cohort in `folder`, or resume them; finished results are reused.

    The best prompts are also evaluated with each of the other `scorings`.
    """
    backbone = load_backbone(model, device="cpu")
    measured = {
        "fingerprint": backbone.fingerprint,
        "settings": {
            name: value for name, value in settings.items() if name not in MACHINE_SETTINGS
        },
        **({"also": list(scorings)} if scorings else {}),
    }
    if (folder / SCORES).exists():
        record: Record = read_json(folder / SCORES)
        if {name: record.get(name) for name in measured} != measured:
            raise UserError(
                f"{folder} holds results of another model or with other settings; choose another "
                f"{setting('output')}."
            )
        return record
    resumed = any(folder.glob("*/checkpoint.safetensors"))
    began = time.monotonic()
    results = tune(**settings, model=model, output=folder)
    seconds = round(time.monotonic() - began, 1)
    runs = itertools.product(settings["task"], settings["seed"])
    tasks = scores_by_task(dict(zip(runs, results, strict=True)), scorings)
    record = {
        **measured,
        "parameters": sum(parameter.numel() for parameter in backbone.model.parameters()),
        "tasks": tasks,
        "mean": {kind: mean_over_tasks(tasks, kind) for kind in ("best", "last", *scorings)},
        "seconds": seconds,
        "resumed": resumed,
    }
    write_json(folder / SCORES, record)
    return record


def scores_by_task(
    results: Mapping[tuple[str, int], Any], scorings: Sequence[str]
) -> dict[str, Record]:
    """Accuracies by task, kind and seed."""
    tasks: dict[str, Record] = {
        task: {"majority": None, **{kind: {} for kind in ("best", "last", *scorings)}, "failed": {}}
        for task, _ in results
    }
    for (task, seed), result in results.items():
        scores = tasks[task]
        if isinstance(result, Exception):
            scores["failed"][str(seed)] = str(result)
            continue
        scores["majority"] = result.card.majority["accuracy"]
        scores["best"][str(seed)] = result.metrics["accuracy"]
        metrics = (result.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        scores["last"][str(seed)] = json.loads(metrics[-1])["accuracy"]
        for scoring in scorings:
            scores[scoring][str(seed)] = evaluate(result, scoring)
    return tasks


def evaluate(tuned: Tuned, scoring: str) -> float:
    """A prompt's accuracy on its task's validation rows with another scoring."""
    task = load_task(TaskConfig.of(tuned.card.task_settings))
    predictions = tuned.predictor(scoring)([example.input for example in task.validation])
    return task.score(predictions)["accuracy"]


def mean_over_tasks(tasks: Mapping[str, Mapping[str, Any]], kind: str) -> dict[str, float]:
    """The mean over all tasks, for each seed that finished on every task."""
    seeds = [
        seed
        for seed in next(iter(tasks.values()))[kind]
        if all(seed in scores[kind] for scores in tasks.values())
    ]
    return {seed: round(mean(scores[kind][seed] for scores in tasks.values()), 4) for seed in seeds}


def mean_and_std(scores: Mapping[str, float]) -> str:
    """Over the seeds."""
    values = list(scores.values())
    if not values:
        return "failed"
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def best_and_last(scores: Mapping[str, Any]) -> str:
    return f"{mean_and_std(scores['best'])} ({mean_and_std(scores['last'])})"


def table(
    records: Mapping[str, Mapping[str, Any]],
    cell: Callable[[Mapping[str, Any]], str] = best_and_last,
) -> str:
    """Markdown with a row for each task and one for their mean."""
    first = next(iter(records.values()))
    rows = [["task", "majority class", *records], ["---", *["---:"] * (1 + len(records))]]
    for task, scores in first["tasks"].items():
        majority = "" if scores["majority"] is None else f"{scores['majority']:.1f}"
        rows.append([task, majority, *(cell(r["tasks"][task]) for r in records.values())])
    majorities = [scores["majority"] for scores in first["tasks"].values()]
    overall = "" if None in majorities else f"{mean(majorities):.1f}"
    rows.append(["**mean**", overall, *(f"**{cell(r['mean'])}**" for r in records.values())])
    times = [f"{r['seconds']:.0f}{' (resumed)' * r['resumed']}" for r in records.values()]
    rows.append(["seconds", "", *times])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def description(settings: Mapping[str, Any]) -> str:
    return (
        f"{settings['preset']}, {settings['prompt']['length']} prompt tokens, {settings['steps']} "
        f"steps of {settings['batch_size']} rows, seeds {', '.join(map(str, settings['seed']))}: "
        "mean ± standard deviation over the seeds of the best validation accuracy (%), evaluated "
        f"every {settings['evaluate_every']} steps; in brackets that of the last step.\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    models = [
        (name, model) if model else (Path(name).name, name)
        for name, _, model in (text.partition("=") for text in options.models)
    ]
    records: dict[str, Record] = {}
    try:
        if len({safe_name(name) for name, _ in models}) < len(models):
            raise UserError("Two models have the same name; write NAME=MODEL.")
        settings = tuning_settings(
            [task.strip() for task in options.tasks.split(",")],
            parse_seeds(options.seeds),
            options.steps,
            evaluate_every=options.evaluate_every,
            preset=options.preset,
            batch_size=options.batch_size,
            prompt={"length": options.length},
            lr=options.lr,
            cap_validation=options.cap_validation,
            data_dir=options.data_dir,
            device=options.device,
        )
        check(settings, [options.output / safe_name(name) for name, _ in models])
        for _, model in models[1:]:
            load_backbone(model, device="cpu")  # reports a missing one before the first is measured
        for name, model in models:
            record = measure(model, options.output / safe_name(name), settings)
            records[name] = record
            line = f"{name}: {best_and_last(record['mean'])} in {record['seconds']:.0f} s"
            print(line, file=sys.stderr, flush=True)
    except UserError as error:
        print(f"backbones: {error.spelled(as_flag)}", file=sys.stderr)
        return 2
    text = f"{description(settings)}\n{table(records)}"
    write_json(options.output / "backbones.json", records)
    write_text(options.output / "backbones.md", text)
    print(json.dumps(records) if options.json else text)
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="a model's folder or name, or NAME=MODEL")
    add("--output", type=Path, required=True, help="folder for the runs and the tables")
    add("--tasks", default=",".join(TASKS))
    add("--steps", type=int, default=1000)
    add("--seeds", default="0,1,2")
    add("--length", type=int, default=20, help="prompt tokens")
    add("--batch-size", type=int, default=32)
    add("--preset", default="prompt-tuning")
    add("--lr", type=float)
    add("--evaluate-every", type=int, help="steps between evaluations (default: four per run)")
    add("--cap-validation", type=int, help="evaluate on at most this many rows of a task")
    add("--data-dir", help="folder with the tasks' rows (default: SOFTPROMPTS_DATA)")
    add("--device")
    add("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
