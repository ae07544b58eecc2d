"""Which prompts of a library can be sources for a target, and why the others cannot."""

from collections import Counter
from collections.abc import Sequence

from ..artifacts.run_folder import RunFolder
from ..backbone import Backbone
from ..config import RunConfig
from ..errors import UserError, listing, setting
from ..library.entry import Entry
from ..library.library import Library, named_prompt
from ..tasks import data_folder, has_rows
from .fit import SAME_TASK, source_mismatch
from .record import LeftOut
from .settings import Request
from .strategies import multi_task, target_name, task_names

REASONS = 3
"""Reasons that an error lists: every corrupted prompt has one of its own."""


def usable_sources(request: Request, backbone: Backbone) -> tuple[list[Entry], list[LeftOut]]:
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
    left_out = [LeftOut(name=name, why=why.rstrip(".")) for name, why in reasons.items() if why]
    sources = [entry for entry in entries if reasons[entry.name] is None]
    if not sources:
        hint = f" ({setting('keep_same_task')} keeps prompts of the target's own task)"
        same_task = any(prompt["why"] == SAME_TASK for prompt in left_out)
        raise UserError(
            f"No prompt of {request.library} can be a source for {target_name(target.task)}: "
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


def _summarized(left_out: Sequence[LeftOut]) -> str:
    """How many prompts were left out for which reason, the most frequent reasons first."""
    parts, rest = [], len(left_out)
    for why, count in Counter(prompt["why"] for prompt in left_out).most_common(REASONS):
        names = listing([prompt["name"] for prompt in left_out if prompt["why"] == why], 3)
        reason = why
        if count > 1 and why.startswith("it "):
            reason = f"each {why.removeprefix('it ')}"
        parts.append(f"{count} ({names}), because {reason}")
        rest -= count
    return "; ".join([*parts, *([f"{rest} more for other reasons"] if rest else [])])


def _check_rows(sources: Sequence[Entry], target: RunConfig) -> None:
    """A mixture reads the rows of its tasks; which these are is known after the probe only."""
    folder = data_folder(target.task)
    tasks = [name for entry in sources for name in task_names(entry.card.task.name)]
    missing = next((name for name in dict.fromkeys(tasks) if not has_rows(name, folder)), None)
    if missing is not None:
        where = f"not in {folder}" if folder is not None else "not available from the hub"
        raise UserError(
            f"A mixture may need the rows of {missing}, which are {where}; name a folder with the "
            f"rows of all sources' tasks with {setting('task.data_dir')}, "
            f"or use {setting('strategy', 'best')} or {setting('strategy', 'average')}."
        )


def _backbone_mismatch(entry: Entry, backbone: Backbone) -> str | None:
    """Why a prompt does not work with a backbone; None where it is the backbone's own."""
    if entry.fingerprint == backbone.fingerprint:
        return None
    if entry.card.backbone.name == backbone.name:
        return (
            f"it was tuned on another version of {backbone.name}; "
            "map it with `softprompts prompts recycle`, or tune it again"
        )
    return f"it is of another backbone than {backbone.name}"


def _corruption(entry: Entry) -> str | None:
    """Why a prompt's vectors cannot be read; None where they can."""
    try:
        entry.check_vectors()
        RunFolder(entry.folder).load()
    except UserError as error:
        return str(error)
    return None
