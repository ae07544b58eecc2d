"""Mixtures: one prompt for several tasks.

Each task has the rate min(n, K) / sum of min(n, K), exactly, in every epoch.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import TaskConfig
from ..errors import UserError
from .definition import Example
from .metrics import rounded, score
from .registry import BENCHMARKS
from .task import Task
from .text_format import TextFormat

MEAN = "mean"
"""The metric of a mixture: the mean of its tasks' first metrics."""


@dataclass(frozen=True)
class Mixture(Task):
    """The examples of several tasks, one task after another; each task has its own metrics."""

    tasks: tuple[Task, ...] = ()
    limit: int = 2**19

    @property
    def members(self) -> tuple[Task, ...]:
        return self.tasks

    @property
    def mixture_limit(self) -> int | None:
        return self.limit

    @property
    def truncated(self) -> Task:
        tasks = tuple(task.truncated for task in self.tasks)
        return dataclasses.replace(self, tasks=tasks, **_concatenated(tasks))

    @property
    def answer_length(self) -> int | None:
        return max((task.answer_length or 0 for task in self.tasks), default=0) or None

    def score(
        self, predictions: Sequence[str], examples: Sequence[Example] | None = None
    ) -> dict[str, float]:
        """The metrics of each task as TASK:METRIC, and the mean of their first metrics."""
        scores: dict[str, float] = {}
        firsts, begin = [], 0
        for task in self.tasks:
            examples_of_task = task.validation if examples is None else task.test
            end = begin + len(examples_of_task)
            task_scores = rounded(
                score(task.metrics, examples_of_task, predictions[begin:end], task.labels)
            )
            begin = end
            firsts.append(task_scores[task.metrics[0]])
            scores |= {f"{task.name}:{name}": value for name, value in task_scores.items()}
        return {MEAN: round(sum(firsts) / len(firsts), 4), **scores}

    def majority(self) -> dict[str, float]:
        """The scores of always predicting the majority label of each task."""
        return self.score([task.majority_label for task in self.tasks for _ in task.validation])


def load_mixture(config: TaskConfig, load: Callable[[TaskConfig], Task]) -> Mixture:
    """The mixture `a+b+c` of tasks or benchmarks, each task loaded by `load`."""
    assert config.task is not None
    names = mixture_names(config.task)
    if len(set(names)) < len(names) or not all(names):
        raise UserError(
            f"The mixture {config.task} names a task twice, or an empty one; "
            "name each task once, joined by +."
        )
    tasks = tuple(load(dataclasses.replace(config, task=name)) for name in names)
    words = {word: word for task in tasks for word in task.labels}
    if not all(task.labels for task in tasks):
        words = {}
    metrics = (MEAN, *(f"{task.name}:{metric}" for task in tasks for metric in task.metrics))
    return Mixture(
        config.task,
        TextFormat("{text}", "label", words, sentinel=config.sentinel),
        **_concatenated(tasks),
        metrics=metrics,
        tasks=tasks,
        limit=config.mixture_limit,
    )


def _concatenated(tasks: Sequence[Task]) -> dict[str, Any]:
    """The examples of all tasks, split by split."""
    return {
        split: [example for task in tasks for example in getattr(task, split)]
        for split in ("train", "validation", "test")
    }


def mixture_names(task: str) -> list[str]:
    """The tasks of `a+b+c`, with benchmarks expanded."""
    parts = [part.strip() for part in task.split("+")]
    return [name for part in parts for name in BENCHMARKS.get(part, (part,))]


def mixing_rates(sizes: Sequence[int], limit: int) -> list[float]:
    """The rate of each task: examples-proportional with a limit K (Raffel 2020; SPoT)."""
    counts = [min(size, limit) for size in sizes]
    return [count / sum(counts) for count in counts]
