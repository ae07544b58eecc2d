"""Seeded sampling of examples: held-out splits, few-shot subsets and caps. Order is kept."""

import random
from collections.abc import Collection, Sequence

from ..errors import UserError, setting
from .task_definition import Example


def sample(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    if len(examples) <= count:
        return list(examples)
    sampled = sorted(random.Random(seed).sample(range(len(examples)), count))
    return [examples[index] for index in sampled]


def split_held_out(
    examples: Sequence[Example], fraction: float, seed: int, stratify: bool = True
) -> tuple[list[Example], list[Example]]:
    """Hold out `fraction` of each class, or of all examples: training and validation examples.

    At least one example of a class that has two is held out.
    """
    rng, held_out = random.Random(seed), list[int]()
    classes = indices_by_class(examples).values() if stratify else [range(len(examples))]
    for indices in classes:
        count = max(1, round(fraction * len(indices))) if len(indices) > 1 else 0
        held_out += rng.sample(indices, count)
    if not held_out:
        raise UserError(
            "There are too few rows to hold some out for validation; "
            f"give a file with {setting('task.validation')}."
        )
    return partition(examples, held_out)


def few_shot(examples: Sequence[Example], shots: int, seed: int) -> list[Example]:
    rng, sampled = random.Random(seed), list[int]()
    for label, indices in indices_by_class(examples).items():
        if len(indices) < shots:
            raise UserError(
                f"The class {label!r} has {len(indices)} training rows, "
                f"fewer than the {shots} shots requested; lower {setting('task.shots')}."
            )
        sampled += rng.sample(indices, shots)
    return partition(examples, sampled)[1]


def indices_by_class(examples: Sequence[Example]) -> dict[str, list[int]]:
    """The indices of the examples of each class, sorted by class."""
    indices: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        indices.setdefault(example.target, []).append(index)
    return dict(sorted(indices.items()))


def partition(
    examples: Sequence[Example], indices: Collection[int]
) -> tuple[list[Example], list[Example]]:
    """The examples that are not at `indices`, and those that are."""
    chosen = set(indices)
    rest = [example for index, example in enumerate(examples) if index not in chosen]
    return rest, [example for index, example in enumerate(examples) if index in chosen]
