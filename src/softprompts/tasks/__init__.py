"""Tasks: rows in, text pairs out; predictions in, metrics out."""

from .definition import Example
from .task import Form, Task, TaskConfig, load_task

__all__ = ["Example", "Form", "Task", "TaskConfig", "load_task"]
