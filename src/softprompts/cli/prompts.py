"""The command `softprompts prompts`: look through a library, bring prompts in, take them out."""

import argparse
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ..library.library import ignore, named_prompt
from .command import act, aligned, make_parser, tell
from .exchange import export, take_in
from .naming import add_library, add_prompt

if TYPE_CHECKING:
    from ..artifacts.card import Card
    from ..library.entry import Entry
    from ..library.library import Library


def main(argv: Sequence[str]) -> int:
    """One of the actions on prompts."""
    actions = {
        "list": _list,
        "show": _show,
        "search": _search,
        "import": take_in,
        "export": export,
        "recycle": _recycle,
    }
    return act("prompts", actions, argv)


SIMILAR = "per_token_average_cosine (default) or cosine_of_average_tokens"


def _list(argv: Sequence[str]) -> int:
    """The prompts of a library, all or of one task or backbone."""
    examples = "softprompts prompts list\n  softprompts prompts list --task 'helpdesk/*' --backbone t5-tiny --json"
    parser = make_parser("prompts list", examples, _list.__doc__)
    add_library(parser)
    parser.add_argument(
        "--task",
        metavar="NAME",
        default="*",
        help="only prompts of this task; * stands for anything",
    )
    parser.add_argument(
        "--backbone",
        metavar="NAME",
        default="*",
        help="only prompts of this backbone, by name or fingerprint",
    )
    options = parser.parse_args(argv)
    entries = [entry for entry in _there(options).entries() if _wanted(entry, options)]
    rows = [("name", "task", "score", "backbone", "method", "prompt", "embedded at")]
    rows += [
        (
            e.name,
            e.card.task.name,
            _score(e),
            _backbone(e),
            str(e.card.method),
            _size(e),
            _step(e),
        )
        for e in entries
    ]
    every = (options.task, options.backbone) == ("*", "*")
    none = f"The library {options.library} holds no prompt{'' if every else ' of that task and backbone'}."
    text = _table(rows) if entries else none
    tell(
        options,
        {"library": str(options.library), "prompts": [_record(entry) for entry in entries]},
        text,
    )
    return 0


def _wanted(entry: "Entry", options: argparse.Namespace) -> bool:
    backbone = (entry.card.backbone.name, entry.fingerprint)
    return fnmatchcase(entry.card.task.name, options.task) and any(
        fnmatchcase(name, options.backbone) for name in backbone
    )


def _show(argv: Sequence[str]) -> int:
    """A prompt's card: task, backbone, scores, how it was made and what it started from."""
    parser = make_parser(
        "prompts show",
        "softprompts prompts show intent\n  softprompts prompts show runs/intent --json",
        _show.__doc__,
    )
    add_library(parser)
    add_prompt(parser)
    options = parser.parse_args(argv)
    entry = named_prompt(options.prompt, options.library)
    lineage = {
        "started_from": entry.card.sources,
        "weights": entry.card.source_weights,
        "recycled_from": entry.card.lineage and entry.card.lineage.recycled_from,
    }
    result = {"name": entry.name, "folder": str(entry.folder), "lineage": lineage}
    tell(options, {**result, "card": entry.card.plain()}, _description(entry))
    return 0


def _description(entry: "Entry") -> str:
    card = entry.card
    rows = [
        ("name", entry.name),
        ("folder", str(entry.folder)),
        ("task", card.task.name),
        ("backbone", f"{_backbone(entry)}, fingerprint {entry.fingerprint}"),
        ("method", str(card.method) + ("" if card.seed is None else f", seed {card.seed}")),
        ("prompt", f"{_size(entry)} vectors"),
        ("started from", _origin(card)),
        ("embedded at", _step(entry)),
    ]
    if card.steps is not None:
        rows.append(("steps", f"{card.steps}, best at {card.best_step}"))
    majority = {name: f" (majority class {value:.1f})" for name, value in card.majority.items()}
    rows += [(name, f"{value:.1f}{majority.get(name, '')}") for name, value in card.metrics.items()]
    rows += [(f"test {name}", f"{value:.1f}") for name, value in (card.test or {}).items()]
    rows += [("stopped", card.stopped)] if card.stopped else []
    return _table(rows)


def _origin(card: "Card") -> str:
    """What a prompt started from: another backbone's prompt, other prompts, or its own start."""
    if card.lineage is not None:
        backbone = "unknown" if card.lineage.backbone is None else card.lineage.backbone.name
        return f"{card.lineage.recycled_from}, of {backbone}"
    if card.sources:
        weights = ", ".join(map(str, card.source_weights or ()))
        return ", ".join(card.sources) + (f", weighted {weights}" if weights else "")
    return card.start.kind if card.start and card.steps is not None else "unknown"


def _search(argv: Sequence[str]) -> int:
    """The prompts that are most like one, among those of its backbone."""
    examples = "softprompts prompts search intent\n  softprompts prompts search runs/new-task --by cosine_of_average_tokens --top 3 --json"
    parser = make_parser("prompts search", examples, _search.__doc__)
    add_library(parser)
    add_prompt(parser)
    parser.add_argument(
        "--by", metavar="SIMILARITY", default="per_token_average_cosine", help=SIMILAR
    )
    parser.add_argument(
        "--top",
        metavar="K",
        type=int,
        default=10,
        help="how many to tell, the most similar first (default 10)",
    )
    options = parser.parse_args(argv)
    library, asked = _there(options), named_prompt(options.prompt, options.library)
    own = [asked.name] if asked.folder.resolve().parent == library.folder.resolve() else []
    found = library.search(asked.vectors(), asked.fingerprint, options.by, options.top, own)
    result = {
        "prompt": asked.name,
        "similarity": options.by,
        "backbone": asked.card.backbone.name,
        "fingerprint": asked.fingerprint,
        "step": asked.card.embedded_at,
        "found": [{"similarity": one.similarity, **_record(one.entry)} for one in found],
    }
    rows = [("similarity", "name", "task", "score", "embedded at")]
    rows += [
        (
            f"{o.similarity:.4f}",
            o.entry.name,
            o.entry.card.task.name,
            _score(o.entry),
            _step(o.entry),
        )
        for o in found
    ]
    lines = [
        f"most like {asked.name} (embedded at {_step(asked)}) by {options.by}, on {_backbone(asked)}:",
        _table(rows),
    ]
    if any(one.entry.card.embedded_at != asked.card.embedded_at for one in found):
        lines.append(
            "the embeddings are of different steps, which makes similarities less sure; tune with the same --embed-at"
        )
    if any(one.entry.card.seed != asked.card.seed for one in found):
        lines.append(
            "the prompts are of different seeds, and those of one seed start from the same words, so they seem more alike"
        )
    tell(options, result, "\n".join(lines) if found else _none_like(asked, library))
    return 0


def _none_like(asked: "Entry", library: "Library") -> str:
    """That there is nothing to compare with; a model's name may have gone over to another one."""
    library.warn = ignore  # the search told of damaged prompts already
    others = [
        e
        for e in library.entries()
        if _backbone(e) == _backbone(asked) and e.fingerprint != asked.fingerprint
    ]
    none = f"{library.folder} holds no other prompt of {_backbone(asked)} to compare with"
    if not others:
        return f"{none}."
    many = (
        f"{len(others)} were tuned on other versions"
        if len(others) > 1
        else f"{others[0].name} was tuned on another version"
    )
    return f"{none}: {many} of it; map prompts with `softprompts prompts recycle PROMPT --from-model OLD`, or tune anew."


def _recycle(argv: Sequence[str]) -> int:
    """A prompt of one backbone for another."""
    from .recycle import main as recycle

    return recycle(argv)


def _there(options: argparse.Namespace) -> "Library":
    from ..library.library import Library

    return Library(options.library).existing()


def _record(entry: "Entry") -> dict[str, Any]:
    """An entry for machines."""
    card = entry.card
    return {
        "name": entry.name,
        "folder": str(entry.folder),
        "task": card.task.name,
        "backbone": card.backbone.name,
        "fingerprint": entry.fingerprint,
        "method": card.method,
        "metrics": card.metrics,
        "length": card.prompt.length,
        "count": card.prompt.count,
        "step": card.embedded_at,
        "seed": card.seed,
    }


def _score(entry: "Entry") -> str:
    return next((f"{name} {value:.1f}" for name, value in entry.card.metrics.items()), "-")


def _backbone(entry: "Entry") -> str:
    return entry.card.backbone.name


def _size(entry: "Entry") -> str:
    return f"{entry.card.prompt.count} x {entry.card.prompt.length}"


def _step(entry: "Entry") -> str:
    step = entry.card.embedded_at
    return "unknown step" if step is None else f"step {step}"


def _table(rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(aligned(rows))
