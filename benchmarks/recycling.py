r"""What is left of prompts when the backbone changes: map them to a new model, and evaluate them.

    python benchmarks/recycling.py runs/backbones/old --from-model models/old --model t5-tiny \
        --data-dir DATA --output recycling.json

The folder holds tuned prompts, such as a cohort of benchmarks/backbones.py. Each is mapped by least
squares and by nearest words, and evaluated on the task's validation rows. The table shows the
scores before and after, the majority class, and with --beside FOLDER the scores of prompts tuned on
the new model. Scores are means over the prompts of a task. A mapped prompt that no longer makes the
model generate labels scores nothing; --scoring labels shows what it still knows.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean
from typing import Any

from softprompts.artifacts.file_names import CARD
from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone, load_backbone
from softprompts.config import TaskConfig
from softprompts.errors import UserError, as_flag
from softprompts.files import write_json
from softprompts.tasks import load_task
from softprompts.transfer.recycle import Recycling, recycle, recycled_card, shared_words
from softprompts.tuning.tuned import Tuned

METHODS = {
    "least squares": Recycling("least-squares"),
    "nearest word": Recycling("words"),
    "nearest 5 words": Recycling("words", nearest=5),
}
TUNED = "tuned on the new"
"""The column of the prompts of --beside."""

Row = dict[str, Any]


def evaluate(folder: Path, options: argparse.Namespace, old: Backbone, new: Backbone) -> Row:
    """The scores of one prompt: its own, and after each method of mapping it."""
    prompt, card = RunFolder(folder).load(old)
    data_dir = {"data_dir": options.data_dir} if options.data_dir else {}
    task = load_task(TaskConfig.of({**card.task_settings, **data_dir}))
    metric = task.metrics[0]
    row: Row = {
        "task": task.name,
        "metric": metric,
        "majority": task.majority()[metric],
        "old": card.metrics[metric],
    }
    inputs = [example.input for example in task.validation]
    for name, method in METHODS.items():
        mapped = recycle(prompt, old, new, method)
        new_card = recycled_card(card, str(folder), mapped, new, method, 0)
        tuned = Tuned(mapped.to(new.device), new, new_card)
        row[name] = task.score(tuned.predictor(options.scoring)(inputs))[metric]
    return row


def means(rows: list[Row], tuned: dict[str, list[float]]) -> list[Row]:
    """Means by task, then over all tasks."""
    names = ["majority", "old", *METHODS]
    table = []
    for task in dict.fromkeys(row["task"] for row in rows):
        group = [row for row in rows if row["task"] == task]
        line = {"task": task, **{name: fmean(row[name] for row in group) for name in names}}
        table.append(line | ({TUNED: fmean(tuned[task])} if task in tuned else {}))
    complete = [name for name in (*names, TUNED) if all(name in line for line in table)]
    overall = {name: fmean(line[name] for line in table) for name in complete}
    return [*table, {"task": "mean", **overall}]


def tuned_scores(folder: Path) -> dict[str, list[float]]:
    """The scores of the tuned prompts below a folder, by task."""
    scores: dict[str, list[float]] = {}
    for path in sorted(folder.glob(f"*/{CARD}")):
        card = RunFolder(path.parent).card()
        scores.setdefault(card.task.name, []).append(card.score)
    return scores


def markdown(table: list[Row]) -> str:
    names = [name for name in table[-1] if name != "task"]
    rows = [["task", *names], ["---", *["---:"] * len(names)]]
    rows += [
        [line["task"], *(f"{line[name]:.1f}" if name in line else "" for name in names)]
        for line in table
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    try:
        folders = sorted(path.parent for path in options.folder.glob(f"*/{CARD}"))
        if not folders:
            raise UserError(f"There are no tuned prompts below {options.folder}; name another.")
        old = load_backbone(options.from_model, device=options.device)
        new = load_backbone(options.model, device=options.device)
        rows = []
        for folder in folders:
            rows.append(evaluate(folder, options, old, new))
            print(rows[-1], file=sys.stderr, flush=True)
        table = means(rows, tuned_scores(options.beside) if options.beside else {})
    except UserError as error:
        print(f"recycling: {error.spelled(as_flag)}", file=sys.stderr)
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


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder", type=Path, help="folder of the prompts' folders")
    add("--from-model", required=True, help="the model they were tuned on")
    add("--model", required=True, help="the model to map them to")
    add("--beside", type=Path, help="folder of prompts tuned on the new model, to compare with")
    add("--data-dir", help="folder with the tasks' rows (default: SOFTPROMPTS_DATA)")
    add("--scoring", choices=["generate", "labels"], help="of a mapped prompt (default: unchanged)")
    add("--device", default="auto")
    add("--output", type=Path, required=True, help="JSON file for the result")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
