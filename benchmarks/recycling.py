"""What survives of a prompt when its backbone changes: tuned prompts of an old model mapped to a new one, and judged.

    python benchmarks/recycling.py runs/backbones/old --from-model models/old --model t5-tiny --data-dir DATA --output recycling.json

The folder holds tuned prompts, such as a cohort of benchmarks/backbones.py. Each is mapped by least squares and by nearest words, and is
judged as it is by the task's validation rows, beside the score it had, the majority class, and, with --beside FOLDER, what prompts that
were tuned on the new model reach. Scores are means over the prompts of a task. A mapped prompt that no longer makes the model write labels
scores nothing; --scoring labels asks which label it finds likeliest, and tells what is left then.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from softprompts.artifacts.run_folder import CARD, RunFolder
from softprompts.backbone import load_backbone
from softprompts.config.choice import from_mapping
from softprompts.errors import UserError
from softprompts.files import write_json
from softprompts.tasks import load_task
from softprompts.config.task import TaskConfig
from softprompts.transfer.recycle import Recycling, recycle, recycled_card, shared_words
from softprompts.tuning.tuned import Tuned

WAYS = {
    "least squares": Recycling("least-squares"),
    "nearest word": Recycling("words"),
    "nearest 5 words": Recycling("words", nearest=5),
}


def judged(folder: Path, options: argparse.Namespace, old: Any, new: Any) -> dict[str, Any]:
    """One prompt: what it scored, and what each way of mapping it scores."""
    prompt, card = RunFolder(folder).load(old)
    own = {**card.task_settings, **({"data_dir": options.data_dir} if options.data_dir else {})}
    task = load_task(TaskConfig.of(own))
    metric = task.metrics[0]
    found: dict[str, Any] = {
        "task": task.name,
        "metric": metric,
        "majority": task.majority()[metric],
        "old": card.metrics[metric],
    }
    for name, how in WAYS.items():
        made = recycle(prompt, old, new, how)
        told = Tuned(made.to(new.device), new, recycled_card(card, str(folder), made, new, how, 0))
        found[name] = task.score(
            told.predictor(options.scoring)([example.input for example in task.validation])
        )[metric]
    return found


def means(rows: list[dict[str, Any]], beside: dict[str, list[float]]) -> list[dict[str, Any]]:
    """By task, then over all tasks."""
    names = ["majority", "old", *WAYS]
    table = []
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        line = {"task": task, **{name: fmean(row[name] for row in own) for name in names}}
        table.append(line | ({"tuned on the new": fmean(beside[task])} if task in beside else {}))
    every = [name for name in (*names, "tuned on the new") if all(name in line for line in table)]
    return [
        *table,
        {"task": "mean", **{name: fmean(line[name] for line in table) for name in every}},
    ]


def scores(folder: Path) -> dict[str, list[float]]:
    """The scores of the tuned prompts below a folder, by task."""
    found: dict[str, list[float]] = {}
    for path in sorted(folder.glob(f"*/{CARD}")):
        card = RunFolder(path.parent).card()
        found.setdefault(card.task.name, []).append(
            card.score
        )
    return found


def markdown(table: list[dict[str, Any]]) -> str:
    names = [name for name in table[-1] if name != "task"]
    rows = [["task", *names], ["---", *["---:"] * len(names)]]
    rows += [
        [line["task"], *(f"{line[name]:.1f}" if name in line else "" for name in names)]
        for line in table
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a folder of tuned prompts' folders")
    parser.add_argument("--from-model", required=True, help="the model they were tuned on")
    parser.add_argument("--model", required=True, help="the model they are to be for")
    parser.add_argument(
        "--beside",
        type=Path,
        help="a folder of prompts that were tuned on the new model, to compare with",
    )
    parser.add_argument(
        "--data-dir", help="a folder with the tasks' rows (default: SOFTPROMPTS_DATA)"
    )
    parser.add_argument(
        "--scoring",
        choices=["generate", "labels"],
        help="how a mapped prompt answers (default: as it did before)",
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--output", type=Path, required=True, help="where the JSON goes")
    options = parser.parse_args(argv)
    try:
        folders = sorted(path.parent for path in options.folder.glob(f"*/{CARD}"))
        if not folders:
            raise UserError(
                f"There are no tuned prompts in folders below {options.folder}; name another."
            )
        old, new = (
            load_backbone(name, device=options.device)
            for name in (options.from_model, options.model)
        )
        rows = []
        for folder in folders:
            rows.append(judged(folder, options, old, new))
            print(rows[-1], file=sys.stderr, flush=True)
        table = means(rows, scores(options.beside) if options.beside else {})
    except UserError as error:
        print(f"recycling: {error}", file=sys.stderr)
        return 2
    models = {
        "from": options.from_model,
        "to": options.model,
        "shared_words": len(shared_words(old, new)),
        "scoring": options.scoring,
    }
    write_json(options.output, {**models, "prompts": rows, "table": table})
    print(markdown(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
