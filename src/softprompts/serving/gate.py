"""What every HTTP request passes: its id, its key, the size of its body, its line in the log."""

import asyncio
import base64
import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .http_errors import GONE, HttpError
from .keys import ANYONE, Key, Keys
from .logs import JsonLog
from .metrics import OTHER, Metrics

PUBLIC = frozenset({"/health", "/ready"})
"""The paths that need no key."""
STUDIO = "/studio"
"""The pages for browsers, which ask for a key and send it as the password of Basic authentication.
All other paths refuse that: a browser would send it along with forms of other sites."""
REQUEST_ID = "x-request-id"
TIMEOUT = "x-request-timeout"
"""The header with the seconds that a request has."""
_SAFE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_EXCHANGE = "softprompts.exchange"
DRAINED = 8
"""Bodies that are too large are read up to this multiple of the limit, so that clients that send
before they listen see the error."""
DRAIN_SECONDS = 5.0
"""How long they are read at most."""


@dataclass
class Exchange:
    """A request and what is known about its answer, for logs and metrics."""

    request_id: str
    key: Key = ANYONE
    began: float = field(default_factory=time.perf_counter)
    prompt: str | None = None
    """The prompt asked for, once it is known to exist."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    first_token: float | None = None
    """Seconds until the first piece of the answer."""
    status: int = 0
    texts: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began


def exchange_of(request: Request) -> Exchange:
    exchange: Exchange = request.scope[_EXCHANGE]
    return exchange


def failure(exchange: Exchange) -> HttpError:
    """What a client sees of an internal error."""
    message = f"Internal error; the server's log has the details, at request {exchange.request_id}."
    return HttpError(500, message, "internal_error")


def _secret(sent: str, browser: bool) -> str | None:
    """The key in the header of a client, or the password of a browser."""
    scheme, _, secret = sent.partition(" ")
    if scheme.lower() == "bearer":
        return secret.strip()
    if scheme.lower() != "basic" or not browser:
        return None
    try:
        return base64.b64decode(secret, validate=True).decode("latin-1").partition(":")[2]
    except ValueError:
        return None


def admit(path: str, headers: Mapping[bytes, bytes], keys: Keys, max_body: int) -> Key | HttpError:
    """The key of a request, or why the request is refused before its body is read."""
    browser = path == STUDIO or path.startswith(f"{STUDIO}/")
    sent = headers.get(b"authorization", b"").decode("latin-1")
    key = ANYONE if path in PUBLIC else keys.find(_secret(sent, browser))
    if key is None:
        challenge = 'Basic realm="API key as the password"' if browser else "Bearer"
        return HttpError(
            401,
            "The API key is missing or wrong; send one as Authorization: Bearer KEY.",
            "invalid_api_key",
            headers={"WWW-Authenticate": challenge},
        )
    length = headers.get(b"content-length", b"0")
    if length.isdigit() and int(length) > max_body:
        return _too_large(max_body)
    return key


def _too_large(max_body: int) -> HttpError:
    size = f"{max_body / 2**20:,.3g} MiB"
    return HttpError(413, f"The request is larger than {size}; send fewer or shorter texts.")


class Gate:
    """ASGI middleware around the whole application."""

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        log: JsonLog,
        metrics: Metrics,
        max_body: int,
        timeout: float,
    ) -> None:
        self.app, self.keys, self.log, self.metrics = app, keys, log, metrics
        self.max_body, self.timeout = max_body, timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        sent_id = headers.get(REQUEST_ID.encode(), b"").decode("latin-1")
        exchange = Exchange(sent_id if _SAFE_ID.fullmatch(sent_id) else uuid.uuid4().hex)
        scope[_EXCHANGE] = exchange

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                with_id = (REQUEST_ID.encode(), exchange.request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), with_id]}
            await send(message)

        try:
            admitted = admit(scope["path"], headers, self.keys, self.max_body)
            if isinstance(admitted, Key):
                exchange.key = admitted
                await self.app(scope, self._limited(receive), send_with_id)
            else:
                await self._drain(receive, headers)
                await admitted.response()(scope, receive, send_with_id)
        except Exception as error:
            self.log.error("failed", error, request_id=exchange.request_id)
            if not exchange.status:
                await failure(exchange).response()(scope, receive, send_with_id)
        finally:
            self._finish(scope, exchange)

    async def _drain(self, receive: Receive, headers: Mapping[bytes, bytes]) -> None:
        """Read a body that is refused, within bounds."""
        left, more = DRAINED * self.max_body, headers.get(b"content-length", b"0") != b"0"
        try:
            async with asyncio.timeout(min(DRAIN_SECONDS, self.timeout)):
                while more and left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    more = message.get("more_body", False)
        except TimeoutError:
            pass

    def _limited(self, receive: Receive) -> Receive:
        """`receive` that refuses a body that is too large or comes too slowly."""
        size, complete = 0, False

        async def limited() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout(self.timeout):
                    message = await receive()
            except TimeoutError:
                raise HttpError(408, "The request did not arrive in time; send it again.") from None
            if message["type"] == "http.disconnect":
                raise HttpError(GONE, "The client closed the connection.")
            size += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if size > self.max_body:
                raise _too_large(self.max_body)
            return message

        return limited

    def _finish(self, scope: Scope, exchange: Exchange) -> None:
        """Log and count a request."""
        path = getattr(scope.get("route"), "path", OTHER)
        tokens = {"prompt": exchange.prompt_tokens, "completion": exchange.completion_tokens}
        status, seconds = exchange.status, exchange.seconds
        self.metrics.count(path, status, seconds, exchange.prompt, tokens, exchange.first_token)
        if scope["path"] in PUBLIC and status == 200:
            return  # asked for every few seconds
        self.log.info(
            "request",
            request_id=exchange.request_id,
            key=exchange.key.name,
            method=scope["method"],
            route=path,
            status=status,
            prompt=exchange.prompt,
            seconds=round(seconds, 4),
            prompt_tokens=exchange.prompt_tokens,
            completion_tokens=exchange.completion_tokens,
            **(exchange.texts if self.log.texts else {}),
        )
