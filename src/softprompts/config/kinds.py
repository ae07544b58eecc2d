"""Tables of kinds: starts, shapes, routes, heads, optimisers.

A kind is a frozen dataclass of its options with a method `build`, registered under a name:

    @starts.register("zeros")
    @dataclass(frozen=True)
    class Zeros(Start): ...

The classes import torch. What a command line needs to know of the package's own kinds is therefore
in `kinds.json`, which `make schema` writes from the classes and a test keeps current.
"""

import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..errors import UserError, choices, closest, setting
from .plugins import load_plugins
from .schema import Choice, Schema, Settings, check_order, coerce, schema_of

K = TypeVar("K", bound=Settings)
FILE = Path(__file__).with_name("kinds.json")


class Table(Generic[K]):
    """Kinds of one part of a run, by name."""

    def __init__(self, part: str, path: str, home: str) -> None:
        self.part, self.path, self.home = part, path, home
        self._classes: dict[str, type[K]] = {}

    def register(self, kind: str) -> Callable[[type[K]], type[K]]:
        """Add a class to the table, from inside or outside the package."""

        def add(cls: type[K]) -> type[K]:
            taken = self._classes.get(kind)
            outside = cls.__module__ != self.home
            if taken not in (None, cls) or (outside and kind in _described()[self.part]):
                raise ValueError(f"There is already a {self.part} named {kind!r}.")
            cls.section = self.path
            self._classes[kind] = cls
            return cls

        return add

    def __iter__(self) -> Any:
        """All names; those of plugins only once these are loaded."""
        return iter(dict.fromkeys([*_described()[self.part], *self._classes]))

    def __getitem__(self, kind: str) -> type[K]:
        if kind in _described()[self.part]:
            importlib.import_module(self.home)
        elif kind not in self._classes:
            load_plugins()
        if kind not in self._classes:
            raise UserError(f"There is no {self.part} {kind!r}; {choices(kind, self)}")
        return self._classes[kind]

    def schema(self, kind: str) -> Schema:
        """The schema of a kind's options; the package's own kinds need no import for it."""
        described = _described()[self.part].get(kind)
        return describe(self[kind]) if described is None else described

    def check(self, choice: Choice) -> Choice:
        """The choice with its options converted to their types; unknown ones are an error."""
        schema = self.schema(choice.kind)
        known, name = schema["properties"], f"{self.part} {choice.kind!r}"
        unknown = [option for option in choice.options if option not in known]
        if unknown:
            similar = closest(unknown[0], known)
            hint = f"did you mean {similar}? Its" if similar else "its"
            names = ", ".join(known) or "none"
            raise UserError(
                f"The {name} has no option {unknown[0]!r}; {hint} options are: {names}."
            )
        missing = [option for option in schema["required"] if option not in choice.options]
        if missing:
            path = setting(f"{self.path}.{missing[0]}")
            raise UserError(f"The {name} needs its option {missing[0]!r}; set {path}.")
        options = {
            option: coerce(f"{self.path}.{option}", value, known[option])
            for option, value in choice.options.items()
        }
        check_order(self.path, options, known)
        return Choice(choice.kind, options)

    def make(self, choice: Choice) -> K:
        return self[choice.kind](**choice.options)


starts: "Table[Any]" = Table("start", "prompt.start", "softprompts.prompt.start")
shapes: "Table[Any]" = Table("shape", "prompt.shape", "softprompts.prompt.shape")
routes: "Table[Any]" = Table("route", "prompt.route", "softprompts.prompt.route")
heads: "Table[Any]" = Table("head", "prompt.head", "softprompts.prompt.head")
optimizers: "Table[Any]" = Table("optimizer", "tuning.optimizer", "softprompts.tuning.optim")
register_start, register_shape, register_route = starts.register, shapes.register, routes.register
register_head, register_optimizer = heads.register, optimizers.register
TABLES = {table.part: table for table in (starts, shapes, routes, heads, optimizers)}


def describe(cls: type[Settings]) -> Schema:
    """A kind's options, its docstring, and whether a route folds to a single prompt."""
    schema = {**schema_of(cls), "description": " ".join((cls.__doc__ or "").split())}
    return schema | {"folds_to_one": getattr(cls, "folds_to_one", False)}


@functools.cache
def _described() -> dict[str, dict[str, Schema]]:
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def describe_all() -> str:
    """What `kinds.json` should hold: the package's own kinds."""
    described: dict[str, dict[str, Schema]] = {}
    for table in TABLES.values():
        importlib.import_module(table.home)
        described[table.part] = {
            kind: describe(cls)
            for kind, cls in table._classes.items()
            if cls.__module__ == table.home
        }
    return json.dumps(described, indent=1, ensure_ascii=False) + "\n"
