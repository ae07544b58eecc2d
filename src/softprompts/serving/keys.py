"""API keys: who may use the server, and which of its prompts. No torch here.

A key file has a key per line, which may be followed by the prompts that the key may use; `*` stands
for any characters. Only digests of keys are kept, and comparing them takes as long for a wrong key
as for a right one.
"""

import hashlib
import hmac
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from ..errors import UserError, setting
from ..files import check_readable

VARIABLE = "SOFTPROMPTS_API_KEYS"
"""The environment variable with keys, in the format of a key file; commas also separate keys."""
MIN_LENGTH = 16
_SHOWN = 8  # hex digits of a digest in logs


@dataclass(frozen=True)
class Key:
    """A key: what it may use, and what logs call it."""

    name: str
    prompts: tuple[str, ...] | None = None
    """Patterns of the prompts it may use; None: all."""

    def allows(self, prompt: str) -> bool:
        return self.prompts is None or any(fnmatchcase(prompt, p) for p in self.prompts)


ANYONE = Key("anyone")
"""Any client of a server without keys."""


class Keys:
    """All keys of a server, by their digests; without any, everyone may use everything."""

    def __init__(self, keys: Iterable[tuple[str, Sequence[str]]] = ()) -> None:
        self._keys: dict[bytes, Key] = {}
        for secret, prompts in keys:
            digest = _digest(secret)
            if digest in self._keys:
                raise UserError(f"The key {secret[:4]}... is listed twice; list each key once.")
            self._keys[digest] = Key(digest.hex()[:_SHOWN], tuple(prompts) or None)

    def __len__(self) -> int:
        return len(self._keys)

    def find(self, secret: str | None) -> Key | None:
        """The key of a request; None if there is no such key. All keys are compared every time."""
        if not self._keys:
            return ANYONE
        digest, match = _digest(secret or ""), None
        for known, key in self._keys.items():
            if hmac.compare_digest(known, digest):
                match = key
        return match


def read_keys(path: str | Path | None = None, variable: str = VARIABLE) -> Keys:
    """The keys of a file and of the environment variable."""
    text = ""
    if path is not None:
        check_readable(Path(path))
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise UserError(f"The key file {path} cannot be read ({reason}).") from None
    keys = _parse(text, str(path)) + _parse(os.environ.get(variable, ""), variable, commas=True)
    if path is not None and not keys:
        raise UserError(f"The key file {path} holds no key; write one per line.")
    return Keys(keys)


def check_open(keys: Keys, host: str, allow: bool) -> None:
    """Refuse to serve other machines without keys, unless that is allowed."""
    if not len(keys) and not allow and host not in ("127.0.0.1", "::1", "localhost"):
        raise UserError(
            f"Anyone who can reach {host} could use the server; name a key file with "
            f"{setting('api_keys')}, set {VARIABLE}, or allow it with {setting('open')}."
        )


def _parse(text: str, source: str, commas: bool = False) -> list[tuple[str, list[str]]]:
    """Keys and their prompts; in a file, a prompt after a comma must not be taken for a key."""
    keys = []
    for line in text.splitlines():
        entries = line.partition("#")[0].split(",")
        if len(entries) > 1 and not commas:
            raise UserError(
                f"A line of {source} has a comma; write one key per line, and separate it and the "
                "names of its prompts with spaces."
            )
        for entry in entries:
            if not entry.strip():
                continue
            secret, *prompts = entry.split()
            if len(secret) < MIN_LENGTH or not (secret.isascii() and secret.isprintable()):
                raise UserError(
                    f"A key in {source} is too short or has non-ASCII characters; use at least "
                    f"{MIN_LENGTH} characters, such as the output of `openssl rand -hex 24`."
                )
            keys.append((secret, prompts))
    return keys


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
