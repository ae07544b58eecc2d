"""Which prompts can start which: checked before anything is trained.

`prompt/start.py` has the last word, when a start reads its sources.
"""

import dataclasses

from ..artifacts.card import PromptCard
from ..config import PromptConfig, RunConfig
from ..library.entry import Entry
from ..prompt.prompt import same_route
from ..tasks import PREFIX_LM
from .strategies import target_name, task_names

SAME_TASK = "it was tuned on the target's own task"


def folded_card(prompt: PromptConfig) -> PromptCard:
    """The card of a prompt that will be tuned with these settings."""
    return dataclasses.replace(PromptCard.describing(prompt), count=prompt.folded_count)


def start_mismatch(source: PromptCard, target: PromptConfig, averaged: bool = False) -> str | None:
    """Why a target's prompt cannot start from a source, or from its average with others.

    None where it can.
    """
    if source.length == 0 and target.length > 0:
        return "it has no prompt vectors, because its run tuned the model or nothing"
    if source.length > 0 and target.length == 0:
        return "it has a prompt, and the target's run has none"
    if averaged and source.count > 1:
        return (
            f"it is a mixture of {source.count} prompts, and mixtures cannot be averaged "
            "(tune sources of one prompt)"
        )
    if averaged and source.length != target.length:
        return (
            f"it has {source.length} tokens and the target {target.length}, "
            "and only prompts of the target's length are averaged "
            f"(give the target {source.length}, or tune sources of {target.length})"
        )
    if source.count not in (1, target.count):
        return f"it is a mixture of {source.count} prompts and cannot start {target.count}"
    if source.count > 1 and not same_route(source.route, target.route):
        return (
            f"it is a mixture routed by {source.route.kind} "
            f"and cannot start one routed by {target.route.kind}"
        )
    return None


def source_mismatch(
    entry: Entry, target: RunConfig, strategy: str, keep_same_task: bool = False
) -> str | None:
    """Why a prompt of the same backbone cannot be a source for the target by this strategy.

    None where it can.
    """
    tasks = task_names(entry.card.task.name)
    if not keep_same_task and not set(tasks).isdisjoint(task_names(target_name(target.task))):
        return SAME_TASK
    if strategy == "mixture":
        named = entry.card.task_settings.get("task") not in (None, PREFIX_LM)
        return None if named else "its task has no name to mix it in by"
    return start_mismatch(entry.card.prompt, target.prompt, averaged=strategy == "average")
