"""Tasks: rows in, text pairs out; predictions in, metrics out."""

from .task import Example, Form, Task, TaskConfig, load_task

__all__ = ["Example", "Form", "Task", "TaskConfig", "load_task"]
