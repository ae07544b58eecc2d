"""Settings that are described once: by the types, limits and docstrings of a dataclass's fields.

That description is a JSON Schema. Checks, flags, lists of runs, and the completion of editors and
shells all read it, so that a setting is written down in one place.
"""

import ast
import csv
import dataclasses
import inspect
import json
import math
import operator
import os
import textwrap
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Self

from ..errors import UserError, choices, closest, setting

Schema = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Choice:
    """`kind` names a start, shape, route, head or optimiser; `options` are its settings."""

    kind: str
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, path: str = "prompt.shape") -> "Choice":
        """From a name, a mapping with `kind`, or a Choice."""
        if isinstance(value, Choice):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and isinstance(value.get("kind"), str):
            options = {name: option for name, option in value.items() if name != "kind"}
            return cls(value["kind"], options)
        raise UserError(
            f"{setting(path)} is {value!r}; write the name of a kind, "
            "or a mapping such as {kind: residual, bottleneck: 400}."
        )

    def plain(self) -> dict[str, Any]:
        """As plain data for YAML and JSON."""
        return {"kind": self.kind, **self.options}


def option(
    default: Any = dataclasses.MISSING,
    *,
    factory: Callable[[], Any] | None = None,
    **keywords: Any,
) -> Any:
    """A field with limits, as JSON Schema names them: `option(16, minimum=1)`.

    `below="high"` is ours: the value must be below that of another field.
    """
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=keywords)
    return dataclasses.field(default=default, metadata=keywords)


class Settings:
    """Base of frozen dataclasses whose fields are checked and converted to their types."""

    section: ClassVar[str] = ""
    """Path of these settings in a configuration, such as `tuning`."""

    def __post_init__(self) -> None:
        for name, schema in schema_of(type(self))["properties"].items():
            object.__setattr__(self, name, coerce(self.path(name), getattr(self, name), schema))
        check_order(self.section, vars(self), schema_of(type(self))["properties"])

    @classmethod
    def path(cls, name: str) -> str:
        return f"{cls.section}.{name}" if cls.section else name

    @classmethod
    def of(cls, settings: Any) -> Self:
        """From a mapping of its fields; an unknown field is an error."""
        if not isinstance(settings, Mapping):
            name = setting(cls.section) if cls.section else "The configuration"
            raise UserError(f"{name} is {settings!r}; it must be a mapping of settings.")
        for name in settings:
            if name not in schema_of(cls)["properties"]:
                raise _unknown(cls, str(name))
        return cls(**settings)

    def plain(self) -> dict[str, Any]:
        """As plain data for YAML and JSON."""
        schemas = schema_of(type(self))["properties"]
        return {name: _plain(getattr(self, name), schema) for name, schema in schemas.items()}


def _unknown(kind: type[Settings], name: str) -> UserError:
    """The error about a setting that does not exist, with the one that was probably meant."""
    paths = {path.rpartition(".")[2]: path for path in _paths(kind)}
    similar = closest(name, paths)
    nested = any("settings" in schema for schema in schema_of(kind)["properties"].values())
    hint = f"the settings are {', '.join(paths)}."
    if similar is not None:
        hint = f"did you mean {setting(paths[similar])}?"
    elif nested:
        hint = "`softprompts tune --help` lists the settings."
    return UserError(f"There is no setting {setting(kind.path(name))}; {hint}")


def _paths(kind: type[Settings]) -> Iterator[str]:
    """The paths of all settings, those of nested settings included."""
    for name, schema in schema_of(kind)["properties"].items():
        if schema.get("type") == "settings":
            yield from _paths(schema["settings"])
        yield kind.path(name)


def _plain(value: Any, schema: Schema) -> Any:
    if isinstance(value, Choice):
        return value.kind if schema.get("brief") and not value.options else value.plain()
    return value.plain() if isinstance(value, Settings) else value


# -- describing ------------------------------------------------------------------------------------


def schema_of(kind: type) -> Schema:
    """The JSON Schema of a dataclass. Choices and nested settings are left as references."""
    if kind not in _schemas:
        with _describing:
            _schemas[kind] = _describe(kind)
    return _schemas[kind]


_schemas: dict[type, Schema] = {}
_describing = threading.RLock()
"""`ast.parse` fails in several threads at once (cpython#106905, before 3.11.8 and 3.12.2)."""


def _describe(kind: type) -> Schema:
    hints, docs = typing.get_type_hints(kind), attribute_docs(kind)
    properties, required = {}, []
    for field in dataclasses.fields(kind):
        schema = {**schema_of_hint(hints[field.name]), **field.metadata}
        if field.name in docs:
            schema["description"] = docs[field.name]
        if field.default is not dataclasses.MISSING:
            schema["default"] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            schema["default"] = field.default_factory()
        else:
            required.append(field.name)
        properties[field.name] = schema
    return {"type": "object", "properties": properties, "required": required}


_TYPES: dict[Any, str] = {int: "integer", float: "number", bool: "boolean", str: "string"}


def schema_of_hint(hint: Any) -> Schema:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint in _TYPES:
        return {"type": _TYPES[hint]}
    if hint is Choice:
        return {"type": "choice"}
    if isinstance(hint, type) and issubclass(hint, Settings):
        return {"type": "settings", "settings": hint}
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (types.UnionType, typing.Union):
        inner = next(argument for argument in arguments if argument is not types.NoneType)
        return {**schema_of_hint(inner), "nullable": True}
    if origin is list:
        return {"type": "array", "items": schema_of_hint(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of_hint(arguments[1])}
    return {}


def attribute_docs(kind: type) -> dict[str, str]:
    """The docstring under each attribute of a class and of its bases."""
    docs = {}
    for part in reversed(kind.__mro__[:-1]):
        if not dataclasses.is_dataclass(part):
            continue
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(part))).body
        except (OSError, TypeError):  # a class typed at a prompt has no source
            continue
        assert isinstance(tree, ast.ClassDef)
        for here, after in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(here, ast.AnnAssign) and isinstance(after, ast.Expr):
                assert isinstance(here.target, ast.Name)
                docs[here.target.id] = " ".join(str(ast.literal_eval(after.value)).split())
    return docs


# -- checking --------------------------------------------------------------------------------------


def coerce(path: str, value: Any, schema: Schema) -> Any:
    """`value`, from YAML, a flag or Python, converted as its schema says, or a clear error."""
    kind = schema.get("type")
    if schema.get("nullable") and (value is None or (value == "none" and kind != "string")):
        return None
    if "enum" in schema:
        if value in schema["enum"]:
            return value
        raise UserError(f"{setting(path)} is {value!r}; {choices(value, schema['enum'])}")
    if kind is None:
        return value
    if kind == "choice":
        return schema["table"].check(Choice.of(value, path))
    if kind == "settings":
        settings = schema["settings"]
        return value if isinstance(value, settings) else settings.of(value)
    try:
        coerced = _COERCIONS[kind](path, value, schema)
    except (TypeError, ValueError, KeyError, OverflowError):
        raise UserError(f"{setting(path)} is {value!r}; give {_wanted(schema)}.") from None
    _check_limits(path, coerced, schema)
    return coerced


def _number(path: str, value: Any, schema: Schema) -> int | float:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError
    if schema["type"] == "number":
        return number
    if number != int(number):
        raise ValueError
    return int(value) if isinstance(value, str) and value.lstrip("+-").isdigit() else int(number)


_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def _string(path: str, value: Any, schema: Schema) -> str:
    if isinstance(value, bool):
        raise UserError(
            f"{setting(path)} is {value}, because YAML reads some words as true or false; "
            "put quotes around the word."
        )
    if not isinstance(value, (str, int, float, os.PathLike)):
        raise TypeError
    return str(value)


def _array(path: str, value: Any, schema: Schema) -> list[Any]:
    parts = map(str.strip, value.split(",")) if isinstance(value, str) else value
    return [coerce(path, part, schema["items"]) for part in parts]


def _object(path: str, value: Any, schema: Schema) -> dict[str, Any]:
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = json.loads(value)
    elif isinstance(value, str):
        parts = next(csv.reader([value], skipinitialspace=True))  # quotes protect commas
        pairs = [part.split("=", 1) for part in parts]
        if len(dict(pairs)) < len(pairs):
            raise UserError(f"{setting(path)} lists a value twice: {value}.")
        value = {key: word.strip() for key, word in dict(pairs).items()}
    inner = schema["additionalProperties"]
    entries = dict(value).items()
    return {_key(path, key).strip(): coerce(path, entry, inner) for key, entry in entries}


def _key(path: str, key: Any) -> str:
    return str(key) if isinstance(key, bool) else _string(path, key, {})


_COERCIONS: dict[str, Callable[[str, Any, Schema], Any]] = {
    "integer": _number,
    "number": _number,
    "boolean": lambda path, value, schema: _BOOLEANS[str(value).lower()],
    "string": _string,
    "array": _array,
    "object": _object,
}


def _wanted(schema: Schema) -> str:
    """The values that a schema accepts, in words."""
    if schema["type"] == "array":
        return f"a list, each part {_wanted(schema['items'])}"
    if schema["type"] == "object":
        pairs = {
            "string": "VALUE=WORD pairs such as 0=negative,1=positive",
            "number": "NAME=NUMBER pairs such as span=1,prefix=1",
        }
        return pairs.get(schema["additionalProperties"].get("type", ""), "names with values")
    words = {"integer": "a whole number", "number": "a number", "boolean": "yes or no"}
    return words.get(schema["type"], "a text")


_LIMITS = {
    "minimum": operator.ge,
    "exclusiveMinimum": operator.gt,
    "maximum": operator.le,
    "exclusiveMaximum": operator.lt,
}


def _check_limits(path: str, value: Any, schema: Schema) -> None:
    if all(fits(value, schema[name]) for name, fits in _LIMITS.items() if name in schema):
        return
    low, above, high, below = map(schema.get, _LIMITS)
    if high is None and below is None:
        sizes = {(0, None): "not be negative", (None, 0): "be a positive number"}
        must = sizes.get((low, above)) or (f"be at least {low}" if above is None else "")
        must = must or f"be above {above:,}"
    else:
        start = f"from {low:,}" if low is not None else f"above {above:,}"
        must = f"be {start} {f'to {high:,}' if high is not None else f'to below {below:,}'}"
    raise UserError(f"{setting(path)} is {value:,}; it must {must}.")


def check_order(section: str, values: Mapping[str, Any], properties: Mapping[str, Schema]) -> None:
    """Check the values that must be below others."""
    for name, schema in properties.items():
        if "below" in schema:
            other = schema["below"]
            low, high = (values.get(key, properties[key].get("default")) for key in (name, other))
            if not low < high:
                raise UserError(
                    f"{setting(f'{section}.{name}')} is {low}; "
                    f"it must be below {setting(f'{section}.{other}')}, which is {high}."
                )
