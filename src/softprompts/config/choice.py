"""A choice of one kind out of a table, with that kind's own options, checked against its signature.

Starts, shapes and routes are tables of plain functions and classes whose keyword-only parameters are their options, so that adding
a kind is one function or class and one line in its table; YAML files, flags and Python all spell it `{kind: residual, bottleneck: 400}`.
"""

import dataclasses
import functools
import inspect
import os
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Choice:
    """`kind` names a row of a table; `options` are that row's keyword-only arguments."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any) -> "Choice":
        """From a name, a mapping with `kind`, or a Choice."""
        if isinstance(value, Choice):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and isinstance(value.get("kind"), str):
            return cls(
                value["kind"], {name: option for name, option in value.items() if name != "kind"}
            )
        raise UserError(
            f"{value!r} names no kind; write a name, or a mapping such as {{kind: residual, bottleneck: 400}}."
        )

    def plain(self) -> dict[str, Any]:
        """As YAML and JSON hold it."""
        return {"kind": self.kind, **self.options}


def options_of(row: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a table's row: its keyword-only parameters."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    return {name: p for name, p in inspect.signature(row).parameters.items() if p.kind is keyword}


def checked(what: str, table: Mapping[str, Callable[..., Any]], choice: Choice) -> Choice:
    """The choice with its options as the types its row asks for; a sentence for a kind or an option that is not there."""
    if choice.kind not in table:
        raise UserError(f"There is no {what} {choice.kind!r}; choose one of {', '.join(table)}.")
    row = table[choice.kind]
    allowed = options_of(row)
    unknown = [name for name in choice.options if name not in allowed]
    if unknown:
        known = ", ".join(allowed) or "none"
        raise UserError(
            f"{what} {choice.kind!r} has no option {unknown[0]!r}; its options are: {known}."
        )
    missing = [
        name
        for name, p in allowed.items()
        if p.default is inspect.Parameter.empty and name not in choice.options
    ]
    if missing:
        raise UserError(
            f"{what} {choice.kind!r} needs its option {missing[0]!r}; give it with --prompt.{what}.{missing[0]}."
        )
    function = row.func if isinstance(row, functools.partial) else row
    hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    return Choice(
        choice.kind,
        {
            name: coerce(f"{what}.{name}", option, hints[name])
            for name, option in choice.options.items()
        },
    )


def pick(what: str, table: Mapping[str, Callable[..., T]], choice: Choice) -> Callable[..., T]:
    """The row of `table` that `choice` names, with its options filled in."""
    choice = checked(what, table, choice)
    return functools.partial(table[choice.kind], **choice.options)


def coerce(name: str, value: Any, hint: Any) -> Any:
    """`value`, from YAML, a flag or Python, as the type `hint`; a sentence when it is of another."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if hint is Choice:
        return Choice.of(value)
    if dataclasses.is_dataclass(hint):
        return (
            value
            if type(value) is hint
            else from_mapping(typing.cast("type[Any]", hint), value, name)
        )
    if origin in (types.UnionType, typing.Union):
        inner = next(a for a in arguments if a is not types.NoneType)
        return (
            None
            if value is None or (value == "none" and inner is not str)
            else coerce(name, value, inner)
        )
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise UserError(f"{name} is {value!r}; choose one of {', '.join(map(str, arguments))}.")
    try:
        return _as(value, hint, origin, arguments, name)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{name} is {value!r}; give {_wanted(hint)}.") from None


_WANTED: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "yes or no",
    str: "a text",
}


def _wanted(hint: Any) -> str:
    """What a type asks for, in words."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return f"a list, each part {_wanted(arguments[0])}"
    if origin is dict:
        pairs = {
            str: "VALUE=WORD pairs such as 0=negative,1=positive",
            float: "NAME=NUMBER pairs such as span=1,prefix=1",
        }
        return pairs.get(arguments[1], "names, each with its value")
    return _WANTED.get(hint, f"a {getattr(hint, '__name__', hint)}")


def _as(value: Any, hint: Any, origin: Any, arguments: tuple[Any, ...], name: str) -> Any:
    if origin is list:
        parts = value.split(",") if isinstance(value, str) else value
        return [
            coerce(name, part.strip() if isinstance(part, str) else part, arguments[0])
            for part in parts
        ]
    if origin is dict:
        if isinstance(value, str):
            pairs = [part.split("=", 1) for part in value.split(",")]
            value = dict(pairs)
            if len(value) < len(pairs):
                raise UserError(
                    f"{name} names one value twice: {', '.join('='.join(pair) for pair in pairs)}."
                )
        entries = {
            coerce(name, key, str).strip(): coerce(name, word, arguments[1])
            for key, word in dict(value).items()
        }
        return {
            key: word.strip() if isinstance(word, str) else word for key, word in entries.items()
        }
    if hint is bool:
        words = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }
        if str(value).lower() not in words:
            raise ValueError
        return words[str(value).lower()]
    if hint in (int, float):
        number = float(value)
        if isinstance(value, bool) or number != number or (hint is int and number != int(number)):
            raise ValueError
        return hint(number)
    if hint is str and isinstance(value, bool):
        raise UserError(
            f"{name} holds {value}, which YAML reads as true or false; put quotes around the word."
        )
    if hint is str and not isinstance(value, (str, int, float, os.PathLike)):
        raise TypeError
    return hint(value)


def from_mapping(kind: type[T], value: Any, name: str = "") -> T:
    """A dataclass from a mapping of its fields; an unknown field is a sentence."""
    if not isinstance(value, Mapping):
        raise UserError(
            f"{name or 'The configuration'} is {value!r}; it must be a mapping of settings."
        )
    hints = typing.get_type_hints(kind)
    known = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    unknown = [key for key in value if key not in known]
    if unknown:
        raise UserError(
            f"There is no setting {f'{name}.' if name else ''}{unknown[0]}; the settings are {', '.join(known)}."
        )
    return kind(
        **{
            key: coerce(f"{name}.{key}" if name else key, entry, hints[key])
            for key, entry in value.items()
        }
    )


def difference(old: Any, new: Any, usual: Any = None, name: str = "") -> str | None:
    """The first setting that is not what it was, in words: `tuning.lr 0.3 where it says 0.1 now`; None: all are.

    A setting that an older version did not have was what is `usual`.
    """
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        told = (
            f"{name} {old} where it says {new} now"
            if name
            else "they are not told, or not by this version"
        )
        return None if old == new else told
    usual = usual if isinstance(usual, Mapping) else {}
    parts = (
        (old.get(key, usual.get(key)), new.get(key), usual.get(key), f"{name}.{key}".strip("."))
        for key in dict.fromkeys([*old, *new])
    )
    return next((change for part in parts if (change := difference(*part))), None)
