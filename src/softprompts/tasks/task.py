"""Task: examples to train and evaluate on, and the metrics to evaluate with.

A mixture is one task made of several: each has the rate min(n, K) / sum of min(n, K), exactly, in
every epoch (examples-proportional with a limit K: Raffel 2020; SPoT).
"""

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..config import TaskConfig
from ..errors import UserError
from .metrics import rounded, score
from .registry import BENCHMARKS
from .sampling import split_held_out
from .task_definition import Example, content_digest
from .text_format import TextFormat

MEAN = "mean"
"""The metric of a mixture: the mean of its tasks' first metrics."""


@dataclass(frozen=True)
class Task:
    """The examples of a task, how its rows become examples, and its metrics."""

    name: str
    form: TextFormat
    train: list[Example]
    validation: list[Example]
    metrics: tuple[str, ...] = ("accuracy", "macro_f1")
    """The first metric selects the best checkpoint."""
    skipped: int = 0
    """The number of bad rows that were left out."""
    test: list[Example] = field(default_factory=list)
    """What the best prompt is evaluated on at the end, if the splits have a test set."""
    longest_answer: int | None = None
    """An estimate of the tokens of the longest free-text target, if the task does not say."""
    full_majority_label: str | None = None
    """The majority label of all training rows, if only some of them are trained on."""
    mixture_limit: int | None = None
    """The maximum number of examples of one member in an epoch."""

    @cached_property
    def digests(self) -> dict[str, str]:
        return {name: content_digest(getattr(self, name)) for name in ("train", "validation")}

    @cached_property
    def digest(self) -> str:
        return content_digest([self.train, self.validation])

    @property
    def truncated(self) -> "Task":
        """A copy with one example of each split."""
        return dataclasses.replace(
            self, train=self.train[:1], validation=self.validation[:1], test=self.test[:1]
        )

    def held_out(self, fraction: float) -> "Task":
        """A copy that is validated on a part of its training rows, and trained on the others."""
        train, validation = split_held_out(self.train, fraction, 0, bool(self.labels))
        return dataclasses.replace(self, train=train, validation=validation, test=[])

    @property
    def labels(self) -> list[str]:
        return self.form.labels

    @property
    def start_words(self) -> list[str]:
        """The words of a class-label start."""
        definition = self.form.definition
        return self.labels if definition is None else list(definition.start_words) or self.labels

    @property
    def answer_length(self) -> int | None:
        """The maximum number of tokens of a free-text answer; None if there are labels."""
        definition = self.form.definition
        if self.labels:
            return None
        return self.longest_answer if definition is None else definition.answer_length

    @property
    def members(self) -> "tuple[Task, ...]":
        """The tasks of a mixture, whose examples follow one another; a single task itself."""
        return (self,)

    @property
    def member_sizes(self) -> tuple[int, ...]:
        """The number of training examples of each member."""
        return tuple(len(task.train) for task in self.members)

    @property
    def majority_label(self) -> str:
        """The most common training label; always predicting it is the baseline of every result."""
        counts = Counter(example.target for example in self.train)
        return self.full_majority_label or counts.most_common(1)[0][0]

    def majority(self) -> dict[str, float]:
        """The scores of always predicting the majority label of each member."""
        labels = [[task.majority_label] * len(task.validation) for task in self.members]
        return self.score(list(itertools.chain.from_iterable(labels)))

    def score(self, predictions: Sequence[str]) -> dict[str, float]:
        """The metrics of predictions for the validation set."""
        return rounded(score(self.metrics, self.validation, predictions, self.labels))


@dataclass(frozen=True)
class Mixture(Task):
    """The examples of several tasks, one task after another; each task has its own metrics."""

    members: tuple[Task, ...] = ()

    @property
    def truncated(self) -> Task:
        return dataclasses.replace(self, **_joined([task.truncated for task in self.members]))

    def held_out(self, fraction: float) -> Task:
        members = [task.held_out(fraction) for task in self.members]
        return dataclasses.replace(self, **_joined(members))

    @property
    def answer_length(self) -> int | None:
        return max((task.answer_length or 0 for task in self.members), default=0) or None

    def score(self, predictions: Sequence[str]) -> dict[str, float]:
        """The metrics of each task as TASK:METRIC, and the mean of their first metrics."""
        scores: dict[str, float] = {}
        firsts, remaining = [], iter(predictions)
        for task in self.members:
            task_scores = task.score(list(itertools.islice(remaining, len(task.validation))))
            firsts.append(task_scores[task.metrics[0]])
            scores |= {f"{task.name}:{name}": value for name, value in task_scores.items()}
        return {MEAN: round(math.fsum(firsts) / len(firsts), 4), **scores}


def load_mixture(config: TaskConfig, load: Callable[[TaskConfig], Task]) -> Mixture:
    """The mixture `a+b+c` of tasks or benchmarks, each task loaded by `load`."""
    assert config.task is not None
    names = mixture_names(config.task)
    if len(set(names)) < len(names) or not all(names):
        raise UserError(
            f"The mixture {config.task} names a task twice, or an empty one; "
            "name each task once, joined by +."
        )
    tasks = [load(dataclasses.replace(config, task=name)) for name in names]
    labelled = all(task.labels for task in tasks)
    words = {word: word for task in tasks for word in task.labels if labelled}
    return Mixture(
        config.task,
        TextFormat("{text}", "label", words, sentinel=config.sentinel),
        **_joined(tasks),
        metrics=(MEAN, *(f"{task.name}:{name}" for task in tasks for name in task.metrics)),
        mixture_limit=config.mixture_limit,
    )


def _joined(tasks: Sequence[Task]) -> dict[str, Any]:
    splits = {
        split: [example for task in tasks for example in getattr(task, split)]
        for split in ("train", "validation", "test")
    }
    return {"members": tuple(tasks), **splits}


def mixture_names(task: str) -> list[str]:
    """The tasks of `a+b+c`, with benchmarks expanded."""
    parts = [part.strip() for part in task.split("+")]
    return [name for part in parts for name in BENCHMARKS.get(part, (part,))]
