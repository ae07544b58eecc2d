"""Tasks: rows in, text pairs out; predictions in, metrics out."""

from ..config.task import TaskConfig
from .definition import Example
from .form import Form
from .task import Task, load_task

__all__ = ["Example", "Form", "Task", "TaskConfig", "load_task"]
