"""What a user should know about a task's rows before trusting its scores."""

from collections import Counter

from ..errors import closest, listing, setting
from .task import Task

REPEATED = 0.05
"""The share of validation rows that may be training rows, too, without a warning."""


def doubtful_classes(task: Task) -> str | None:
    """A warning about classes that are probably the same one, or have a single row in a split;
    None if there are none."""
    if not task.labels or len(task.members) > 1:
        return None
    same: dict[str, list[str]] = {}
    for label in task.labels:
        same.setdefault(" ".join(label.casefold().split()), []).append(label)
    for labels in same.values():
        if len(labels) > 1:
            return (
                f"{' and '.join(labels)} are different classes, although they differ only in case "
                "or spaces; correct the rows, or give both the same label word."
            )
    for split, examples in (("training", task.train), ("validation", task.validation)):
        counts = Counter(example.target for example in examples)
        lone = [label for label, count in counts.items() if count == 1]
        if lone:
            verb = "has" if len(lone) == 1 else "have"
            similar = closest(lone[0], [label for label in counts if label != lone[0]])
            typo = f", or correct {lone[0]} if it should be {similar}" if similar else ""
            return (
                f"{listing(sorted(lone))} {verb} a single {split} row; "
                f"add rows{typo}, because the score of such a class means little."
            )
    return None


def repeated_rows(task: Task) -> str | None:
    """A warning about validation texts that are also training texts; None if there are few.

    Named tasks have the rows that their authors chose.
    """
    if task.form.definition is not None or len(task.members) > 1:
        return None
    trained = {example.input for example in task.train}
    repeated = sum(example.input in trained for example in task.validation)
    if repeated < max(1, REPEATED * len(task.validation)):
        return None
    return (
        f"{repeated:,} of {len(task.validation):,} validation rows are also training rows, so the "
        f"score is optimistic; remove the duplicates, or name other rows with "
        f"{setting('task.validation')}."
    )
