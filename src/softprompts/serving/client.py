"""A client of `softprompts serve`. It needs only the standard library."""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from ..errors import UserError, closest, listing, setting
from ..tasks import TextFormat
from .requests import UnknownPrompt

VARIABLE = "SOFTPROMPTS_API_KEY"
"""The environment variable with the client's key."""
ROWS = 32
"""Rows of one request."""
REQUESTS = 4
"""Requests at a time."""
PATIENCE = 120.0
"""Seconds to keep retrying while the server is busy."""
_BUSY = (429, 503)

Row = Mapping[str, Any]
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
        self, prompt: str, rows: Sequence[Row], on_rows: OnRows | None = None
    ) -> list[tuple[str, dict[str, float]]]:
        """The label of each row, and the probabilities of all labels."""
        body = {"model": prompt}
        return [
            (item["label"], dict(zip(item["labels"], item["probs"], strict=True)))
            for reply in self._ask_all("/v1/classify", body, "input", rows, on_rows)
            for item in reply["data"]
        ]

    def complete(
        self, prompt: str, rows: Sequence[Row], on_rows: OnRows | None = None
    ) -> list[str]:
        """The generated answer to each row."""
        body = {"model": prompt, "scoring": "generate"}
        return [
            choice["text"].strip()
            for reply in self._ask_all("/v1/completions", body, "prompt", rows, on_rows)
            for choice in reply["choices"]
        ]

    def _ask_all(
        self, path: str, body: Row, name: str, rows: Sequence[Row], on_rows: OnRows | None
    ) -> Iterator[dict[str, Any]]:
        """The replies to requests of a few rows each, in order."""
        parts = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
        with ThreadPoolExecutor(REQUESTS) as pool:
            replies = pool.map(lambda part: self._ask(path, {**body, name: part}), parts)
            try:
                for part, reply in zip(parts, replies, strict=True):
                    if on_rows is not None:
                        on_rows(len(part))
                    yield reply
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _ask(self, path: str, body: Row | None = None) -> dict[str, Any]:
        """A reply; a busy server is asked again."""
        data = None if body is None else json.dumps(body, default=str).encode()
        until = time.monotonic() + PATIENCE
        while True:
            request = urllib.request.Request(self.url + path, data, self._headers)
            try:
                with self._open(request, timeout=self.timeout) as reply:
                    return self._parsed(reply.read())
            except urllib.error.HTTPError as error:
                with error:
                    wait = _seconds(error.headers.get("Retry-After"))
                    if error.code not in _BUSY or time.monotonic() + wait > until:
                        raise self._refusal(error) from None
                time.sleep(wait)
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
        kind = UnknownPrompt if error.code == 404 else UserError
        try:
            return kind(str(json.loads(error.read())["error"]["message"]))
        except (ValueError, KeyError, TypeError, OSError):
            return UserError(f"The server {self.url} answered with status {error.code}.")

    def _strange(self) -> UserError:
        return UserError(f"{self.url} does not reply like `softprompts serve`; correct the URL.")


def _seconds(retry_after: str | None) -> float:
    try:
        return min(max(float(retry_after or 1), 0.1), 60.0)
    except ValueError:
        return 1.0
