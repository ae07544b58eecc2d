"""Examples drawn by seed: some to hold back, so many of each class, so many at most. Their order is kept."""

import random
from collections.abc import Sequence

from ..errors import UserError
from .definition import Example


def sample(examples: Sequence[Example], count: int, seed: int) -> list[Example]:
    """At most `count` examples, drawn by seed; order kept."""
    if len(examples) <= count:
        return list(examples)
    kept = sorted(random.Random(seed).sample(range(len(examples)), count))
    return [examples[index] for index in kept]


def held_out(
    examples: Sequence[Example], share: float, seed: int, classes: bool
) -> tuple[list[Example], list[Example]]:
    """`share` of the examples for validation, of every class where there are classes; order kept."""
    if classes:
        return stratified_split(examples, share, seed)
    held = set(
        random.Random(seed).sample(range(len(examples)), max(1, round(share * len(examples))))
    )
    return [e for i, e in enumerate(examples) if i not in held], [
        e for i, e in enumerate(examples) if i in held
    ]


def stratified_split(
    examples: Sequence[Example], share: float, seed: int
) -> tuple[list[Example], list[Example]]:
    """`share` of every class for validation (at least one where a class has two), the rest for training; order kept."""
    rng = random.Random(seed)
    held: set[int] = set()
    for indices in by_class(examples).values():
        count = max(1, round(share * len(indices))) if len(indices) > 1 else 0
        held.update(rng.sample(indices, count))
    if not held:
        raise UserError(
            "There are too few rows to hold some back for validation; give a file with --validation."
        )
    return [e for i, e in enumerate(examples) if i not in held], [
        e for i, e in enumerate(examples) if i in held
    ]


def few_shot(examples: Sequence[Example], shots: int, seed: int) -> list[Example]:
    """`shots` examples of every class, drawn by seed; order kept."""
    if shots < 1:
        raise UserError(f"--shots is {shots}; it must be at least 1.")
    rng = random.Random(seed)
    kept: set[int] = set()
    for label, indices in by_class(examples).items():
        if len(indices) < shots:
            raise UserError(
                f"The class {label!r} has {len(indices)} training rows, fewer than the {shots} shots asked for; lower --shots."
            )
        kept.update(rng.sample(indices, shots))
    return [e for i, e in enumerate(examples) if i in kept]


def by_class(examples: Sequence[Example]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for index, example in enumerate(examples):
        places.setdefault(example.target, []).append(index)
    return dict(sorted(places.items()))
