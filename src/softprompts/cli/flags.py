"""Flags made from settings: one for each field, with the field's docstring as its help."""

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..config.choice import Choice
from ..config.kinds import TABLES
from ..config.presets import PRESETS
from ..config.products import spell
from ..config.prompt import PromptConfig
from ..config.run import SECTIONS, RunConfig, run_config
from ..config.schema import Schema, Settings, schema_of
from ..config.task import TaskConfig
from ..config.tuning import TuningConfig
from ..errors import UserError, as_flag

_OPTION = re.compile(
    r"^--((?:prompt\.)?)(start|shape|route|head|optimizer)\.([a-z0-9_-]+)(?:=(.*))?$", re.DOTALL
)


def add_settings(
    parser: argparse.ArgumentParser,
    kind: type[Settings],
    title: str,
    defaults: Settings | None = None,
    about: str | None = None,
    skip: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
) -> None:
    """A flag for each field; one that is not given stays out, so that presets and files below it
    show through. `defaults` are shown instead of the class's own; `names` are flags that are called
    otherwise than their field."""
    group = parser.add_argument_group(title, about)
    for name, schema in schema_of(kind)["properties"].items():
        if name in skip:
            continue
        flag = (names or {}).get(name) or as_flag(kind.path(name))
        common: dict[str, Any] = {
            "dest": f"set:{kind.path(name)}",
            "default": argparse.SUPPRESS,
            "help": _help(schema, getattr(defaults, name, schema.get("default"))),
        }
        if schema.get("type") == "boolean":
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        else:
            group.add_argument(flag, metavar="VALUE", **common).words = words(name, schema)  # type: ignore[attr-defined]


def _help(schema: Schema, default: Any) -> str:
    parts = [schema.get("description", "")]
    if "table" in schema:
        parts.append(f"One of {', '.join(schema['table'])}.")
    shown = default.kind if isinstance(default, Choice) else default
    if isinstance(shown, dict):
        shown = ",".join(f"{name}={value:g}" for name, value in shown.items())
    if shown not in (None, False, "", []):
        parts.append(f"(default {shown})")
    return " ".join(parts).replace("%", "%%")


def words(name: str, schema: Schema) -> list[str]:
    """The values that a shell may complete."""
    if name == "preset":
        return list(PRESETS)
    return list(schema.get("table") or map(str, schema.get("enum", ())))


def given(options: argparse.Namespace) -> dict[str, Any]:
    """The settings that were given, by their paths; they are taken out of `options`."""
    found = {}
    for name in [name for name in vars(options) if name.startswith("set:")]:
        found[name.removeprefix("set:")] = getattr(options, name)
        delattr(options, name)
    return found


# -- runs ------------------------------------------------------------------------------------------


def add_run(parser: argparse.ArgumentParser) -> None:
    """All settings of a run."""
    defaults = run_config()
    about = (
        f"The defaults are those of the preset {defaults.preset}; another --preset, or --paper, "
        "sets others (docs/prompts.md)."
    )
    add_settings(parser, RunConfig, "run", defaults, skip=SECTIONS)
    add_settings(parser, TaskConfig, "task", defaults.task)
    add_settings(parser, TuningConfig, "tuning", defaults.tuning, about)
    add_settings(parser, PromptConfig, "prompt", defaults.prompt, about)
    parser.add_argument_group(
        "options of a start, shape, route, head or optimizer",
        "\n".join(["for example --prompt.shape.bottleneck 400", *_kinds()]),
    )
    parser.add_argument_group(
        "lists",
        "Tasks, presets, numbers and choices may be lists, such as --seed 0,1,2 --lr 0.1,0.3. All\n"
        "combinations are tuned on one frozen model, each as a run of its own in a folder below\n"
        "--output (docs/cohorts.md).",
    )


def parse_run(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The command's own options, and the settings that were given, as a layer of a config."""
    options, rest = parser.parse_known_args(argv)
    settings: dict[str, Any] = {}
    for path, value in given(options).items():
        _put(settings, path.split("."), value)
    while rest:
        match = _OPTION.match(rest[0])
        if match is None:
            raise UserError(f"There is no option {rest[0]}; see {parser.prog} --help.")
        _, part, option, value = match.groups()
        if value is None and len(rest) < 2:
            raise UserError(f"{rest[0]} needs a value.")
        value, rest = (value, rest[1:]) if value is not None else (rest[1], rest[2:])
        section = settings.setdefault("tuning" if part == "optimizer" else "prompt", {})
        kind = section.get(part)
        options_given = {"kind": kind} if isinstance(kind, str) else kind or {}
        section[part] = {**options_given, option.replace("-", "_"): value}
    return options, settings


def _put(settings: dict[str, Any], path: Sequence[str], value: Any) -> None:
    *sections, name = path
    for section in sections:
        settings = settings.setdefault(section, {})
    settings[name] = value


def _kinds() -> list[str]:
    lines = []
    for table in TABLES.values():
        for kind in table:
            options = table.schema(kind)["properties"].items()
            shown = ", ".join(_option(name, schema) for name, schema in options) or "no options"
            lines.append(f"{as_flag(table.path)} {kind}: {shown}")
    return lines


def _option(name: str, schema: Schema) -> str:
    default = schema.get("default")
    return name if default is None else f"{name} = {spell(default)}"
