"""The HTTP server: OpenAI's routes on an `AsyncEngine`, where `model` names a prompt."""

import asyncio
import json
import math
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from ..config.serve import ServeSettings
from ..errors import UserError
from ..tasks import Row
from ..version import __version__
from .answers import Asker, unless_gone
from .async_engine import AsyncEngine
from .concurrency import together
from .gate import TIMEOUT, Exchange, Gate, exchange_of, failure
from .http_errors import GONE, HttpError, as_http, unknown_prompt
from .keys import Keys, read_keys
from .logs import JsonLog
from .metrics import Metrics
from .openai_api import (
    Ask,
    Body,
    ChatRequest,
    ClassifyRequest,
    CompletionRequest,
    EmbeddingRequest,
    Question,
    SearchRequest,
    in_words,
)
from .replies import Json, Reply, classification, embeddings, model_details, model_entry
from .requests import MIB, TOO_MANY, BadRequest, Limits, Piece, ServedPrompt
from .studio import build as build_studio

Pieces = AsyncGenerator[tuple[int, Piece]]
FAREWELL = 2
"""Seconds for the errors of requests that the server gives up at its end."""


def limits_of(settings: ServeSettings) -> Limits:
    return Limits(
        queue=settings.max_queue,
        batch_rows=settings.batch_rows,
        latency=settings.latency / 1000,
        slots=settings.slots,
        max_tokens=settings.max_tokens,
        max_choices=settings.max_choices,
        max_characters=settings.max_characters,
        timeout=settings.timeout,
        device_bytes=settings.device_memory * MIB,
        memory_bytes=settings.memory * MIB,
        prefix_bytes=settings.prefix_memory * MIB,
        cache_bytes=settings.cache_memory * MIB,
    )


class Api:
    def __init__(self, engine: AsyncEngine, settings: ServeSettings, log: JsonLog) -> None:
        self.engine, self.settings, self.log = engine, settings, log
        self.metrics = Metrics(engine.stats, settings.metric_prompts)
        name = engine.backbone.name
        self.backbone = Path(name).name if os.path.isdir(name) else name
        self.fingerprint = engine.backbone.fingerprint

    # -- the server itself -------------------------------------------------------------------------

    async def health(self) -> Json:
        """Whether the process is alive."""
        return {"status": "ok", "version": __version__}

    async def ready(self) -> Response:
        """Whether requests are accepted."""
        ready = self.engine.running
        status = {"status": "ready" if ready else "not ready", "model": self.backbone}
        return JSONResponse(status, 200 if ready else 503)

    async def prometheus(self, request: Request) -> Response:
        """Metrics for Prometheus; they name all prompts."""
        self._check_unrestricted(request)
        return Response(self.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    # -- prompts -----------------------------------------------------------------------------------

    async def models(self, request: Request) -> Json:
        """All prompts that the key may use."""
        key = exchange_of(request).key
        prompts = await asyncio.to_thread(self.engine.prompts)
        data = [model_entry(p, self.backbone) for p in prompts if key.allows(p.name)]
        return {"object": "list", "data": data}

    async def model(self, name: str, request: Request) -> Json:
        """One prompt: its task, labels and scores."""
        return model_details(await self._served(name, exchange_of(request)), self.backbone)

    async def embed(self, body: EmbeddingRequest, request: Request) -> Json:
        """Task embeddings: of prompts by their names, or of the task of labelled rows."""
        if body.model != self.backbone:
            raise HttpError(
                404,
                f"There is no model {body.model[:100]!r} to embed tasks with; name the backbone, "
                f"{self.backbone!r}.",
                "model_not_found",
                "model",
            )
        inputs = [body.input] if isinstance(body.input, str) else body.input
        self._check_count(inputs, self.settings.max_inputs)
        if isinstance(inputs[0], str):
            vectors = []
            for name in map(str, inputs):
                await self._served(name, exchange_of(request))
                vectors.append(await asyncio.to_thread(self.engine.embedding, name))
        else:
            self._check_unrestricted(request)
            rows = [row for row in inputs if isinstance(row, dict)]
            work = self.engine.embed(rows, timeout=self._time(body, request))
            vectors = [await unless_gone(request, work)]
        return embeddings(self.backbone, vectors, body.encoding_format == "base64")

    async def search(self, body: SearchRequest, request: Request) -> Json:
        """The prompts that predict labelled rows best."""
        self._check_count(body.rows, self.settings.max_inputs)
        key = exchange_of(request).key
        names = [n for n in await asyncio.to_thread(self.engine.names) if key.allows(n)]
        time = self._time(body, request)
        search = self.engine.search(body.rows, body.top, names=names, timeout=time)
        fits = await unless_gone(request, search)
        return {"object": "list", "data": [{"id": fit.name, "score": fit.score} for fit in fits]}

    # -- answers -----------------------------------------------------------------------------------

    async def classify(self, body: ClassifyRequest, request: Request) -> Response:
        """The label of each text, and the probabilities of all labels."""
        exchange = exchange_of(request)
        served = await self._served(body.model, exchange)
        questions = self._checked(body.questions(), served)
        asker = self._asker(request, body)
        rows = await unless_gone(request, together(map(asker.classify, questions)))
        exchange.prompt_tokens = sum(row.prompt_tokens for row in rows)
        exchange.texts = {"input": questions, "output": [row.label for row in rows]}
        # FastAPI would look at every value of a dictionary
        return JSONResponse(classification(body.model, exchange.request_id, rows))

    async def completions(self, body: CompletionRequest, request: Request) -> Response:
        """An answer, or several, to each text."""
        return await self._complete(body, request)

    async def chat(self, body: ChatRequest, request: Request) -> Response:
        """An answer, or several, to a message."""
        return await self._complete(body, request)

    async def _complete(self, body: CompletionRequest | ChatRequest, request: Request) -> Response:
        exchange = exchange_of(request)
        served = await self._served(body.model, exchange)
        questions = self._checked(body.questions(), served)
        reply = Reply(body, exchange.request_id, self.fingerprint)
        exchange.texts = {"input": questions}
        labels = (body.scoring or served.card.scoring) == "labels"
        pieces = self._asker(request, body).pieces(questions, body.as_sampling(), labels)
        if not body.stream:
            await unless_gone(request, self._collect(pieces, reply, exchange))
            return JSONResponse(reply.whole())
        first = await unless_gone(request, anext(pieces))
        exchange.first_token = exchange.seconds
        return StreamingResponse(
            self._events(first, pieces, reply, exchange),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"},
        )

    async def _collect(self, pieces: Pieces, reply: Reply, exchange: Exchange) -> None:
        try:
            async with aclosing(pieces):
                async for number, piece in pieces:
                    reply.add(number, piece)
        finally:
            self._count(reply, exchange)

    async def _events(
        self, first: tuple[int, Piece], pieces: Pieces, reply: Reply, exchange: Exchange
    ) -> AsyncIterator[str]:
        """Server-sent events: a chunk for each piece, then the usage if asked for."""
        try:
            async with aclosing(pieces):
                yield _event(reply.chunk(*first))
                async for number, piece in pieces:
                    yield _event(reply.chunk(number, piece))
            if reply.with_usage:
                yield _event(reply.last_chunk())
            yield "data: [DONE]\n\n"
        except (GeneratorExit, asyncio.CancelledError):
            exchange.status = GONE
            raise
        except UserError as error:
            yield _failed(as_http(error, exchange.prompt or ""), exchange)
        except Exception as error:
            self.log.error("failed", error, request_id=exchange.request_id)
            yield _failed(failure(exchange), exchange)
        finally:
            self._count(reply, exchange)

    def _count(self, reply: Reply, exchange: Exchange) -> None:
        exchange.prompt_tokens = sum(reply.prompt_tokens.values())
        exchange.completion_tokens = reply.completion_tokens
        exchange.texts["output"] = reply.texts

    # -- checks ------------------------------------------------------------------------------------

    async def _served(self, name: str, exchange: Exchange) -> ServedPrompt:
        """A prompt by its name, if the key may use it."""
        if not exchange.key.allows(name):
            raise unknown_prompt(name)
        served = self.engine.known_prompt(name)
        if served is None:
            try:
                served = await asyncio.to_thread(self.engine.prompt, name)  # it may read files
            except UserError as error:
                raise as_http(error, name) from None
        exchange.prompt = name
        return served

    def _check_unrestricted(self, request: Request) -> None:
        """Refuse a request about all prompts with a key that may use only some."""
        if exchange_of(request).key.prompts is not None:
            raise HttpError(403, "This request covers all prompts, but this key may use only some.")

    def _asker(self, request: Request, body: Ask) -> Asker:
        if body.priority < self.settings.min_priority:
            raise BadRequest(
                f"priority is {body.priority}; this server accepts "
                f"{self.settings.min_priority} and above, and answers lower values first."
            )
        exchange, time = exchange_of(request), self._time(body, request)
        return Asker(self.engine, exchange.prompt or "", exchange.key, time, -body.priority)

    def _time(self, body: Body | SearchRequest, request: Request) -> float:
        """The seconds that a request has: the least of its own limits and the server's."""
        try:
            header = float(request.headers.get(TIMEOUT, self.settings.timeout))
        except ValueError:
            header = 0
        if not header > 0:
            raise BadRequest("The header X-Request-Timeout must be a positive number of seconds.")
        return min(body.timeout or header, header, self.settings.timeout)

    def _check_count(self, inputs: Sequence[object], most: int) -> None:
        if not inputs:
            raise BadRequest("A request needs inputs, and this one has none; send some.")
        if len(inputs) > most:
            raise HttpError(
                400,
                f"A request has at most {most:,} inputs, and this one has {len(inputs):,}; "
                "split it.",
                TOO_MANY,
            )

    def _checked(self, questions: list[Question], served: ServedPrompt) -> list[Question]:
        self._check_count(questions, min(self.settings.max_inputs, self.engine.limits.queue))
        form = served.card.task.form
        columns = [] if form is None else form.columns
        if len(columns) > 1 and any(isinstance(question, str) for question in questions):
            raise BadRequest(
                f"The prompt {served.name} reads the columns {', '.join(columns)}, not one text; "
                "send objects with these columns to /v1/completions or /v1/classify."
            )
        if form is not None and len(questions) > 1:  # the engine sees one, and cannot say which
            for number, question in enumerate(questions, 1):
                values = {columns[0]: question} if isinstance(question, str) else question
                for text in form.inputs(Row(values, f"text {number}")):
                    self.engine.limits.check_length(text, f"text {number}")
        return questions


def _event(data: Json) -> str:
    return f"data: {json.dumps(data, ensure_ascii=True)}\n\n"


def _failed(error: HttpError, exchange: Exchange) -> str:
    """The last event of a stream that began with status 200; logs and metrics have the error's."""
    exchange.status = error.status_code
    return _event(error.body())


def create_app(
    engine: AsyncEngine,
    settings: ServeSettings | None = None,
    keys: Keys | None = None,
    log: JsonLog | None = None,
) -> FastAPI:
    """The application, for any ASGI server. It starts the engine, and closes it at the end.

    The keys are by default those of `settings.api_keys` and of the environment variable. The
    engine's own limits (queue, batches, memory) are those of its `Limits`.
    """
    settings = settings or ServeSettings()
    keys = read_keys(settings.api_keys or None) if keys is None else keys
    log = log or JsonLog(texts=settings.log_texts)
    max_body = int(settings.max_body * MIB)
    api = Api(engine, settings, log)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        try:
            yield
        finally:
            try:
                async with asyncio.timeout(settings.grace):
                    await engine.close()
            except TimeoutError:
                await engine.close(finish=False)

    app = FastAPI(
        title="softprompts", version=__version__, lifespan=lifespan, summary="Prompts by name."
    )
    routes: dict[str, Callable[..., Any]] = {
        # the busiest first, because they are tried in order
        "POST /v1/classify": api.classify,
        "POST /v1/completions": api.completions,
        "POST /v1/chat/completions": api.chat,
        "GET /health": api.health,
        "GET /ready": api.ready,
        "GET /metrics": api.prometheus,
        "GET /v1/models": api.models,
        "GET /v1/models/{name:path}": api.model,
        "POST /classify": api.classify,  # vLLM's own path
        "POST /v1/embeddings": api.embed,
        "POST /v1/search": api.search,
    }
    for route, endpoint in routes.items():
        method, path = route.split()
        app.add_api_route(path, endpoint, methods=[method], response_model=None)
    if settings.studio:
        studio = build_studio(
            engine, studies=settings.studies, timeout=settings.timeout, max_body=max_body
        )
        app.include_router(studio)
    _add_error_handlers(app)
    app.state.engine, app.state.metrics = engine, api.metrics
    app.add_middleware(
        Gate,
        keys=keys,
        log=log,
        metrics=api.metrics,
        max_body=max_body,
        timeout=settings.timeout,
    )
    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if isinstance(error, HttpError):
            return error.response()
        message = f"There is nothing at {request.method} {request.url.path[:100]!r}."
        if error.status_code not in (404, 405):
            message = "The body cannot be read as JSON; send an object with the parameters."
        return HttpError(error.status_code, message, headers=error.headers).response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return HttpError(400, in_words(error.errors())).response()

    @app.exception_handler(UserError)
    async def refused_by_engine(request: Request, error: UserError) -> Response:
        return as_http(error, exchange_of(request).prompt or "").response()


# -- running ---------------------------------------------------------------------------------------


class Server(uvicorn.Server):
    """Calls a function once the server listens, and one when its grace has passed."""

    on_ready: Callable[[], object] | None = None

    def __init__(self, config: uvicorn.Config, grace: float, on_late: Callable[[], object]) -> None:
        super().__init__(config)
        self.grace, self.on_late = grace, on_late

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.on_ready is not None:
            self.on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        late = asyncio.get_running_loop().call_later(self.grace, self.on_late)
        await super().shutdown(sockets)
        late.cancel()


def make_server(app: FastAPI, settings: ServeSettings) -> Server:
    """A server of the application; `run(sockets=[...])` runs it until SIGTERM or SIGINT.

    Requests that are not finished in time end with an error, for which they have some seconds.
    """
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=math.ceil(settings.grace) + FAREWELL,
        server_header=False,
    )
    give_up = partial(app.state.engine.worker.close, finish=False)
    return Server(config, settings.grace, give_up)
