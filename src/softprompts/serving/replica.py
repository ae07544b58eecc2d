"""A replica of a fleet: the model, and the whole application of `server.py`."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.core import Metric
from ray import serve
from starlette.types import Message

from ..backbone import load_backbone
from ..config.serve import ServeSettings
from .async_engine import AsyncEngine
from .ingress import SERVED_BY, Forwarded
from .keys import Keys
from .logs import JsonLog
from .server import create_app, limits_of


@dataclass(frozen=True)
class Model:
    """What every replica loads; its folders are shared by the machines of the cluster."""

    name: str
    folders: tuple[Path, ...]
    dtype: str = "auto"
    device: str = "auto"
    trust_remote_code: bool = False


class Replica:
    """A copy of the model with the application, asked by the ingress."""

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, model: Model, settings: ServeSettings, keys: Keys, quiet: bool
    ) -> None:
        self.name = serve.get_replica_context().replica_id.unique_id
        log = JsonLog(quiet=quiet, texts=settings.log_texts, replica=self.name)
        log.take_over("softprompts", "transformers")
        backbone = load_backbone(model.name, model.dtype, model.device, model.trust_remote_code)
        self.engine = AsyncEngine(backbone, model.folders, limits=limits_of(settings))
        self.app = create_app(self.engine, settings, keys, log)
        await self.engine.start()

    def check_health(self) -> None:
        """Called by Ray Serve, which replaces a replica that raises."""
        if not self.engine.running:
            raise RuntimeError("The engine's thread has ended.")

    async def answer(self, request: Forwarded) -> AsyncIterator[list[Message]]:
        """The application's ASGI messages, as many at a time as there are."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        unread, gone = [request.body], asyncio.Event()

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                served_by = (SERVED_BY.encode(), self.name.encode())
                message = {**message, "headers": [*message.get("headers", ()), served_by]}
            messages.put_nowait(message)

        work = asyncio.create_task(self.app({**request.scope}, receive, send))
        work.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            ended = False
            while not ended:
                batch = [await messages.get()]
                while not messages.empty():
                    batch.append(messages.get_nowait())
                ended = batch[-1] is None
                if sent := [message for message in batch if message is not None]:
                    yield sent
        finally:
            gone.set()  # the application stops what nobody waits for

    def metrics(self) -> tuple[str, list[Metric]]:
        return self.name, list(self.app.state.metrics.registry.collect())

    def prompts(self) -> int:
        return len(self.engine.names())
