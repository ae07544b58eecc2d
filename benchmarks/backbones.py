"""How good a frozen model is to tune prompts on: the mean accuracy over ten tasks, three seeds each, one cohort for each backbone.

    python benchmarks/backbones.py old=t5-tiny new=models/new --output runs/backbones --data-dir DATA
    python benchmarks/backbones.py t5-tiny --tasks helpdesk/intent,helpdesk/urgency --steps 100 --seeds 0 --output runs/laptop

An accuracy is the best validation accuracy of a run, as its card tells; the last step's stands beside it. A command that was killed goes on
when it is given again. FOLDER/backbones.json and FOLDER/backbones.md hold the result.
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
from softprompts.config.choice import from_mapping
from softprompts.config.products import expand_lists
from softprompts.errors import UserError
from softprompts.files import read_json, write_json, write_text
from softprompts.files.names import safe_name
from softprompts.tasks import load_task
from softprompts.config.task import TaskConfig
from softprompts.tuning.tuned import Tuned
from softprompts.config.run import sections

TASKS = (
    *("glue/sst2", "textcls/trec", "textcls/agnews", "textcls/cr", "glue/mrpc"),
    *("superglue/rte", "superglue/boolq", "superglue/cb", "superglue/wic", "glue/cola"),
)
SCORES = "scores.json"
HERE = ("device", "data_dir")
"""Settings that say where a measure is taken, not what of."""


def settings(
    tasks: Sequence[str], seeds: Sequence[int], steps: int = 1000, **others: Any
) -> dict[str, Any]:
    """A measure's settings, as `softprompts.tune` takes them; `evaluate_every`: a few times a run unless told."""
    every = others.pop("evaluate_every", None) or max(1, -(-steps // 4))
    defaults = {
        "preset": "prompt-tuning",
        "batch_size": 32,
        "prompt": {"length": 20},
        "metric": "accuracy",
    }
    made = {
        "task": list(tasks),
        "seed": list(seeds),
        "steps": steps,
        "evaluate_every": every,
        "checkpoint_every": every,
        **defaults,
    }
    return made | {name: value for name, value in others.items() if value is not None}


def numbers(seeds: str) -> list[int]:
    """The seeds of a flag."""
    if not all(part.strip().isdecimal() for part in seeds.split(",")):
        raise UserError(
            f"--seeds is {seeds!r}; write whole numbers with commas between them, such as 0,1,2."
        )
    return [int(part) for part in seeds.split(",")]


def check(given: Mapping[str, Any], folders: Iterable[Path]) -> None:
    """Tell what is wrong with a measure's settings before long work, and with its tasks' rows unless all folders are measured already."""
    tasks = {str(member.config.task): member.config.task for member in expand_lists(sections(given))}
    if not all((folder / SCORES).exists() for folder in folders):
        for task in tasks.values():
            load_task(task)


def measure(
    model: str, folder: Path, given: Mapping[str, Any], also: Sequence[str] = ()
) -> dict[str, Any]:
    """Tune all runs as one cohort in `folder`, or go on with them; what they came to is kept, and not measured again.

    The best prompts are judged once more by every way of answering in `also`.
    """
    backbone = load_backbone(model, device="cpu")
    what = {
        "fingerprint": backbone.fingerprint,
        "settings": {name: value for name, value in given.items() if name not in HERE},
    }
    what |= {"also": list(also)} if also else {}
    if (folder / SCORES).exists():
        record: dict[str, Any] = read_json(folder / SCORES)
        if {name: record.get(name) for name in what} != what:
            raise UserError(
                f"{folder} holds a measure of another model or with other settings; name another --output."
            )
        return record
    resumed = any(folder.glob("*/checkpoint.safetensors"))
    begun = time.monotonic()
    results = tune(**given, model=model, output=folder)
    seconds = round(time.monotonic() - begun, 1)
    kinds = ("best", "last", *also)
    tasks: dict[str, dict[str, Any]] = {
        task: {"majority": None, **{kind: {} for kind in kinds}, "failed": {}}
        for task in given["task"]
    }
    for (task, seed), result in zip(
        itertools.product(given["task"], given["seed"]), results, strict=True
    ):
        if isinstance(result, Exception):
            tasks[task]["failed"][str(seed)] = str(result)
            continue
        tasks[task]["majority"] = result.card.majority["accuracy"]
        tasks[task]["best"][str(seed)] = result.metrics["accuracy"]
        last = (result.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1]
        tasks[task]["last"][str(seed)] = json.loads(last)["accuracy"]
        for scoring in also:
            tasks[task][scoring][str(seed)] = judged(result, scoring)
    totals = {which: over_tasks(tasks, which) for which in kinds}
    sizes = {"parameters": sum(parameter.numel() for parameter in backbone.model.parameters())}
    record = {
        **what,
        **sizes,
        "tasks": tasks,
        "mean": totals,
        "seconds": seconds,
        "resumed": resumed,
    }
    write_json(folder / SCORES, record)
    return record


def judged(tuned: Tuned, scoring: str) -> float:
    """A prompt's accuracy on its task's validation rows when it answers in another way."""
    task = load_task(TaskConfig.of(tuned.card.task_settings))
    return task.score(tuned.predictor(scoring)([example.input for example in task.validation]))[
        "accuracy"
    ]


def over_tasks(tasks: Mapping[str, Mapping[str, Any]], which: str) -> dict[str, float]:
    """The mean over all tasks for each seed that no task lacks."""
    seeds = [
        seed
        for seed in next(iter(tasks.values()))[which]
        if all(seed in scores[which] for scores in tasks.values())
    ]
    return {
        seed: round(mean(scores[which][seed] for scores in tasks.values()), 4) for seed in seeds
    }


def spread(scores: Mapping[str, float]) -> str:
    """Mean and standard deviation over the seeds."""
    values = list(scores.values())
    if not values:
        return "failed"
    return f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "")


def table(
    records: Mapping[str, Mapping[str, Any]], cell: Callable[[Mapping[str, Any]], str] | None = None
) -> str:
    """Markdown: a row for each task and one for their mean; best validation accuracy, and the last step's in brackets, unless told."""
    cell = cell or _cell
    first = next(iter(records.values()))
    rows = [["task", "majority class", *records], ["---", *["---:"] * (1 + len(records))]]
    for task, scores in first["tasks"].items():
        own = [record["tasks"][task] for record in records.values()]
        rows.append(
            [
                task,
                "" if scores["majority"] is None else f"{scores['majority']:.1f}",
                *map(cell, own),
            ]
        )
    lines = [value["majority"] for value in first["tasks"].values()]
    floor = f"{mean(lines):.1f}" if all(line is not None for line in lines) else ""
    rows.append(
        ["**mean**", floor, *(f"**{cell(record['mean'])}**" for record in records.values())]
    )
    rows.append(
        [
            "seconds",
            "",
            *(f"{r['seconds']:.0f}{' since it went on' * r['resumed']}" for r in records.values()),
        ]
    )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _cell(scores: Mapping[str, Any]) -> str:
    return f"{spread(scores['best'])} ({spread(scores['last'])})"


def about(given: Mapping[str, Any]) -> str:
    return (
        f"{given['preset']}, {given['prompt']['length']} prompt tokens, {given['steps']} steps of {given['batch_size']} rows, "
        f"seeds {', '.join(map(str, given['seed']))}: mean ± standard deviation of the best validation accuracy (%) over the seeds, "
        f"judged every {given['evaluate_every']} steps; in brackets the last step's.\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    options = parsed(argv)
    names = [
        (name, model) if model else (Path(name).name, name)
        for name, _, model in (text.partition("=") for text in options.models)
    ]
    records: dict[str, dict[str, Any]] = {}
    try:
        if len({safe_name(name) for name, _ in names}) < len(names):
            raise UserError("Two models have the same name; write NAME=MODEL.")
        given = settings(
            [task.strip() for task in options.tasks.split(",")], numbers(options.seeds), options.steps,
            evaluate_every=options.evaluate_every, preset=options.preset, batch_size=options.batch_size, prompt={"length": options.length},
            lr=options.lr, cap_validation=options.cap_validation, data_dir=options.data_dir, device=options.device,
        )  # fmt: skip
        check(given, [options.output / safe_name(name) for name, _ in names])
        for _, model in names[1:]:
            load_backbone(
                model, device="cpu"
            )  # one that is not there is told before the first is measured
        for name, model in names:
            records[name] = measure(model, options.output / safe_name(name), given)
            print(
                f"{name}: {_cell(records[name]['mean'])} in {records[name]['seconds']:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    except (UserError, ValueError) as error:
        print(f"backbones: {error}", file=sys.stderr)
        return 2
    text = f"{about(given)}\n{table(records)}"
    write_json(options.output / "backbones.json", records)
    write_text(options.output / "backbones.md", text)
    print(json.dumps(records) if options.json else text)
    return 0


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="a model's folder or name, or NAME=MODEL"
    )
    parser.add_argument(
        "--output", type=Path, required=True, help="where the runs and the tables go"
    )
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--length", type=int, default=20, help="prompt tokens")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--preset", default="prompt-tuning")
    parser.add_argument("--lr", type=float)
    parser.add_argument(
        "--evaluate-every", type=int, help="steps between evaluations (default: four times a run)"
    )
    parser.add_argument(
        "--cap-validation", type=int, help="judge by so many rows of a task at most"
    )
    parser.add_argument(
        "--data-dir", help="a folder with the tasks' rows (default: SOFTPROMPTS_DATA)"
    )
    parser.add_argument("--device")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
