"""Task: examples to train and evaluate on, and the metrics to evaluate with."""

import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .definition import Example
from .metrics import rounded, score
from .text_format import TextFormat


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
    full_majority_label: str | None = None
    """The majority label of all training rows, if only some of them are trained on."""

    @cached_property
    def digests(self) -> dict[str, str]:
        """A hash of the examples of each split."""
        return {"train": _digest(self.train), "validation": _digest(self.validation)}

    @cached_property
    def digest(self) -> str:
        """A hash of all examples."""
        return _digest([self.train, self.validation])

    @property
    def truncated(self) -> "Task":
        """A copy with one example of each split."""
        return dataclasses.replace(
            self, train=self.train[:1], validation=self.validation[:1], test=self.test[:1]
        )

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
        return None if definition is None or self.labels else definition.answer_length

    @property
    def members(self) -> "tuple[Task, ...]":
        """The tasks of a mixture, whose examples follow one another; a single task itself."""
        return (self,)

    @property
    def member_sizes(self) -> tuple[int, ...]:
        """The number of training examples of each member."""
        return tuple(len(task.train) for task in self.members)

    @property
    def mixture_limit(self) -> int | None:
        """The maximum number of examples of one member in an epoch."""
        return None

    @property
    def majority_label(self) -> str:
        """The most common training label; always predicting it is the baseline of every result."""
        if self.full_majority_label:
            return self.full_majority_label
        return Counter(example.target for example in self.train).most_common(1)[0][0]

    def majority(self) -> dict[str, float]:
        """The scores of always predicting the majority label."""
        return self.score([self.majority_label] * len(self.validation))

    def score(
        self, predictions: Sequence[str], examples: Sequence[Example] | None = None
    ) -> dict[str, float]:
        """The metrics of predictions for `examples`, or for the validation set."""
        examples = self.validation if examples is None else examples
        return rounded(score(self.metrics, examples, predictions, self.labels))


def _digest(examples: Any) -> str:
    return hashlib.sha256(json.dumps(examples).encode()).hexdigest()[:32]
