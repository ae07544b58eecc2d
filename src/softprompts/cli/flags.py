"""Flags made from settings: one for each field, with the field's docstring as its help."""

import argparse
import re
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..config import (
    PRESETS,
    TABLES,
    Choice,
    PromptConfig,
    RunConfig,
    Schema,
    Settings,
    TaskConfig,
    TuningConfig,
    read_config,
    run_config,
    schema_of,
    spell,
)
from ..config.products import expand_lists
from ..config.run import SECTIONS, check_duration
from ..errors import UserError, as_flag, as_key
from ..tasks.metrics import METRICS
from . import ALIASES

_OPTION = re.compile(
    r"^--(?:prompt\.)?(start|shape|route|head|optimizer)\.([a-z0-9_-]+)(?:=(.*))?$", re.DOTALL
)


def add_settings(
    parser: argparse.ArgumentParser,
    kind: type[Settings],
    title: str,
    defaults: Settings | None = None,
    about: str | None = None,
    skip: Collection[str] = (),
    names: Mapping[str, str] | None = None,
    aliases: Mapping[str, str] = ALIASES,
) -> None:
    """A flag for each field. A flag that is not given sets nothing, so that files and presets below
    it show through. `defaults` are shown instead of the class's own; `names` are flags that are not
    named after their field; `aliases` are second names of flags."""
    group = parser.add_argument_group(title, about)
    for name, schema in schema_of(kind)["properties"].items():
        if name in skip:
            continue
        flag = (names or {}).get(name) or as_flag(kind.path(name))
        common: dict[str, Any] = {
            "dest": f"set:{kind.path(name)}",
            "default": argparse.SUPPRESS,
            "help": _help(name, schema, getattr(defaults, name, schema.get("default"))),
        }
        if schema.get("type") == "boolean":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        else:
            flags = [flag, aliases[flag]] if flag in aliases else [flag]
            argument: Any = group.add_argument(*flags, metavar="VALUE", **common)
            argument.words = values_of(name, schema)


def _help(name: str, schema: Schema, default: Any) -> str:
    parts = [schema.get("description", "")]
    if values := values_of(name, schema):
        parts.append(f"One of {', '.join(values)}.")
    if default is not None and default is not False and default not in ("", [], {}):
        parts.append(f"(default {_shown(default)})")
    return " ".join(parts).replace("%", "%%")


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(spell, value))
    if value is True:
        return "yes"
    return value.kind if isinstance(value, Choice) else spell(value)


def values_of(name: str, schema: Schema) -> list[str]:
    """The values of a setting that has few, for help and completion."""
    if name == "preset":
        return list(PRESETS)
    if name == "metric":
        return list(METRICS)
    return list(schema.get("table") or map(str, schema.get("enum", ())))


def given(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given, by their paths; they are removed from `options`."""
    settings = {}
    for name in [name for name in vars(options) if name.startswith("set:")]:
        settings[name.removeprefix("set:")] = getattr(options, name)
        delattr(options, name)
    return settings


# -- runs ------------------------------------------------------------------------------------------


def add_run(parser: argparse.ArgumentParser) -> None:
    """All settings of a run, and a file of them."""
    defaults = run_config()
    about = (
        f"The defaults are those of the preset {defaults.preset}; another --preset, or --paper,\n"
        "changes them (docs/prompts.md)."
    )
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="a YAML file of settings; flags override it"
    )
    add_settings(parser, RunConfig, "run", defaults, skip=SECTIONS)
    add_settings(parser, TaskConfig, "task", defaults.task)
    add_settings(parser, TuningConfig, "tuning", defaults.tuning, about)
    add_settings(parser, PromptConfig, "prompt", defaults.prompt, about)
    parser.add_argument_group(
        "options of a start, shape, route, head or optimiser",
        "\n".join(["for example --prompt.shape.bottleneck 400", *_kinds()]),
    )


def parse_run(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """The command's own options, and as `layers` those of a config: the file, then the flags."""
    options, rest = parser.parse_known_args(argv)
    settings: dict[str, Any] = {}
    for path, value in given(options).items():
        _put(settings, path.split("."), value)
    while rest:
        match = _OPTION.match(rest[0])
        if match is None:
            parser.error(f"unrecognized arguments: {rest[0]}")
        part, option, value = match.groups()
        if value is None and len(rest) < 2:
            raise UserError(f"{rest[0]} needs a value.")
        value, rest = (value, rest[1:]) if value is not None else (rest[1], rest[2:])
        section = settings.setdefault("tuning" if part == "optimizer" else "prompt", {})
        kind = section.get(part)
        options_before = {"kind": kind} if isinstance(kind, str) else kind or {}
        section[part] = {**options_before, option.replace("-", "_"): value}
    check_duration(settings)
    options.layers = [_read_config(options.config, settings), settings]
    return options


def _put(settings: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *sections, name = path
    for section in sections:
        settings = settings.setdefault(section, {})
    settings[name] = value


def _read_config(path: Path | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a file. It holds all settings of its preset, so flags cannot name another."""
    if path is None:
        return {}
    with _file_errors():
        file = read_config(path)
    for name in ("preset", "paper"):
        if name in settings and name in file and settings[name] != file[name]:
            raise UserError(
                f"{path} sets {name} to {file[name]}, and its other settings match it; "
                f"leave out --{name}, or use another file."
            )
    try:
        expand_lists(file, settings)
    except UserError:
        with _file_errors():
            expand_lists(file)  # where the file is right, the flags are wrong
    return file


@contextmanager
def _file_errors() -> Iterator[None]:
    """Errors inside are about a file of settings, and spell these as its keys."""
    try:
        yield
    except UserError as error:
        error.spelling = as_key
        raise


def _kinds() -> Iterator[str]:
    for table in TABLES.values():
        for kind in table:
            options = [
                name if schema.get("default") is None else f"{name} = {spell(schema['default'])}"
                for name, schema in table.schema(kind)["properties"].items()
            ]
            line = f"{as_flag(table.path)} {kind}: {', '.join(options) or 'no options'}"
            yield textwrap.fill(line, 76, subsequent_indent="    ")
