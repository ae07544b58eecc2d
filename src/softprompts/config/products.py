"""Lists in settings: a config with lists stands for their product, a cohort of one run for each combination of values.

Numbers, choices and yes/no may be lists, and so may tasks and presets; other words (columns, files, templates) may have commas in them.
"""

import dataclasses
import functools
import hashlib
import itertools
import math
import os
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError
from ..files.names import safe_name
from ..prompt.prompt import TABLES
from .choice import Choice, coerce, options_of
from .run import RunConfig, merge, run_config

ONE_FOR_ALL = ("model", "dtype", "device", "trust_remote_code")
"""What the runs of a cohort share."""

MOST = 10_000
"""Runs of one command."""
LONGEST = 120
"""Characters of a folder's name."""


@dataclass(frozen=True)
class Member:
    """One run of a cohort. A run that no list was given for is a member with nothing that sets it apart."""

    config: RunConfig
    apart: dict[str, Any]
    """The settings that were lists, by name, each with this run's value."""
    name: str
    """Its folder's name: what sets it apart, in words that a file system takes."""


def run_configs(*layers: Mapping[str, Any]) -> list[Member]:
    """The runs that layers of settings stand for: the last list varies fastest; tasks come first and seeds last."""
    given: dict[str, Any] = {"prompt": {}}
    for layer in layers:
        given = merge(given, layer)
    for name in ONE_FOR_ALL:
        if _listed(given.get(name)) and not (name == "model" and os.path.exists(str(given[name]))):
            shared = "but all runs of a command share one frozen model"
            raise UserError(
                f"{name} is {given[name]!r}, {shared}; give one {name}, and another command for another."
            )
    lists = {
        path: _values(".".join(path), value, hint)
        for path, hint in _places().items()
        if _listed(value := _at(given, path))
    }
    many = math.prod(map(len, lists.values()))
    if many > MOST:
        raise UserError(
            f"These lists make {many:,} runs, and one command takes {MOST:,} at most; give shorter lists."
        )
    picks = list(itertools.product(*lists.values()))
    configs = [
        run_config(functools.reduce(_with, zip(lists, pick, strict=True), given)) for pick in picks
    ]
    if len(configs) > 1 and any(config.tuning.trains == "model" for config in configs):
        raise UserError(
            "A run that tunes the whole model (--trains model) needs a model of its own; tune it by itself, without lists."
        )
    aparts = [
        {_name(path): _plain(value) for path, value in zip(lists, pick, strict=True)}
        for pick in picks
    ]
    return [Member(*member) for member in zip(configs, aparts, _names(aparts), strict=True)]


def said(value: Any) -> str:
    """A setting's value as one writes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(value).replace("e+", "e") if isinstance(value, float) else str(value)


@functools.cache
def _places() -> dict[tuple[str, ...], Any]:
    """Where the settings that may be lists stand in a config, and their types: the task first, then as --help tells them, the seed last."""
    found = {path: hint for path, hint in _hints(RunConfig).items() if _may_vary(path, hint)}
    return dict(
        sorted(
            found.items(), key=lambda entry: (entry[0] != ("task", "task"), entry[0] == ("seed",))
        )
    )


def _hints(kind: type, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """The type of every setting, the options of starts, shapes, routes and heads among them."""
    found: dict[tuple[str, ...], Any] = {}
    for name, hint in typing.get_type_hints(kind).items():
        path = (*above, name)
        if dataclasses.is_dataclass(hint) and hint is not Choice:
            found |= _hints(typing.cast("type", hint), path)
        elif hint is Choice:
            found[(*path, "kind")] = hint
            found |= {
                (*path, option): p.annotation
                for row in TABLES[name].values()
                for option, p in options_of(row).items()
            }
        else:
            found[path] = hint
    return found


def _may_vary(path: tuple[str, ...], hint: Any) -> bool:
    if path[-1] in ("task", "preset"):
        return True
    kinds = (
        typing.get_args(hint)
        if typing.get_origin(hint) in (types.UnionType, typing.Union)
        else (hint,)
    )
    scalar = any(
        kind in (int, float, bool, Choice) or typing.get_origin(kind) is typing.Literal
        for kind in kinds
    )
    return scalar and path[-1] not in ONE_FOR_ALL


def _listed(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, str) and "," in value)


def _values(name: str, value: Any, hint: Any) -> list[Any]:
    """A list's values, each once and of its type."""
    items = [item.strip() for item in value.split(",")] if isinstance(value, str) else list(value)
    if not items or any(item == "" for item in items):
        raise UserError(
            f"{name} is {value!r}, a list that lacks a value; write every value, with one comma between two."
        )
    values = [coerce(name, item, hint) for item in items]
    twice = [value for place, value in enumerate(values) if value in values[:place]]
    if twice:
        raise UserError(f"{name} names {said(_plain(twice[0]))} twice; name every value once.")
    return values


def _at(given: Any, path: Sequence[str]) -> Any:
    for name in path:
        given = given.get(name) if isinstance(given, Mapping) else None
    return given


def _with(given: Mapping[str, Any], pick: tuple[Sequence[str], Any]) -> dict[str, Any]:
    """`given` with one value of a list in the list's place."""
    (name, *below), value = pick
    if name == "kind":
        return {**given, **value.plain()}
    return {**given, name: _with(given[name], (below, value)) if below else value}


def _name(path: Sequence[str]) -> str:
    """`lr`, `seed`, `shape`, `shape.bottleneck`."""
    return ".".join(path[1:] or path).removesuffix(".kind")


def _plain(value: Any) -> Any:
    """A choice as a word, with its options in brackets."""
    if not isinstance(value, Choice):
        return value
    return value.kind + (
        f"({', '.join(f'{name}={said(option)}' for name, option in value.options.items())})"
        if value.options
        else ""
    )


def _names(aparts: Sequence[Mapping[str, Any]]) -> list[str]:
    """A folder's name for each, all different: `task=helpdesk-intent_lr=0.1_seed=0`. No commas, which lists of folders are split at."""
    names: list[str] = []
    taken: set[str] = set()
    for apart in aparts:
        name = "_".join(
            _folded(setting.replace("_", "-"), said(value)) for setting, value in apart.items()
        )
        if len(name) > LONGEST:
            name = f"{name[: LONGEST - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        others = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        names.append(next(other for other in others if other.lower() not in taken))
        taken.add(names[-1].lower())
    return names


def _folded(setting: str, value: str) -> str:
    """Made safe as a whole, so that a minus sign before a number stays."""
    return f"{setting}={safe_name(f'{setting}-{value}')[len(setting) + 1 :]}"
