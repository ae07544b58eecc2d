"""Lists in settings: a config with lists stands for their product, one run for each combination.

Numbers, choices and yes/no may be lists, and so may tasks, presets and files of training data. A
task of a list may be a mapping with the settings of own data. Other texts (columns, templates) may
contain commas.
"""

import functools
import hashlib
import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import UserError, setting
from ..files import safe_name
from .kinds import TABLES
from .plugins import load_plugins
from .run import RunConfig, merge, merge_layers, run_config
from .schema import Choice, Schema, Settings, coerce, schema_of
from .task import TaskConfig

SHARED = ("model", "dtype", "device", "trust_remote_code")
"""What the runs of a cohort share."""
MAX_RUNS = 10_000
MAX_NAME = 120
"""Characters of a folder's name."""
_THOUSANDS = re.compile(r"[1-9]\d{0,2}(,\d{3})*,0\d\d(,\d{3})*$")
"""A number with commas between its thousands, which is no list: a group begins with a zero."""
Path = tuple[str, ...]
TASK, TRAIN = ("task", "task"), ("task", "train")


@dataclass(frozen=True)
class Member:
    """One run of a cohort."""

    config: RunConfig
    varied: dict[str, Any]
    """The settings that were lists, by name, each with this run's value."""
    name: str
    """The name of its folder, made from the varied settings."""


def expand_lists(*layers: Mapping[str, Any]) -> list[Member]:
    """The runs that layers of settings stand for: the last list varies fastest, tasks come first
    and seeds last. Without lists, one run with nothing varied."""
    settings = merge({"prompt": {}, "tuning": {}}, merge_layers(*layers))
    for name in SHARED:
        value = settings.get(name)
        if _is_list(value) and not (name == "model" and os.path.exists(str(value))):
            raise UserError(
                f"{setting(name)} is {value!r}, but all runs of a command share one frozen model; "
                f"give one {name}, and use a separate command for each other one."
            )
    _load_kinds(settings)
    lists = {
        path: _values(".".join(path), value, schema)
        for path, schema in _variable_settings().items()
        if _is_list(value := _get(settings, path))
        and not (path == TRAIN and isinstance(value, str) and not _are_files(value))
    }
    if TRAIN in lists and _get(settings, ("task", "validation")) is not None:
        raise UserError(
            f"{setting('task.validation')} is one file, but {setting('task.train')} lists several; "
            f"give {setting('task.task')} a list of mappings instead, each with its own "
            "train and validation."
        )
    count = math.prod(map(len, lists.values()))
    if count > MAX_RUNS:
        raise UserError(
            f"These lists make {count:,} runs, and a command takes at most {MAX_RUNS:,}; "
            "shorten the lists."
        )
    configs = [
        run_config(functools.reduce(_put, zip(lists, values, strict=True), settings))
        for values in itertools.product(*lists.values())
    ]
    if count > 1 and any(config.tuning.trains == "model" for config in configs):
        raise UserError(
            f"A run that tunes the whole model ({setting('tuning.trains', 'model')}) cannot share "
            "it with others; tune it by itself, without lists."
        )
    words = [_all_in_words(path, values) for path, values in lists.items()]
    varied = [
        dict(zip(map(_short, lists), values, strict=True)) for values in itertools.product(*words)
    ]
    return list(map(Member, configs, varied, _folder_names(varied)))


def _load_kinds(settings: Mapping[str, Any]) -> None:
    """Load plugins if a kind is unknown, so that lists of its options are recognised."""
    for table in TABLES.values():
        kind = _get(settings, (*table.path.split("."), "kind"))
        names = kind.split(",") if isinstance(kind, str) else ()
        if any(name.strip() not in list(table) for name in names):
            load_plugins()


def spell(value: Any) -> str:
    """A setting's value as users write it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return ",".join(f"{name}={spell(part)}" for name, part in value.items())
    return str(value).replace("e+", "e") if isinstance(value, float) else str(value)


def _variable_settings() -> dict[Path, Schema]:
    """The settings that may be lists, in the order of the flags, but the task first, seed last."""
    found = [(path, schema) for path, schema in walk(RunConfig) if may_vary(path, schema)]
    return dict(sorted(found, key=lambda item: (item[0] != TASK, item[0] == ("seed",))))


def walk(kind: type[Settings], above: Path = ()) -> Iterator[tuple[Path, Schema]]:
    """Every setting with its schema, the options of all kinds included."""
    for name, schema in schema_of(kind)["properties"].items():
        path = (*above, name)
        if schema.get("type") == "settings":
            yield from walk(schema["settings"], path)
        elif schema.get("type") == "choice":
            yield (*path, "kind"), schema
            options: dict[str, Schema] = {}
            for kind_name in TABLES[name]:
                options |= TABLES[name].schema(kind_name)["properties"]
            yield from (((*path, option), described) for option, described in options.items())
        else:
            yield path, schema


def may_vary(path: Path, schema: Schema) -> bool:
    """Whether a setting may be a list, with one run per value."""
    if path in (TASK, TRAIN, ("preset",)):
        return True
    scalar = "enum" in schema or schema.get("type") in ("integer", "number", "boolean", "choice")
    return scalar and path[-1] not in SHARED


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, str) and "," in value)


def _are_files(text: str) -> bool:
    """Whether a text with commas lists files, and is not the name of one."""
    parts = [part.strip() for part in text.split(",")]
    return not os.path.exists(text) and any(os.path.exists(part) for part in parts if part)


def _values(path: str, value: Any, schema: Schema) -> list[Any]:
    """The values of a list, converted to their type; duplicates are an error."""
    items = [item.strip() for item in value.split(",")] if isinstance(value, str) else list(value)
    if not items or any(item == "" for item in items):
        raise UserError(
            f"{setting(path)} is {value!r}, which has an empty value; use one comma between values."
        )
    if isinstance(value, str) and _THOUSANDS.match(value):
        raise UserError(
            f"{setting(path)} is {value!r}, and commas separate the values of a list; "
            f"write {value.replace(',', '')} for one number."
        )
    values = [
        _own_task(item)
        if path == "task.task" and isinstance(item, Mapping)
        else coerce(path.removesuffix(".kind"), item, schema)
        for item in (os.fspath(item) if isinstance(item, os.PathLike) else item for item in items)
    ]
    repeated = [value for index, value in enumerate(values) if value in values[:index]]
    if repeated:
        raise UserError(
            f"{setting(path.removesuffix('.kind'))} lists {spell(_in_words(repeated[0]))} twice; "
            "list every value once."
        )
    return values


def _own_task(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A task of a list that is given by its settings, which are checked."""
    task = TaskConfig.of(settings)
    if task.train is None and task.task is None:
        raise UserError(
            f"A task of the list {setting('task.task')} is {dict(settings)!r}; "
            "name its data with train, or a task with task."
        )
    return dict(settings)


def _get(settings: Any, path: Sequence[str]) -> Any:
    for name in path:
        settings = settings.get(name) if isinstance(settings, Mapping) else None
    return settings


def _put(settings: Mapping[str, Any], entry: tuple[Sequence[str], Any]) -> dict[str, Any]:
    """`settings` with one value of a list in the list's place."""
    (name, *below), value = entry
    if name == "kind":
        return {**settings, **value.plain()}
    if name == "task" and not below and isinstance(value, Mapping):
        return {**{key: entry for key, entry in settings.items() if key != name}, **value}
    return {**settings, name: _put(settings[name], (below, value)) if below else value}


def _short(path: Sequence[str]) -> str:
    """`lr`, `seed`, `shape`, `shape.bottleneck`."""
    return ".".join(path[1:] or path).removesuffix(".kind")


def _all_in_words(path: Path, values: Sequence[Any]) -> list[Any]:
    """The values of a list as a run's folder and tables show them; files without their folders,
    unless that makes two of them the same."""
    words = [_in_words(value) for value in values]
    names = [os.path.basename(word.rstrip("/")) for word in words] if path == TRAIN else words
    return names if len(set(names)) == len(names) else words


def _in_words(value: Any) -> Any:
    """A choice as a word, with its options in brackets; own data by its name."""
    if isinstance(value, Mapping):
        task = TaskConfig.of(value)
        return task.name or task.title
    if not isinstance(value, Choice):
        return value
    options = ", ".join(f"{name}={spell(option)}" for name, option in value.options.items())
    return f"{value.kind}({options})" if options else value.kind


def _folder_names(varied: Sequence[Mapping[str, Any]]) -> list[str]:
    """A folder's name for each run, all different: `task=helpdesk-intent_lr=0.1_seed=0`.

    No commas, which separate folders in lists.
    """
    names: list[str] = []
    taken: set[str] = set()
    for settings in varied:
        parts = {name.replace("_", "-"): spell(value) for name, value in settings.items()}
        # a part is made safe as a whole, so that a minus sign before a number stays
        safe = {name: safe_name(f"{name}-{value}") for name, value in parts.items()}
        name = "_".join(f"{name}={part[len(name) + 1 :]}" for name, part in safe.items())
        if len(name) > MAX_NAME:
            name = f"{name[: MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        variants = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        names.append(next(variant for variant in variants if variant.lower() not in taken))
        taken.add(names[-1].lower())
    return names
