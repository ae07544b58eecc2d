"""A plugin: every file tasks/NAME.csv becomes the task shop/NAME. Every fifth row validates."""

import csv
from collections.abc import Iterator
from pathlib import Path

import softprompts
from softprompts.tasks import Example, Row


def register(file: Path) -> None:
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))

    def load(split: str) -> list[dict[str, str]]:
        if split == "train":
            return [row for number, row in enumerate(rows) if number % 5]
        return rows[::5] if split == "validation" else []

    @softprompts.register_task(
        f"shop/{file.stem}",
        rows=load,
        labels=tuple(sorted({row["label"] for row in rows})),
        columns=("message",),
        metrics=("accuracy", "macro_f1"),
        word="",  # no task name in front of the text, so that all tasks see the same one
    )
    def preprocess(row: Row, split: str) -> Iterator[Example]:
        yield Example(row.values["message"], row.values["label"])


for path in sorted(Path(__file__).parent.glob("tasks/*.csv")):
    register(path)
