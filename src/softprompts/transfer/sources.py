"""Which prompts of a library can be sources for a target, and why the others cannot: told before anything is trained."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..artifacts.prompt_file import CARD, check_backbone, load_prompt
from ..backbone import Backbone
from ..errors import UserError, listing
from ..library.library import Entry, Library, named_prompt
from ..tasks.task import data_folder, has_rows
from ..tuning import RunConfig
from .strategies import multi_task, target_name, task_names, unfit

if TYPE_CHECKING:
    from .transfer import Request

REASONS = 3
"""Reasons that are told where nothing is left: damaged prompts have one each."""


def possible(request: "Request", backbone: Backbone) -> tuple[list[Entry], list[dict[str, str]]]:
    """The prompts that can be sources, and why the others cannot."""
    library, target = Library(request.library), request.target
    if request.strategy == "named":
        entry = named_prompt(request.source or "", request.library)
        entry.check_vectors()
        check_backbone(entry.folder, entry.card, backbone)
        why = unfit(entry, target, request.strategy, keep_same_task=True)
        if why is not None:
            raise UserError(
                f"{entry.name} cannot start this prompt: {why}; take another source, or set --prompt.count and --prompt.route."
            )
        return [entry], []
    if request.strategy == "mixture":
        multi_task(target, [])  # where it cannot be, that is told before a probe is trained
    everyone = library.there().entries()
    if not everyone:
        raise UserError(
            f"The library {request.library} holds no prompt yet; add some with softprompts prompts import."
        )
    name = target_name(target.task)
    unread = library.unread(backbone.fingerprint)
    whys = {
        entry.name: _foreign(entry, backbone)
        or unfit(entry, target, request.strategy, request.keep_same_task)
        or unread.get(entry.name if request.ranks else "")
        or (_broken(entry) if request.strategy == "all" else None)
        for entry in everyone
    }
    damaged = {
        name: why
        for name, why in unread.items()
        if name not in whys and (request.library / name / CARD).exists()
    }
    left_out = [
        {"name": name, "why": why.rstrip(".")}
        for name, why in {**whys, **damaged}.items()
        if why is not None
    ]
    fit = [entry for entry in everyone if whys[entry.name] is None]
    if not fit:
        raise UserError(
            f"No prompt of {request.library} can be a source for {name}: {_counted(left_out)}."
        )
    if request.strategy == "mixture":
        _check_rows(fit, target)
    return fit, left_out


def _counted(left_out: Sequence[dict[str, str]]) -> str:
    """How many prompts were left out for which reason, the commonest first."""
    told, rest = [], len(left_out)
    for why, many in Counter(left["why"] for left in left_out).most_common(REASONS):
        names = listing([left["name"] for left in left_out if left["why"] == why], 3)
        each = f"each {why.removeprefix('it ')}" if many > 1 and why.startswith("it ") else why
        told.append(f"{many} ({names}), because {each}")
        rest -= many
    return "; ".join([*told, *([f"{rest} more for other reasons"] if rest else [])])


def _check_rows(sources: Sequence[Entry], target: RunConfig) -> None:
    """A mixture reads the rows of the tasks it takes in; which those are, only the probe will tell."""
    home = data_folder(target.task)
    names = dict.fromkeys(
        name for entry in sources for name in task_names(entry.card["task"]["name"])
    )
    lacking = next((name for name in names if not has_rows(name, home)), None)
    if lacking is not None:
        where = f"are not in {home}" if home is not None else "the hub does not give here"
        raise UserError(
            f"A mixture may need the rows of {lacking}, which {where}; name a folder that holds those of all sources' tasks "
            "with --data-dir, or take --strategy best or average."
        )


def _foreign(entry: Entry, backbone: Backbone) -> str | None:
    """Why a prompt means nothing to a backbone; None where it is the backbone's own."""
    if entry.fingerprint == backbone.fingerprint:
        return None
    if entry.card["backbone"]["name"] == backbone.name:
        return f"it was tuned on another version of {backbone.name}; map it with softprompts prompts recycle --from-model, or tune it anew"
    return f"it is of another backbone than {backbone.name}"


def _broken(entry: Entry) -> str | None:
    """Why a prompt's vectors cannot be read; None where they can."""
    try:
        entry.check_vectors()
        load_prompt(entry.folder)
    except UserError as error:
        return str(error).rstrip(".")
    return None
