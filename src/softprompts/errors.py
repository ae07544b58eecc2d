"""Errors of a person's input, and how the settings they are about are spelled.

A message says what is wrong and what to do, in one plain sentence. It names a setting by its path
(`tuning.max_length`), because only the caller knows how the person wrote it: as a flag, a key of a
YAML file, or an argument in Python.
"""

import re
from collections.abc import Callable, Sequence

Spelling = Callable[[str, str | None], str]
"""A setting's path, and a value to give it or None, as a person writes them."""

_MARK = re.compile("\x02([^\x02\x03]*)\x03(?:([^\x02\x03]*)\x03)?")
_FLAT = ("tuning.", "task.", "run.")
"""Sections whose settings are unique without them."""


def setting(path: str, value: object = None) -> str:
    """A setting in a message, such as `lower {setting("tuning.lr")}`; with a value, the advice to
    set it so."""
    return f"\x02{path}\x03" + ("" if value is None else f"{value}\x03")


def as_argument(path: str, value: str | None = None) -> str:
    """As Python callers write it: `max_length`, `scoring='labels'`."""
    return _flat(path) + ("" if value is None else f"={value!r}")


def as_flag(path: str, value: str | None = None) -> str:
    """As it stands on the command line: `--max-length`, `--scoring labels`."""
    return f"--{_flat(path).replace('_', '-')}" + ("" if value is None else f" {value}")


def as_key(path: str, value: str | None = None) -> str:
    """As it stands in a YAML file: `max_length`, `scoring: labels`."""
    return _flat(path) + ("" if value is None else f": {value}")


def _flat(path: str) -> str:
    section = next((section for section in _FLAT if path.startswith(section)), "")
    return path.removeprefix(section)


def spelled(message: str, spelling: Spelling = as_argument) -> str:
    """The message with its settings written out."""
    return _MARK.sub(lambda mark: spelling(mark[1], mark[2]), message)


class UserError(Exception):
    """Something a person can put right. Its text spells settings as Python arguments."""

    spelling: Spelling | None = None
    """How the command line spells the settings of this kind of error; None: as flags."""

    @property
    def message(self) -> str:
        """The message with its settings marked, for another error to quote."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return spelled(self.message)

    def spelled(self, spelling: Spelling) -> str:
        return spelled(self.message, spelling)


def listing(names: Sequence[str], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
