"""The ingress of a fleet: passes each HTTP request to a replica. No torch here."""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from ray.exceptions import RayActorError
from ray.serve.exceptions import BackPressureError
from ray.serve.handle import DeploymentHandle
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from ..config.serve import ServeSettings
from .gate import DRAIN_SECONDS, DRAINED, PUBLIC, REQUEST_ID, TIMEOUT, admit
from .http_errors import GONE, HttpError, as_http
from .keys import Key, Keys
from .logs import JsonLog
from .requests import MIB, DeadlineExceeded

SERVED_BY = "x-served-by"
"""The header of an answer that names its replica."""
ATTEMPTS = 5
"""Replicas that a request is sent to, one after another, while they die or are full."""
PROBE_SECONDS = 2.0
"""How long a question whether the fleet is ready may take."""
SLACK = 2.0
"""Seconds that a replica has beyond a request's time to report that it is over."""
BUSY = (429, 503)
"""What a replica answers if its queue is full or it is shutting down."""


@dataclass(frozen=True)
class Forwarded:
    """A request on its way from the ingress to a replica."""

    scope: Mapping[str, Any]
    body: bytes
    prompt: str | None = None
    seconds: float = math.inf
    """The time that it has by its own header and body."""
    avoid: tuple[str, ...] = ()
    """The replicas that have refused it."""

    def within(self, seconds: float) -> "Forwarded":
        """The same request with less time."""
        name, headers = TIMEOUT.encode(), self.scope["headers"]
        try:
            least = min(float(dict(headers).get(name, math.inf)), max(seconds, 0.001))
        except ValueError:
            return self  # the replica says so
        limit = (name, f"{least:.3f}".encode())
        return replace(
            self, scope={**self.scope, "headers": [*(h for h in headers if h[0] != name), limit]}
        )


class Answer(StreamingResponse):
    """An answer of a replica. It does not wait for the client to go away: then Ray Serve cancels
    it."""

    def __init__(self, bodies: AsyncGenerator[bytes], start: Message) -> None:
        super().__init__(bodies, start["status"])
        self.bodies = bodies
        # Ray Serve's proxy adds the id, which is the same.
        self.raw_headers = [pair for pair in start["headers"] if pair[0] != REQUEST_ID.encode()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self.bodies):
            await self.stream_response(send)


class Ingress:
    """Passes each HTTP request to a replica, and to another one if that dies or is full."""

    def __init__(
        self, replicas: DeploymentHandle, settings: ServeSettings, keys: Keys, quiet: bool
    ) -> None:
        self.replicas, self.settings, self.keys = replicas, settings, keys
        self.max_body = int(settings.max_body * MIB)
        self.log = JsonLog(quiet=quiet, replica="ingress")

    async def __call__(self, http: Request) -> Response:
        try:
            request = await self._read(http)
            if request.scope["path"] == "/metrics" and request.scope["method"] == "GET":
                return await self._metrics(request)
            return await self._answer(request)
        except HttpError as error:
            return error.response()
        except ClientDisconnect:
            return Response(status_code=GONE)
        except Exception as error:
            self.log.error("failed", error)
            message = "Internal error in the fleet's ingress; its log has the details."
            return HttpError(500, message, "internal_error").response()

    async def _read(self, http: Request) -> Forwarded:
        """The request. A body that is refused is not passed on: the replica refuses it again."""
        names = ("method", "path", "query_string", "client", "http_version", "scheme", "server")
        headers = [(name.lower(), value) for name, value in http.scope["headers"]]
        scope = {
            **{name: http.scope.get(name) for name in names},
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "headers": headers,
            "root_path": "",
        }
        admitted = admit(http.scope["path"], dict(headers), self.keys, self.max_body)
        refused = not isinstance(admitted, Key)
        chunks, size, limit = [], 0, self.settings.timeout
        try:
            async with asyncio.timeout(min(DRAIN_SECONDS, limit) if refused else limit):
                async for chunk in http.stream():
                    size += len(chunk)
                    if not refused:
                        chunks.append(chunk)
                    if size > self.max_body * (DRAINED if refused else 1):
                        break
        except TimeoutError:
            if not refused:
                message = "The request did not arrive in time; send it again."
                raise HttpError(408, message) from None
        body = b"".join(chunks)
        fields = _fields_of(body)
        prompt = fields.get("model")
        return Forwarded(
            scope,
            body,
            prompt if isinstance(prompt, str) else None,
            _least(dict(headers).get(TIMEOUT.encode()), fields.get("timeout")),
        )

    async def _answer(self, request: Forwarded) -> Answer:
        """The answer of the first replica that gives one."""
        probe = request.scope["path"] in PUBLIC
        limit = PROBE_SECONDS if probe else self.settings.timeout
        until = time.monotonic() + min(limit, request.seconds)
        for attempt in range(1, ATTEMPTS + 1):
            left = until - time.monotonic()
            messages = self._ask(request if attempt == 1 else request.within(left))
            try:
                async with asyncio.timeout(max(left, 0) + (0 if probe else SLACK)):
                    start, *rest = await anext(messages)
                    if not rest:
                        rest = await anext(messages)
            except TimeoutError:
                break
            except BackPressureError:
                raise HttpError(
                    429,
                    "All replicas are full; try again in a second.",
                    "queue_full",
                    headers={"Retry-After": "1"},
                ) from None
            except RayActorError as error:
                self._warn(request, "a replica died; the request is sent to another", error)
                continue
            name = dict(start["headers"]).get(SERVED_BY.encode(), b"").decode()
            if start["status"] in BUSY and name not in request.avoid and attempt < ATTEMPTS:
                request = replace(request, avoid=(*request.avoid, name))
                await messages.aclose()
                continue
            return Answer(self._bodies(request, start, rest, messages), start)
        if request.seconds < limit and time.monotonic() >= until:
            raise as_http(DeadlineExceeded("The request timed out."))
        raise _unanswered("No replica answered in time; try again later.")

    async def _ask(self, request: Forwarded) -> AsyncGenerator[list[Message]]:
        """The messages of a replica, which stops when this is closed."""
        stream: Any = self.replicas.options(method_name="answer", stream=True).remote(request)
        finished = False
        try:
            async for messages in stream:
                yield messages
            finished = True
        finally:
            if not finished:
                stream.cancel()

    async def _bodies(
        self,
        request: Forwarded,
        start: Message,
        first: Iterable[Message],
        messages: AsyncGenerator[list[Message]],
    ) -> AsyncGenerator[bytes]:
        """The body in the pieces that the application sends. If its replica dies, what was sent
        cannot be taken back: a stream of events ends with an error, anything else is cut off."""
        async with aclosing(messages):
            yield b"".join(message.get("body", b"") for message in first)
            try:
                async for batch in messages:
                    yield b"".join(message.get("body", b"") for message in batch)
            except RayActorError as error:
                self._warn(request, "a replica died; its answer is cut off", error)
                kind = dict(start["headers"]).get(b"content-type", b"")
                if not kind.startswith(b"text/event-stream"):
                    raise
                message = "The replica that generated this answer died; send the request again."
                lost = HttpError(502, message, "replica_died")
                yield f"data: {json.dumps(lost.body())}\n\n".encode()

    async def _metrics(self, request: Forwarded) -> Response:
        """The metrics of all replicas, labelled, if the replica that is asked allows it."""
        answer = await self._answer(request)
        if answer.status_code != 200:
            return answer
        async for _ in answer.bodies:
            pass
        try:
            replies = await self.replicas.broadcast("metrics").results_async(
                timeout_s=self.settings.timeout, return_exceptions=True
            )
        except TimeoutError:
            raise _unanswered("A replica did not answer in time; try again later.") from None
        metrics = LabelledMetrics(
            reply for reply in replies if not isinstance(reply, BaseException)
        )
        return Response(generate_latest(metrics), media_type=CONTENT_TYPE_LATEST)

    def _warn(self, request: Forwarded, what: str, error: Exception) -> None:
        sent_id = dict(request.scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        self.log.warn(what, request_id=sent_id, error=type(error).__name__)


class LabelledMetrics(Collector):
    """The metrics of replicas as one registry, each sample with the name of its replica."""

    def __init__(self, replies: Iterable[tuple[str, Sequence[Metric]]]) -> None:
        self.metrics: dict[str, Metric] = {}
        for name, metrics in replies:
            for metric in metrics:
                known = Metric(metric.name, metric.documentation, metric.type)
                samples = self.metrics.setdefault(metric.name, known).samples
                samples += [
                    s._replace(labels={"replica": name, **s.labels}) for s in metric.samples
                ]

    def collect(self) -> Iterable[Metric]:
        return self.metrics.values()


def _unanswered(message: str) -> HttpError:
    return HttpError(503, message, "no_replica", headers={"Retry-After": "5"})


def _fields_of(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}  # the replica says so
    return parsed if isinstance(parsed, dict) else {}


def _least(*limits: Any) -> float:
    """The least of a request's limits in seconds. What is not a limit, the replica refuses."""
    seconds = [math.inf]
    for limit in limits:
        with suppress(TypeError, ValueError, OverflowError):
            seconds.append(float(limit))
    return min(value for value in seconds if value > 0)
