"""Errors in user input, and how they spell the settings they mention.

A message says what is wrong and what to do, in one plain sentence. It names a setting by its path
(`tuning.max_length`), because only the caller knows how the user wrote it: as a flag, a YAML key or
a Python argument.
"""

import difflib
import functools
import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

Spelling = Callable[[str, str | None], str]
"""Spells a setting's path, and the value to set it to (or None), as a user writes them."""

_MARK = re.compile("\x02([^\x02\x03]*)\x03(?:([^\x02\x03]*)\x03)?")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?")
_FLAT = ("config.", "target.", "tuning.", "task.", "run.")
"""Sections whose settings are unique without them."""


def setting(path: str, value: object = None) -> str:
    """A setting in a message, such as `lower {setting("tuning.lr")}`; with a value, the advice to
    set it to that value."""
    return f"\x02{path}\x03" + ("" if value is None else f"{value}\x03")


def as_argument(path: str, value: str | None = None) -> str:
    """As Python callers write it: `max_length`, `scoring='labels'`, `steps=400`."""
    if value is None:
        return _flat(path)
    return f"{_flat(path)}={value if _NUMBER.fullmatch(value) else repr(value)}"


def as_flag(path: str, value: str | None = None) -> str:
    """As it stands on the command line: `--max-length`, `--scoring labels`."""
    return f"--{_flat(path).replace('_', '-')}" + ("" if value is None else f" {value}")


def as_key(path: str, value: str | None = None) -> str:
    """As it stands in a YAML file: `max_length`, `scoring: labels`."""
    return _flat(path) + ("" if value is None else f": {value}")


def _flat(path: str) -> str:
    return functools.reduce(str.removeprefix, _FLAT, path)


_spelling: ContextVar[Spelling] = ContextVar("spelling", default=as_argument)


@contextmanager
def speaking(spelling: Spelling) -> Iterator[None]:
    """Inside, messages spell settings in this way by default."""
    token = _spelling.set(spelling)
    try:
        yield
    finally:
        _spelling.reset(token)


def spelled(message: str, spelling: Spelling | None = None) -> str:
    """The message with its settings written out, by default as whoever speaks writes them."""
    spell = spelling or _spelling.get()
    return _MARK.sub(lambda mark: spell(mark[1], mark[2]), message)


class UserError(Exception):
    """An error that the user can fix. Its text spells settings as whoever speaks writes them."""

    spelling: Spelling | None = None
    """How the command line spells the settings of this kind of error; None: as flags."""
    exit_code = 2
    """Of a command that ends with it: 2 for wrong input, 1 for a run that failed."""

    @property
    def message(self) -> str:
        """The message with its settings marked, for another error to quote."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return spelled(self.message)

    def spelled(self, spelling: Spelling) -> str:
        return spelled(self.message, spelling)


def require(module: str, message: str) -> Any:
    """A module of an optional package; `message` says how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(message) from None


def counted(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def listing(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def closest(word: object, names: Iterable[str]) -> str | None:
    """The name that a misspelled word most likely stands for; None: none is similar."""
    by_spelling = {name.lower(): name for name in map(str, names)}
    similar = difflib.get_close_matches(str(word).lower(), by_spelling, 1, 0.7)
    return by_spelling[similar[0]] if similar else None


def choices(word: object, names: Iterable[str]) -> str:
    """The end of a sentence about an unknown word: what was probably meant, and what there is."""
    names = list(map(str, names))
    similar = closest(word, names)
    start = f"did you mean {similar}? The choices are" if similar else "choose one of"
    return f"{start} {', '.join(names)}."
