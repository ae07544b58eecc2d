"""Starter tasks that come with the package: customer messages to a helpdesk, with six labels each.

`helpdesk/README.md` says how they were made.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..sources import Row
from ..task_definition import Definition, Example, label_of, text_of

_HELPDESK = Path(__file__).parent / "helpdesk"
_FILES = {split: str(_HELPDESK / f"{split}.jsonl") for split in ("train", "validation")}
_CLASSES = {
    "intent": ("cancel", "change", "idea", "question", "refund", "repair", "status", "thanks"),
    "urgency": ("high", "low", "medium"),
    "sentiment": ("negative", "neutral", "positive"),
    "area": ("account", "app", "delivery", "device", "payment"),
    "answerable": ("no", "yes"),
    "register": ("casual", "formal"),
}

STARTERS: dict[str, dict[str, Any]] = {
    f"helpdesk/{label}": {**_FILES, "text": "text", "label": label} for label in _CLASSES
}
"""The settings that each task name stands for."""


def _define(label: str, classes: tuple[str, ...]) -> Definition:
    def preprocess(row: Row, split: str) -> Iterator[Example]:
        yield Example(text_of(row, "text").strip(), label_of(row, label, classes))

    return Definition(
        f"helpdesk/{label}",
        "",
        preprocess,
        ("accuracy", "macro_f1"),
        classes,
        word="",
        columns=("text",),
        files=_FILES,
    )


DEFINITIONS = [_define(*entry) for entry in _CLASSES.items()]
"""The same tasks as definitions, to show and to evaluate on. They have no task word."""
