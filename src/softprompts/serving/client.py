"""A client of `softprompts serve`. It needs only the standard library."""

import http.client
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from ..errors import UserError, closest, listing, setting
from ..tasks import TextFormat
from ..tasks.questions import Question, question_list
from .requests import TOO_MANY, UNKNOWN_PROMPT, UnknownPrompt

VARIABLE = "SOFTPROMPTS_API_KEY"
"""The environment variable with the client's key."""
ROWS = 32
"""Rows of one request, unless the server takes only fewer."""
REQUESTS = 4
"""Requests at a time."""
PATIENCE = 120.0
"""Seconds to keep retrying while the server is busy."""
_FULL, _TOO_LARGE = 429, 413
_BUSY = (_FULL, 503)
_NUMBERED = re.compile(r"text (\d+)")
"""How the server's sentences begin that are about one of several texts."""

Body = Mapping[str, Any]
OnRows = Callable[[int], object]


@dataclass(frozen=True)
class ServerPrompt:
    """What a client knows about a prompt on a server."""

    name: str
    form: TextFormat
    scoring: str

    @property
    def labels(self) -> list[str]:
        return self.form.labels


class TooManyRows(UserError):  # noqa: N818
    """The server takes no request of so many rows."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would send the key to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class Client:
    def __init__(self, url: str, key: str | None = None, timeout: float = 120.0) -> None:
        address = urlsplit(url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise UserError(
                f"{setting('server')} is {url!r}; give an address such as http://127.0.0.1:8000."
            )
        self.url = url.rstrip("/").removesuffix("/v1")
        self.timeout = timeout
        self._headers = {"Content-Type": "application/json"}
        if key and not (key.isascii() and key.isprintable()):
            raise UserError(
                "The API key has a line break or another character that no key has; set "
                f"{VARIABLE} to the key alone."
            )
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._open = urllib.request.build_opener(_NoRedirects).open

    def prompt(self, name: str) -> ServerPrompt:
        """A prompt by its name; an error if the server has none of that name."""
        try:
            details = self._ask(f"/v1/models/{quote(name, safe='')}")
            return ServerPrompt(name, TextFormat(**details["form"]), str(details["scoring"]))
        except UnknownPrompt:
            names = [model["id"] for model in self._ask("/v1/models")["data"]]
            similar = closest(name, names)
            hint = f"did you mean {similar}?" if similar else f"it has {listing(names) or 'none'}."
            raise UserError(f"The server {self.url} has no prompt {name!r}; {hint}") from None
        except (KeyError, TypeError):
            raise self._strange() from None

    def classify(
        self, prompt: str, rows: Sequence[Question], on_rows: OnRows | None = None
    ) -> list[tuple[str, dict[str, float]]]:
        """The label of each row, and the probabilities of all labels."""
        body = {"model": prompt}
        return [
            (item["label"], dict(zip(item["labels"], item["probs"], strict=True)))
            for reply in self._ask_all("/v1/classify", body, "input", rows, on_rows)
            for item in reply["data"]
        ]

    def complete(
        self, prompt: str, rows: Sequence[Question], on_rows: OnRows | None = None
    ) -> list[str]:
        """The generated answer to each row."""
        body = {"model": prompt, "scoring": "generate"}
        return [
            choice["text"].strip()
            for reply in self._ask_all("/v1/completions", body, "prompt", rows, on_rows)
            for choice in reply["choices"]
        ]

    def _ask_all(
        self, path: str, body: Body, name: str, rows: Sequence[Question], on_rows: OnRows | None
    ) -> Iterator[dict[str, Any]]:
        """The replies to requests of a few rows each, in order."""
        rows = question_list(rows)

        def ask(start: int, end: int) -> list[dict[str, Any]]:
            """The replies to some rows, in halves if they are too many."""
            try:
                return [self._ask(path, {**body, name: rows[start:end]}, end - start > 1)]
            except TooManyRows:
                if end - start == 1:
                    raise
                middle = (start + end) // 2
                return [*ask(start, middle), *ask(middle, end)]
            except UserError as error:
                raise _renumbered(error, start) from None

        starts = range(0, len(rows), ROWS)
        with ThreadPoolExecutor(REQUESTS) as pool:
            parts = pool.map(lambda start: ask(start, min(start + ROWS, len(rows))), starts)
            try:
                for start, replies in zip(starts, parts, strict=True):
                    if on_rows is not None:
                        on_rows(len(rows[start : start + ROWS]))
                    yield from replies
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _ask(self, path: str, body: Body | None = None, several: bool = False) -> dict[str, Any]:
        """A reply; a busy server is asked again, but only once for `several` rows, of which it
        might take fewer."""
        data = None if body is None else _encoded(body)
        until, waited = time.monotonic() + PATIENCE, False
        while True:
            request = urllib.request.Request(self.url + path, data, self._headers)
            try:
                with self._open(request, timeout=self.timeout) as reply:
                    return self._parsed(reply.read())
            except urllib.error.HTTPError as error:
                with error:
                    wait = _seconds(error.headers.get("Retry-After"))
                    full = several and waited and error.code == _FULL
                    if full or error.code not in _BUSY or time.monotonic() + wait > until:
                        raise self._refusal(error) from None
                time.sleep(wait)
                waited = True
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", None) or error or type(error).__name__
                raise UserError(
                    f"The server {self.url} cannot be reached ({reason}); start one with "
                    f"`softprompts serve`, or correct {setting('server')}."
                ) from None

    def _parsed(self, text: bytes) -> dict[str, Any]:
        try:
            reply = json.loads(text)
        except ValueError:
            raise self._strange() from None
        if not isinstance(reply, dict):
            raise self._strange()
        return reply

    def _refusal(self, error: urllib.error.HTTPError) -> UserError:
        """The server's own sentence."""
        if error.code == 401 and "Authorization" in self._headers:
            return UserError(f"The server {self.url} refused the API key in {VARIABLE}.")
        if error.code == 401:
            return UserError(f"The server {self.url} requires an API key; set {VARIABLE}.")
        message, code = f"The server {self.url} answered with status {error.code}.", None
        with suppress(ValueError, KeyError, TypeError, OSError):
            reply = json.loads(error.read())["error"]
            message, code = str(reply["message"]), reply["code"]
        if error.code in (_FULL, _TOO_LARGE) or code == TOO_MANY:
            return TooManyRows(message)
        return UnknownPrompt(message) if code == UNKNOWN_PROMPT else UserError(message)

    def _strange(self) -> UserError:
        return UserError(f"{self.url} does not reply like `softprompts serve`; correct the URL.")


def _encoded(body: Body) -> bytes:
    """As UTF-8, which is shorter than escapes but for what is no valid Unicode."""
    return json.dumps(body, default=str, ensure_ascii=False).encode("utf-8", "backslashreplace")


def _renumbered(error: UserError, before: int) -> UserError:
    """An error that counts the texts of its request, with the number of those before it added."""
    match = _NUMBERED.match(error.message)
    if match is None:
        return error
    return UserError(f"text {before + int(match[1])}{error.message[match.end() :]}")


def _seconds(retry_after: str | None) -> float:
    try:
        return min(max(float(retry_after or 1), 0.1), 60.0)
    except ValueError:
        return 1.0
