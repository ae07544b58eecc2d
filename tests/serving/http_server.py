"""Servers that tests really run: uvicorn in a thread, on a free port."""

import io
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from softprompts.config.serve import ServeSettings
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.keys import Keys
from softprompts.serving.logs import JsonLog
from softprompts.serving.server import create_app, make_server

from ..processes import wait_until


@dataclass
class Running:
    """A server that listens."""

    url: str
    engine: AsyncEngine
    log: io.StringIO

    @property
    def base_url(self) -> str:
        return f"{self.url}/v1"

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]

    def wait_for_line(self, **fields: Any) -> dict[str, Any]:
        """The first line of the log with these fields, which follows the answer."""
        lines: list[dict[str, Any]] = []

        def is_there() -> bool:
            lines[:] = [line for line in self.lines() if fields.items() <= line.items()]
            return bool(lines)

        wait_until(is_there)
        return lines[0]


@contextmanager
def running(
    engine: AsyncEngine, settings: ServeSettings | None = None, keys: Keys | None = None
) -> Iterator[Running]:
    settings = settings or ServeSettings()
    log, ready = io.StringIO(), threading.Event()
    app = create_app(engine, settings, keys or Keys(), JsonLog(log, texts=settings.log_texts))
    server = make_server(app, settings)
    server.on_ready = ready.set
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        assert ready.wait(30)
        try:
            yield Running(f"http://127.0.0.1:{listener.getsockname()[1]}", engine, log)
        finally:
            server.should_exit = True
            thread.join(30)


def ask(
    url: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any, dict[str, str]]:
    """Status, parsed body and headers of a plain request."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            status, text, got = reply.status, reply.read(), reply.headers
    except urllib.error.HTTPError as error:
        with error:
            status, text, got = error.code, error.read(), error.headers
    parsed = json.loads(text) if got.get_content_type() == "application/json" else text.decode()
    return status, parsed, {name.lower(): value for name, value in got.items()}
