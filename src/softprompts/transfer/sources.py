"""Which prompts can start a target's, and why others cannot: checked before anything is trained.

`prompt/start.py` makes the final check, when a start reads its sources.
"""

import dataclasses
import os
from collections import Counter
from collections.abc import Mapping, Sequence

from ..artifacts.card import Card, PromptCard
from ..artifacts.run_folder import RunFolder
from ..backbone import Backbone
from ..config import PromptConfig, RunConfig, TaskConfig
from ..errors import UserError, listing, setting
from ..library.library import Entry, Library, named_prompt
from ..prompt.prompt import same_route
from ..tasks import PREFIX_LM, data_folder, has_rows
from .settings import Request
from .strategies import multi_task, task_names

SAME_TASK = "it was tuned on the target's own task"
REASONS = 3
"""The most reasons that an error lists: every corrupted prompt has a different one."""


def folded_card(prompt: PromptConfig) -> PromptCard:
    """The card of a prompt that will be tuned with these settings."""
    return dataclasses.replace(PromptCard.describing(prompt), count=prompt.folded_count)


def start_mismatch(source: PromptCard, target: PromptConfig, averaged: bool = False) -> str | None:
    """Why a target's prompt cannot start from a source, or from its average with others.

    None if it can.
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
        one = "a single prompt" if target.count == 1 else f"one of {target.count}"
        return f"it is a mixture of {source.count} prompts and cannot start {one}"
    if source.count > 1 and not same_route(source.route, target.route):
        return (
            f"it is a mixture routed by {source.route.kind} "
            f"and cannot start one routed by {target.route.kind}"
        )
    return None


def is_same_task(card: Card, target: TaskConfig) -> bool:
    """Whether a prompt was tuned on the target's task; your own data is the same if its file and
    label column are, whatever its name."""
    data = card.task_settings
    if target.task is None and target.train is not None and isinstance(data.get("train"), str):
        same_file = os.path.abspath(data["train"]) == os.path.abspath(target.train)
        return same_file and data.get("label") == target.label
    return not set(task_names(card.task.name)).isdisjoint(task_names(target.title))


def source_mismatch(
    entry: Entry, target: RunConfig, strategy: str, keep_same_task: bool = False
) -> str | None:
    """Why a prompt of the same backbone cannot be a source for the target by this strategy.

    None if it can.
    """
    if not keep_same_task and is_same_task(entry.card, target.task):
        return SAME_TASK
    if strategy == "mixture":
        named = entry.card.task_settings.get("task") not in (None, PREFIX_LM)
        return None if named else "its task has no name to mix it in by"
    return start_mismatch(entry.card.prompt, target.prompt, averaged=strategy == "average")


def usable_sources(
    request: Request, backbone: Backbone
) -> tuple[list[Entry], list[dict[str, str]]]:
    """The prompts that can be sources, and those that cannot."""
    target, strategy = request.target, request.strategy
    if strategy == "named":
        return [_named_source(request, backbone)], []
    if strategy == "mixture":
        multi_task(target, [])  # raises where the target cannot be mixed, before a probe is trained
    library = Library(request.library).existing()
    entries = library.entries()
    if not entries:
        raise UserError(
            f"The library {request.library} is empty; "
            "add prompts with `softprompts prompts import`."
        )
    unusable = library.unusable(backbone.fingerprint)
    reasons: dict[str, str | None] = {
        entry.name: _backbone_mismatch(entry, backbone)
        or source_mismatch(entry, target, strategy, request.keep_same_task)
        or (unusable.get(entry.name) if request.ranks else None)
        or (_corruption(entry) if strategy == "all" else None)
        for entry in entries
    }
    for name, error in unusable.items():
        if name not in reasons and RunFolder(request.library / name).has_prompt:
            reasons[name] = error
    left_out = [{"name": name, "why": why.rstrip(".")} for name, why in reasons.items() if why]
    sources = [entry for entry in entries if reasons[entry.name] is None]
    if not sources:
        hint = f" ({setting('keep_same_task')} keeps prompts of the target's own task)"
        same_task = any(prompt["why"] == SAME_TASK for prompt in left_out)
        raise UserError(
            f"No prompt of {request.library} can be a source for {target.task.title}: "
            f"{_summarized(left_out)}{hint if same_task else ''}."
        )
    if strategy == "mixture":
        _check_rows(sources, target)
    return sources, left_out


def _named_source(request: Request, backbone: Backbone) -> Entry:
    entry = named_prompt(request.source or "", request.library)
    entry.check_vectors()
    entry.card.check_backbone(backbone, entry.folder)
    mismatch = source_mismatch(entry, request.target, request.strategy, keep_same_task=True)
    if mismatch is not None:
        raise UserError(
            f"{entry.name} cannot start this prompt: {mismatch}; choose another source, "
            f"or set {setting('prompt.count')} and {setting('prompt.route')}."
        )
    return entry


def _summarized(left_out: Sequence[Mapping[str, str]]) -> str:
    """How many prompts were left out for which reason, the most frequent reasons first."""
    parts, rest = [], len(left_out)
    for why, count in Counter(prompt["why"] for prompt in left_out).most_common(REASONS):
        names = listing([prompt["name"] for prompt in left_out if prompt["why"] == why], 3)
        reason = f"each {why.removeprefix('it ')}" if count > 1 and why.startswith("it ") else why
        parts.append(f"{count} ({names}), because {reason}")
        rest -= count
    return "; ".join([*parts, *([f"{rest} more for other reasons"] if rest else [])])


def _check_rows(sources: Sequence[Entry], target: RunConfig) -> None:
    """A mixture reads the rows of its tasks; which these are is known after the probe only."""
    folder = data_folder(target.task)
    tasks = [name for entry in sources for name in task_names(entry.card.task.name)]
    missing = next((name for name in dict.fromkeys(tasks) if not has_rows(name, folder)), None)
    if missing is not None:
        where = f"not in {folder}" if folder is not None else "not available from the Hub"
        raise UserError(
            f"A mixture may need the rows of {missing}, which are {where}; name a folder with the "
            f"rows of all sources' tasks with {setting('task.data_dir')}, "
            f"or use {setting('strategy', 'best')} or {setting('strategy', 'average')}."
        )


def _backbone_mismatch(entry: Entry, backbone: Backbone) -> str | None:
    """Why a prompt does not work with a backbone; None if it was tuned on it."""
    if entry.fingerprint == backbone.fingerprint:
        return None
    if entry.card.backbone.name == backbone.name:
        return (
            f"it was tuned on another version of {backbone.name}; "
            "map it with `softprompts prompts recycle`, or tune it again"
        )
    return f"it was tuned on a different backbone, not {backbone.name}"


def _corruption(entry: Entry) -> str | None:
    try:
        entry.check_vectors()
        RunFolder(entry.folder).load()
    except UserError as error:
        return str(error)
    return None
