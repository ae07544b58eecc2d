"""Ways to use the prompts most similar to a target's (Vu 2022, SPoT §3.2), as runs to tune next.

    best of top-k           k runs, each started from one source; the best on validation is kept
    top-k weighted average  one run, started from the mean of k sources weighted by similarity
    top-k mixture           a multi-task run on the tasks of the target and the k sources, whose
                            final prompt starts the target's run

Nothing here reads or writes a file.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..config import Choice, RunConfig
from ..errors import UserError, setting
from ..tasks import PREFIX_LM, definition, mixture_names

NEVER = 2**31 - 1
"""Steps between evaluations of a run of which only the last prompt counts."""


def multi_task(target: RunConfig, tasks: Sequence[str]) -> RunConfig:
    """The target's run with its task among others, each once, examples-proportional.

    A name in `tasks` may be that of a mixture. The last prompt is what counts (Vu 2022 §3.2).
    """
    if target.task.task is None or target.task.task == PREFIX_LM:
        raise UserError(
            "A mixture joins tasks by their names, and the target's own data has none; "
            f"use {setting('strategy', 'best')} or {setting('strategy', 'average')}."
        )
    names = dict.fromkeys(task for name in (target.task.task, *tasks) for task in task_names(name))
    task = dataclasses.replace(target.task, task="+".join(names), metric=None)
    tuning = dataclasses.replace(target.tuning, evaluate_every=NEVER, patience=None)
    return dataclasses.replace(target, task=task, tuning=tuning)


def start_from(
    target: RunConfig, sources: Sequence[str | Path], weights: Sequence[float] | None = None
) -> RunConfig:
    """The target's run with the same settings, but another start."""
    options: dict[str, Any] = {"sources": [str(source) for source in sources]}
    if weights is not None:
        options["weights"] = list(weights)
    prompt = dataclasses.replace(target.prompt, start=Choice("prompt", options))
    return dataclasses.replace(target, prompt=prompt)


def shares(similarities: Sequence[float]) -> list[float]:
    """alpha_r = sim_r / sum of sim (Vu 2022 §3.2).

    The paper does not define the weight of a negative similarity. Here it is 0, and where no
    similarity is positive all weights are equal.
    """
    positive = [max(0.0, similarity) for similarity in similarities]
    if not any(positive):
        return [1 / len(positive)] * len(positive)
    return [value / sum(positive) for value in positive]


def probe(target: RunConfig, steps: int) -> RunConfig:
    """The first steps of the target's run from its usual start: a task embedding to search by.

    With all its steps, the run itself.
    """
    tuning = target.tuning
    if tuning.epochs is None and steps == tuning.steps <= tuning.embed_at:
        return target
    short = dataclasses.replace(
        tuning, steps=steps, epochs=None, embed_at=steps, evaluate_every=NEVER, patience=None
    )
    return dataclasses.replace(target, tuning=short)


def probe_steps(embedded_at: Iterable[int | None], target: RunConfig) -> int:
    """The step at which most sources were embedded, but no more than the target's own steps.

    Embeddings compare best at the same step.
    """
    tuning, counts = target.tuning, Counter(step for step in embedded_at if step)
    steps = max(counts, key=lambda step: (counts[step], step)) if counts else tuning.embed_at
    return steps if tuning.epochs is not None else min(steps, tuning.steps)


def task_names(name: str) -> list[str]:
    """The tasks of a mixture or a benchmark, each by its full name; of one task, its own."""
    return [_full_name(task) for task in mixture_names(name)]


def _full_name(name: str) -> str:
    try:
        return definition(name).name
    except UserError:  # a user's own data
        return name
