"""The command `softprompts prompts`: list, show and search a library; import and export prompts."""

import argparse
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from ..errors import counted
from ..library import Similarity, check_exists
from . import export_prompt, import_prompts, recycle
from .command import (
    LIBRARY_PROMPT,
    action,
    add_library,
    argument,
    check_library_prompt,
    run_action,
    whole_number,
)
from .output import aligned, format_interval, print_result

if TYPE_CHECKING:
    from ..artifacts.card import Card
    from ..library.library import Entry, Library


@action(
    "prompts list",
    """softprompts prompts list
  softprompts prompts list --task 'helpdesk/*' --backbone t5-tiny --json""",
    add_library,
    argument(
        "--task",
        metavar="NAME",
        default="*",
        help="only prompts of this task; * matches anything",
    ),
    argument(
        "--backbone",
        metavar="NAME",
        default="*",
        help="only prompts of this backbone, by name or fingerprint",
    ),
)
def list_prompts(options: argparse.Namespace) -> int:
    """List the prompts of a library, or those of a task or backbone."""
    check_exists(options.library)

    from ..library.library import Library

    entries = [
        entry
        for entry in Library(options.library).existing().entries()
        if fnmatchcase(entry.card.task.name, options.task)
        and any(
            fnmatchcase(name, options.backbone)
            for name in (entry.card.backbone.name, entry.fingerprint)
        )
    ]
    rows = [("name", "task", "score", "backbone", "method", "prompt", "embedded at")]
    for entry in entries:
        card = entry.card
        what = (entry.name, card.task.name, _score(entry), card.backbone.name)
        rows.append((*what, str(card.method), _size(entry), _step(entry)))
    filtered = (options.task, options.backbone) != ("*", "*")
    none = f"The library {options.library} holds no prompt"
    none += " of that task and backbone." if filtered else "."
    result = {"library": str(options.library), "prompts": [_record(entry) for entry in entries]}
    return print_result(options, result, *(aligned(rows) if entries else [none]))


@action(
    "prompts show",
    """softprompts prompts show intent
  softprompts prompts show runs/intent --json""",
    add_library,
    LIBRARY_PROMPT,
)
def show_prompt(options: argparse.Namespace) -> int:
    """Show a prompt's card: task, backbone, scores, how it was tuned, what it started from."""
    check_library_prompt(options.prompt, options.library)

    from ..library.library import named_prompt

    entry = named_prompt(options.prompt, options.library)
    card = entry.card
    lineage = {
        "started_from": card.sources,
        "weights": card.source_weights,
        "recycled_from": card.lineage and card.lineage.recycled_from,
    }
    result = {"name": entry.name, "folder": str(entry.folder), "lineage": lineage}
    return print_result(options, {**result, "card": card.plain()}, *aligned(_describe(entry)))


def _describe(entry: "Entry") -> list[tuple[str, str]]:
    card, data, steps = entry.card, entry.card.task_settings, entry.card.steps
    majority = {name: f" (majority class {value:.1f})" for name, value in card.majority.items()}
    return [
        ("name", entry.name),
        ("folder", str(entry.folder)),
        ("task", card.task.name),
        *(("data", str(data[name])) for name in ("train", "validation") if data.get(name)),
        ("backbone", f"{card.backbone.name}, fingerprint {entry.fingerprint}"),
        ("method", str(card.method) + ("" if card.seed is None else f", seed {card.seed}")),
        ("prompt", f"{_size(entry)} vectors"),
        ("started from", _origin(card)),
        ("embedded at", _step(entry)),
        *([] if steps is None else [("steps", f"{steps}, best at {card.best_step}")]),
        *(
            (name, f"{value:.1f}{_doubt(card, 'validation', name)}{majority.get(name, '')}")
            for name, value in card.metrics.items()
        ),
        *(
            (f"test {name}", f"{value:.1f}{_doubt(card, 'test', name)}")
            for name, value in (card.test or {}).items()
        ),
        *([("stopped", card.stopped)] if card.stopped else []),
    ]


def _origin(card: "Card") -> str:
    """What a prompt started from: another backbone's prompt, other prompts, or its own start."""
    if card.lineage is not None:
        backbone = "unknown" if card.lineage.backbone is None else card.lineage.backbone.name
        return f"{card.lineage.recycled_from}, of {backbone}"
    if card.sources:
        weights = ", ".join(map(str, card.source_weights or ()))
        return ", ".join(card.sources) + (f", weighted {weights}" if weights else "")
    return card.start.kind if card.start and card.steps is not None else "unknown"


@action(
    "prompts search",
    """softprompts prompts search intent
  softprompts prompts search runs/new-task --by cosine_of_average_tokens --top 3 --json""",
    add_library,
    LIBRARY_PROMPT,
    argument(
        "--by",
        metavar="SIMILARITY",
        choices=get_args(Similarity),
        default="per_token_average_cosine",
        help="per_token_average_cosine (default) or cosine_of_average_tokens",
    ),
    argument(
        "--top",
        metavar="K",
        type=whole_number("top"),
        default=10,
        help="how many to show, the most similar first (default 10)",
    ),
)
def search_prompts(options: argparse.Namespace) -> int:
    """Find the prompts most similar to a given one, of the same backbone."""
    check_library_prompt(options.prompt, options.library)

    from ..library.library import Library, named_prompt

    library = Library(options.library).existing()
    query = named_prompt(options.prompt, options.library)
    without = [query.name] if query.folder.resolve().parent == library.folder.resolve() else []
    matches = library.search(query.vectors(), query.fingerprint, options.by, options.top, without)
    result = {
        "prompt": query.name,
        "similarity": options.by,
        "backbone": query.card.backbone.name,
        "fingerprint": query.fingerprint,
        "step": query.card.embedded_at,
        "found": [{"similarity": match.similarity, **_record(match.entry)} for match in matches],
    }
    rows = [("similarity", "name", "task", "score", "embedded at")]
    for match in matches:
        entry = match.entry
        task = entry.card.task.name
        rows.append((f"{match.similarity:.4f}", entry.name, task, _score(entry), _step(entry)))
    if not matches:
        return print_result(options, result, _no_match(query, library))
    return print_result(
        options,
        result,
        f"most similar to {query.name} (embedded at {_step(query)}) by {options.by}, "
        f"on {query.card.backbone.name}:",
        *aligned(rows),
        *_caveats(query.card, [match.entry.card for match in matches]),
    )


@action(
    "prompts remove",
    """softprompts prompts remove intent
  softprompts prompts remove old-1 old-2 --library team/library""",
    add_library,
    argument("names", nargs="+", metavar="NAME", help="a prompt in the library"),
)
def remove_prompts(options: argparse.Namespace) -> int:
    """Delete prompts from a library. Their run folders are kept."""
    for name in options.names:
        check_library_prompt(name, options.library)

    from ..library.library import Library

    library = Library(options.library).existing()
    for name in options.names:  # all or none
        library.check_present(name)
    for name in options.names:
        library.remove(name)
    result = {"library": str(options.library), "removed": options.names}
    return print_result(
        options, result, f"removed {', '.join(options.names)} from {options.library}"
    )


@action(
    "prompts rename",
    "softprompts prompts rename intent intent-2024",
    add_library,
    argument("name", metavar="NAME", help="a prompt in the library"),
    argument("new", metavar="NEW", help="its new name"),
)
def rename_prompt(options: argparse.Namespace) -> int:
    """Give a prompt of a library another name."""
    check_library_prompt(options.name, options.library)

    from ..library.library import Library

    entry = Library(options.library).existing().rename(options.name, options.new)
    result = {"name": entry.name, "folder": str(entry.folder)}
    return print_result(options, result, f"{options.name} is now {entry.name}")


def _caveats(query: "Card", cards: Sequence["Card"]) -> Iterator[str]:
    if any(card.embedded_at != query.embedded_at for card in cards):
        yield (
            "the embeddings are from different steps, so similarities are less reliable; "
            "tune with the same --embed-at"
        )
    if any(card.seed != query.seed for card in cards):
        yield (
            "the prompts have different seeds; prompts with the same seed start from the same "
            "tokens and look more similar"
        )


def _no_match(query: "Entry", library: "Library") -> str:
    """Why there is nothing to compare with: no prompts, or only those of another version."""
    from ..library.library import Library, ignore

    backbone = query.card.backbone.name
    others = [
        entry
        for entry in Library(library.folder, ignore).entries()
        if entry.card.backbone.name == backbone and entry.fingerprint != query.fingerprint
    ]
    text = f"{library.folder} holds no other prompt of {backbone} to compare with"
    if not others:
        return f"{text}."
    one = f"{others[0].name} was tuned on another version"
    count = one if len(others) == 1 else f"{len(others)} were tuned on other versions"
    return (
        f"{text}: {count} of it; map prompts with "
        "`softprompts prompts recycle PROMPT --from-model OLD`, or tune again."
    )


def _record(entry: "Entry") -> dict[str, Any]:
    card = entry.card
    test = {} if card.test is None else {"test": card.test}
    return {
        "name": entry.name,
        "folder": str(entry.folder),
        "task": card.task.name,
        "backbone": card.backbone.name,
        "fingerprint": entry.fingerprint,
        "method": card.method,
        "metrics": card.metrics,
        **test,
        "length": card.prompt.length,
        "count": card.prompt.count,
        "step": card.embedded_at,
        "seed": card.seed,
    }


def _score(entry: "Entry") -> str:
    """The score that a prompt is judged by, and of which rows if of the test rows."""
    test, card = "test " if entry.card.test else "", entry.card
    split, scores = "test" if test else "validation", (card.test or card.metrics).items()
    shown = (f"{test}{name} {value:.1f}{_doubt(card, split, name)}" for name, value in scores)
    return next(shown, "-")


def _doubt(card: "Card", split: str, metric: str) -> str:
    """The 95 % interval of a score and its number of rows; empty for cards of older versions."""
    report = card.scores.get(split, {})
    interval = format_interval(report.get("intervals", {}).get(metric))
    return f"{interval}, {counted(report['rows'], 'row')}" if report else ""


def _size(entry: "Entry") -> str:
    return f"{entry.card.prompt.count} x {entry.card.prompt.length}"


def _step(entry: "Entry") -> str:
    step = entry.card.embedded_at
    return "unknown step" if step is None else f"step {step}"


ACTIONS = {
    "list": list_prompts,
    "show": show_prompt,
    "search": search_prompts,
    "import": import_prompts.main,
    "export": export_prompt.main,
    "recycle": recycle.main,
    "remove": remove_prompts,
    "rename": rename_prompt,
}
main = partial(run_action, "prompts", ACTIONS)
