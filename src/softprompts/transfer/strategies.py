"""The ways to use prompts that were found for a target task (Vu 2022, SPoT §3.2): from sources and a run to the runs to tune next.

    best of top-k           k runs, each started from one source; the best on validation is kept
    top-k weighted average  one run, started from the mean of k sources weighted by their similarities
    top-k mixture           a multi-task run on the target's and the k sources' tasks, whose final prompt starts the target's run

Nothing here reads or writes a file.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config.choice import Choice
from ..errors import UserError
from ..tasks import TaskConfig
from ..tasks.registry import BENCHMARKS, definition
from ..tasks.starter import STARTERS
from ..tasks.text import PREFIX_LM
from ..tuning import RunConfig

if TYPE_CHECKING:
    from ..library.library import Entry, Found

AT_THE_END = 2**31 - 1
"""Steps between evaluations of a run that nothing is chosen by but its last prompt."""


def best_of(found: "Sequence[Found]", k: int, target: RunConfig) -> list[RunConfig]:
    """The target's run started from each of the k nearest, in their order."""
    return [start_from(target, [one.entry.folder]) for one in found[:k]]


def weighted(found: "Sequence[Found]", k: int, target: RunConfig) -> RunConfig:
    """The target's run started from the k nearest prompts' mean, weighted by `shares` of their similarities."""
    return start_from(
        target,
        [one.entry.folder for one in found[:k]],
        shares([one.similarity for one in found[:k]]),
    )


def mixture(found: "Sequence[Found]", k: int, target: RunConfig) -> RunConfig:
    """The multi-task run on the target's task and those of the k nearest, each task once."""
    return multi_task(
        target, [name for one in found[:k] for name in task_names(one.entry.card["task"]["name"])]
    )


def multi_task(target: RunConfig, tasks: Sequence[str]) -> RunConfig:
    """The target's run with its task among others, examples-proportional; its last prompt is what counts (Vu 2022 §3.2)."""
    if target.task.task is None or target.task.task == PREFIX_LM:
        raise UserError(
            "A mixture joins tasks by their names, and the target's own data has none; take --strategy best or average."
        )
    names = dict.fromkeys([*task_names(target.task.task), *tasks])
    task = dataclasses.replace(target.task, task="+".join(names), metric=None)
    return dataclasses.replace(
        target,
        task=task,
        tuning=dataclasses.replace(target.tuning, evaluate_every=AT_THE_END, patience=None),
    )


def start_from(
    target: RunConfig, sources: Sequence[str | Path], weights: Sequence[float] | None = None
) -> RunConfig:
    """The target's run, all its settings kept but where its prompt starts."""
    options: dict[str, Any] = {"sources": [str(source) for source in sources]}
    if weights is not None:
        options["weights"] = list(weights)
    return dataclasses.replace(
        target, prompt=dataclasses.replace(target.prompt, start=Choice("prompt", options))
    )


def shares(similarities: Sequence[float]) -> list[float]:
    """alpha_r = sim_r / sum of sim (Vu 2022 §3.2).

    The paper does not say what a negative similarity weighs. Here it weighs nothing, and where none is positive all weigh the same.
    """
    positive = [max(0.0, similarity) for similarity in similarities]
    total = sum(positive)
    return (
        [value / total for value in positive] if total > 0 else [1 / len(positive)] * len(positive)
    )


def probe(target: RunConfig, steps: int) -> RunConfig:
    """The first steps of tuning the target from its usual start: a task embedding to search by. Of all its steps, the run itself."""
    tuning = target.tuning
    if tuning.epochs is None and steps == tuning.steps <= tuning.embed_at:
        return target
    short = dataclasses.replace(
        tuning, steps=steps, epochs=None, embed_at=steps, evaluate_every=AT_THE_END, patience=None
    )
    return dataclasses.replace(target, tuning=short)


def probe_steps(taken: Iterable[int | None], target: RunConfig) -> int:
    """The step that most sources' embeddings were `taken` at, but no more than the target's own: only like steps are like embeddings."""
    tuning, counts = target.tuning, Counter(step for step in taken if step)
    steps = max(counts, key=lambda step: (counts[step], step)) if counts else tuning.embed_at
    return steps if tuning.epochs is not None else min(steps, tuning.steps)


def unfit(
    entry: "Entry", target: RunConfig, strategy: str, keep_same_task: bool = False
) -> str | None:
    """Why a prompt of the same backbone cannot be a source for the target by this strategy; None where it can."""
    name = target_name(target.task)
    if not keep_same_task and set(task_names(name)) & set(task_names(entry.card["task"]["name"])):
        return "it was tuned on the target's own task (--keep-same-task keeps it)"
    if strategy == "mixture":
        named = entry.told("config", "task", "task")
        return (
            "its task is no named one, so that it cannot be mixed in"
            if named in (None, PREFIX_LM)
            else None
        )
    return ill_shaped(entry.card["prompt"], target, strategy)


def ill_shaped(form: Mapping[str, Any], target: RunConfig, strategy: str) -> str | None:
    """What `prompt.start.prompt` would refuse, told before anything is trained."""
    ours, held, route = (
        target.prompt,
        int(form.get("count", 1)),
        Choice.of(form.get("route", "single")),
    )
    if strategy == "average" and held > 1:
        return f"it is a mixture of {held} prompts, and mixtures cannot be averaged (tune sources with --preset prompt-tuning)"
    if strategy == "average" and form["length"] != ours.length:
        lengths = f"it has {form['length']} tokens and the target {ours.length}, and only prompts of the target's length are averaged"
        return f"{lengths} (set --prompt.length {form['length']}, or tune sources of {ours.length})"
    if held not in (1, ours.count):
        return f"it is a mixture of {held} prompts and cannot start {ours.count}"
    if held > 1 and (route.kind, route.options.get("k")) != (
        ours.route.kind,
        ours.route.options.get("k"),
    ):
        return f"it is a mixture routed by {route.kind} and cannot start one routed by {ours.route.kind}"
    return None


def target_name(task: TaskConfig) -> str:
    """A task's name as its prompts' cards tell it."""
    if task.task is not None:
        return task.task
    return f"{(task.train or '').rstrip('/').rpartition('/')[2]}:{task.label}"


def task_names(name: str) -> list[str]:
    """The tasks of a mixture's name, benchmarks spelled out, each by its full name; of one task, its own."""
    return [
        _full(task)
        for part in name.split("+")
        for task in BENCHMARKS.get(part.strip(), (part.strip(),))
    ]


def _full(name: str) -> str:
    try:
        return name if name in STARTERS else definition(name).name
    except UserError:  # a person's own data
        return name
