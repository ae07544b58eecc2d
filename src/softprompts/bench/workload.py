"""Batches to train on: synthetic texts of varied length, or SST-2, not sorted by length."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..backbone import Backbone
from ..config import TaskConfig
from ..tasks import load_task
from .settings import StepSettings

MAX_TEXT = 256
"""The most tokens of a text."""

Batch = list[list[int]]
"""Rows of ids."""


@dataclass(frozen=True)
class RunBatches:
    """The texts and targets of one run's steps."""

    inputs: list[Batch]
    targets: list[Batch]


def draw_batches(
    settings: StepSettings, backbone: Backbone, runs: int, max_text: int = MAX_TEXT
) -> list[RunBatches]:
    """Different batches for each run; texts have at most `max_text` tokens."""
    rows, longest = (settings.warmup + settings.steps) * settings.batch, min(max_text, MAX_TEXT)
    rngs = [np.random.default_rng([settings.seed, run]) for run in range(runs)]
    if settings.workload == "synthetic":
        return [_synthetic(backbone, rows, settings.batch, rng, longest) for rng in rngs]
    task = load_task(TaskConfig(task="glue/sst2", data_dir=settings.data_dir or None))
    batches = []
    for rng in rngs:
        chosen = rng.choice(len(task.train), rows, replace=len(task.train) < rows)
        examples = [task.train[int(row)] for row in chosen]
        inputs = backbone.tokenise([example.input for example in examples], longest)
        targets = backbone.tokenise_targets([example.target for example in examples])
        batches.append(RunBatches(_split(inputs, settings.batch), _split(targets, settings.batch)))
    return batches


def _synthetic(
    backbone: Backbone, rows: int, batch: int, rng: np.random.Generator, longest: int
) -> RunBatches:
    """Random ids; lengths log-normal with a mean of about 115, clipped; targets of two tokens.

    For an encoder-only model, each text ends in a mask, and targets have one.
    """
    lengths = np.clip(rng.lognormal(4.6, 0.55, rows), 8, longest).astype(int)
    inputs = [rng.integers(100, backbone.vocab_size, length).tolist() for length in lengths]
    targets = [[int(first), 1] for first in rng.integers(100, backbone.vocab_size, rows)]
    if not backbone.generates:
        inputs = [[*row[:-1], backbone.tokenizer.mask_token_id] for row in inputs]
        targets = [target[:1] for target in targets]
    return RunBatches(_split(inputs, batch), _split(targets, batch))


def _split(rows: Sequence[list[int]], batch: int) -> list[Batch]:
    return [list(rows[start : start + batch]) for start in range(0, len(rows), batch)]


def padding_ratio(runs: Sequence[RunBatches], prompt: int) -> float:
    """Tokens of batches padded to their longest text over tokens without pads, with prompts."""
    batches = [[len(text) + prompt for text in batch] for run in runs for batch in run.inputs]
    return sum(max(batch) * len(batch) for batch in batches) / sum(map(sum, batches))
