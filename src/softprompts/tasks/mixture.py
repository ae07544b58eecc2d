"""Mixtures: several tasks learned by one prompt, each with the share min(n, K) / sum of min(n, K), exact in every epoch."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..config.task import TaskConfig
from ..errors import UserError
from .definition import Example
from .form import Form
from .metrics import score, settled
from .registry import BENCHMARKS
from .task import Task

MEAN = "mean"
"""The metric of a mixture: the mean of its tasks' first metrics."""


@dataclass(frozen=True)
class Mixture(Task):
    """The examples of all its tasks in order; a held-out example is judged by its own task."""

    tasks: tuple[Task, ...] = ()
    most: int = 2**19

    @property
    def mixed(self) -> tuple[Task, ...]:
        return self.tasks

    @property
    def limit(self) -> int | None:
        return self.most

    @property
    def brief(self) -> Task:
        tasks = tuple(task.brief for task in self.tasks)
        return dataclasses.replace(self, tasks=tasks, **_joined(tasks))

    @property
    def answer_length(self) -> int | None:
        return max((task.answer_length or 0 for task in self.tasks), default=0) or None

    def score(
        self, predictions: Sequence[str], examples: Sequence[Example] | None = None
    ) -> dict[str, float]:
        """Every task's metrics as TASK:METRIC, and the mean of their first ones."""
        found: dict[str, float] = {}
        firsts, begin = [], 0
        for task in self.tasks:
            held = task.validation if examples is None else task.test
            own = settled(
                score(task.metrics, held, predictions[begin : begin + len(held)], task.labels)
            )
            begin += len(held)
            firsts.append(own[task.metrics[0]])
            found |= {f"{task.name}:{name}": value for name, value in own.items()}
        return {MEAN: round(sum(firsts) / len(firsts), 4), **found}

    def majority(self) -> dict[str, float]:
        """Each task's own commonest label."""
        return self.score([task.commonest for task in self.tasks for _ in task.validation])


def load_mixture(config: TaskConfig, load: Callable[[TaskConfig], Task]) -> Mixture:
    """`a+b+c`, where each may be a benchmark's name too; each is loaded by `load`."""
    assert config.task is not None
    names = mixed_names(config.task)
    if len(set(names)) < len(names) or not all(names):
        raise UserError(
            f"The mixture {config.task} names a task twice, or none; name every task once, with + between."
        )
    tasks = tuple(load(dataclasses.replace(config, task=name)) for name in names)
    words = (
        {word: word for task in tasks for word in task.labels}
        if all(task.labels for task in tasks)
        else {}
    )
    metrics = (MEAN, *(f"{task.name}:{metric}" for task in tasks for metric in task.metrics))
    form = Form("{text}", "label", words, sentinel=config.sentinel)
    return Mixture(
        config.task, form, **_joined(tasks), metrics=metrics, tasks=tasks, most=config.mixture_limit
    )


def _joined(tasks: Sequence[Task]) -> dict[str, Any]:
    """The examples of all, split by split."""
    return {
        part: [e for task in tasks for e in getattr(task, part)]
        for part in ("train", "validation", "test")
    }


def mixed_names(task: str) -> list[str]:
    """The tasks of `a+b+c`."""
    return [
        name for part in task.split("+") for name in BENCHMARKS.get(part.strip(), (part.strip(),))
    ]


def rates(sizes: Sequence[int], limit: int) -> list[float]:
    """Each task's share: examples-proportional with an artificial limit (Raffel 2020; SPoT's K)."""
    counted: list[Any] = [min(size, limit) for size in sizes]
    return [count / sum(counted) for count in counted]
