"""Flags made from the config dataclasses: one per attribute, its help the docstring under it, so that a setting is written down once."""

import argparse
import dataclasses
import inspect
import re
import typing
from collections.abc import Sequence
from typing import Any

from ..config.choice import Choice, options_of
from ..config.run import attribute_docs
from ..errors import UserError
from ..prompt.prompt import TABLES
from ..tuning import run_config

_OPTION = re.compile(r"^--prompt\.(start|shape|route|head)\.([a-z_-]+)(?:=(.*))?$", re.DOTALL)


def add(parser: argparse.ArgumentParser) -> None:
    """All settings of a run. A flag that is not given stays out, so that presets and files below it show through."""
    usual = run_config()
    preset = f"defaults are those of the preset {usual.preset}; another --preset, or --paper, sets others (docs/prompts.md)"
    _group(parser, "run", usual, skip=("task", "prompt", "tuning"))
    _group(parser, "task", usual.task)
    _group(parser, "tuning", usual.tuning, about=preset)
    _group(parser, "prompt", usual.prompt, prefix="prompt.", about=preset)
    lines = ["such as --prompt.shape.bottleneck 400", *_kinds()]
    parser.add_argument_group(
        "options of a start, shape, route or head", description="\n".join(lines)
    )
    lists = "tasks, presets, numbers and choices may be lists, such as --seed 0,1,2 --lr 0.1,0.3: all combinations are tuned on one frozen"
    parser.add_argument_group(
        "lists",
        description=f"{lists}\nmodel, each as a run of its own in a folder below --output (docs/cohorts.md)",
    )


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str]
) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The parser's own options, and the settings that were given, as a config layer."""
    options, rest = parser.parse_known_args(argv)
    settings: dict[str, Any] = {}
    for name in [n for n in vars(options) if n.startswith("set:")]:
        *path, last = name.removeprefix("set:").split(".")
        (settings.setdefault("prompt", {}) if path else settings)[last] = getattr(options, name)
        delattr(options, name)
    prompt = settings.get("prompt", {})
    while rest:
        given = _OPTION.match(rest[0])
        if given is None:
            raise UserError(f"There is no option {rest[0]}; see {parser.prog} --help.")
        part, option, value = given.groups()
        if value is None and len(rest) < 2:
            raise UserError(f"{rest[0]} needs a value.")
        value, rest = (value, rest[1:]) if value is not None else (rest[1], rest[2:])
        kind = prompt.get(part)
        prompt[part] = {
            **({"kind": kind} if isinstance(kind, str) else kind or {}),
            option.replace("-", "_"): value,
        }
    return options, settings | ({"prompt": prompt} if prompt else {})


def _group(
    parser: argparse.ArgumentParser,
    title: str,
    usual: Any,
    prefix: str = "",
    skip: Sequence[str] = (),
    about: str | None = None,
) -> None:
    """A flag for each setting; `usual` holds what it is where nothing is given."""
    group = parser.add_argument_group(title, about)
    docs, hints = attribute_docs(type(usual)), typing.get_type_hints(type(usual))
    for entry in dataclasses.fields(usual):
        if entry.name in skip:
            continue
        flag = "--" + prefix + entry.name.replace("_", "-")
        default = getattr(usual, entry.name)
        shown = default.kind if isinstance(default, Choice) else default
        text = (
            docs.get(entry.name, "") + (f" (default {shown})" if shown not in (None, False) else "")
        ).replace("%", "%%")
        common: dict[str, Any] = {
            "dest": f"set:{prefix}{entry.name}",
            "default": argparse.SUPPRESS,
            "help": text,
        }
        if hints[entry.name] is bool:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **common)
        else:
            group.add_argument(flag, metavar="VALUE", **common)


def _kinds() -> list[str]:
    lines = []
    for part, table in TABLES.items():
        for kind, row in table.items():
            options = (
                ", ".join(_option(name, p.default) for name, p in options_of(row).items())
                or "no options"
            )
            lines.append(f"--prompt.{part} {kind}: {options}")
    return lines


def _option(name: str, default: Any) -> str:
    return name if default is None or default is inspect.Parameter.empty else f"{name} = {default}"
