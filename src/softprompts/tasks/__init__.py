"""Tasks: rows in, text pairs out; predictions in, metrics out."""

from .definition import Definition, Example
from .load import load_task
from .metrics import register_metric
from .registry import register_task
from .sources import Row
from .task import Task
from .text_format import TextFormat

__all__ = [
    "Definition",
    "Example",
    "Row",
    "Task",
    "TextFormat",
    "load_task",
    "register_metric",
    "register_task",
]
