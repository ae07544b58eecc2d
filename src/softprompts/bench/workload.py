"""Rows to learn from: synthetic ones of uneven lengths, or SST-2's, in random batches as data comes, not sorted by length."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..backbone import Backbone
from ..errors import UserError
from ..tasks import TaskConfig, load_task

LONGEST = 256
"""The most tokens of a text."""


@dataclass(frozen=True)
class Rows:
    """What one run learns from: the ids of each step's texts and targets."""

    inputs: list[list[list[int]]]
    targets: list[list[list[int]]]


def draw(
    workload: str,
    backbone: Backbone,
    runs: int,
    steps: int,
    batch: int,
    seed: int,
    data_dir: str,
    room: int = LONGEST,
) -> list[Rows]:
    """The rows of each run, each its own; texts have at most `room` tokens."""
    if workload == "synthetic":
        return [
            _synthetic(
                backbone, steps, batch, np.random.default_rng([seed, run]), min(room, LONGEST)
            )
            for run in range(runs)
        ]
    if workload != "sst2":
        raise UserError(f"There is no workload {workload!r}; choose synthetic or sst2.")
    task = load_task(TaskConfig(task="glue/sst2", data_dir=data_dir or None))
    found = []
    for run in range(runs):
        some = np.random.default_rng([seed, run]).choice(
            len(task.train), steps * batch, replace=len(task.train) < steps * batch
        )
        examples = [task.train[int(row)] for row in some]
        texts = backbone.tokenise([example.input for example in examples], min(room, LONGEST))
        found.append(
            Rows(
                _cut(texts, batch),
                _cut(backbone.tokenise_targets([example.target for example in examples]), batch),
            )
        )
    return found


def _synthetic(
    backbone: Backbone, steps: int, batch: int, rng: np.random.Generator, room: int
) -> Rows:
    """Random ids; lengths log-normal with a mean of about 115, cut at `room`; targets of two tokens."""
    lengths = np.clip(rng.lognormal(4.6, 0.55, steps * batch), 8, room).astype(int)
    inputs = [rng.integers(100, backbone.vocabulary, length).tolist() for length in lengths]
    targets = [[int(first), 1] for first in rng.integers(100, backbone.vocabulary, steps * batch)]
    return Rows(_cut(inputs, batch), _cut(targets, batch))


def _cut(rows: Sequence[list[int]], batch: int) -> list[list[list[int]]]:
    return [list(rows[begin : begin + batch]) for begin in range(0, len(rows), batch)]


def waste(rows: Sequence[Rows], prompt: int) -> float:
    """Columns of batches padded to their longest text, over tokens that are there; prompts counted."""
    batches = [[len(text) + prompt for text in batch] for each in rows for batch in each.inputs]
    return sum(max(batch) * len(batch) for batch in batches) / sum(map(sum, batches))
