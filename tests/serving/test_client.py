"""The client: rows in requests that the server takes, and errors that name the right row."""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

import pandas
import pytest

from softprompts.artifacts.file_names import CARD
from softprompts.backbone import Backbone
from softprompts.config.serve import ServeSettings
from softprompts.errors import UserError
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.client import Client
from softprompts.serving.server import limits_of

from .http_server import Running, running
from .test_engine import MOODS, TEXTS, tuned

LONG = "界" * 50_000
"""Less than 0.25 MiB, but more if it is escaped."""


@pytest.fixture(scope="module")
def library(tiny: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    for name, labels in {"mood": MOODS, "free": [], "broken": MOODS}.items():
        scoring = "labels" if labels else "generate"
        tuned(tiny, 1, labels, scoring=scoring, length=3).save(folder / name)
    (folder / "broken" / CARD).write_text("{}")
    return folder


@contextmanager
def served(backbone: Backbone, library: Path, **changes: Any) -> Iterator[Running]:
    settings = ServeSettings(**changes)
    with running(AsyncEngine(backbone, library, limits=limits_of(settings)), settings) as server:
        yield server


@pytest.fixture(scope="module")
def server(tiny: Backbone, library: Path) -> Iterator[Running]:
    with served(tiny, library, max_inputs=6, max_body=0.25) as server:
        yield server


def test_one_text_or_row_is_one_question(server: Running) -> None:
    client, text = Client(server.url), TEXTS[0]
    (answer,) = client.complete("free", [text])
    frame = pandas.DataFrame({"text": [text]})
    questions: list[Any] = [text, {"text": text}, frame]
    for question in questions:
        assert client.complete("free", question) == [answer]
        assert len(client.classify("mood", question)) == 1


def test_requests_are_as_small_as_the_server_wants_them(server: Running) -> None:
    client, counted = Client(server.url), list[int]()
    texts = [TEXTS[number % len(TEXTS)] for number in range(40)]
    expected = [client.classify("mood", [text])[0][0] for text in texts[: len(TEXTS)]]
    answers = [label for label, _ in client.classify("mood", texts, counted.append)]
    assert answers == [expected[number % len(TEXTS)] for number in range(40)]
    assert counted == [32, 8]
    assert len(client.classify("mood", [LONG] * 5)) == 5, "413: only one of them fits"


def test_a_queue_that_is_full_again_gets_fewer_rows() -> None:
    client, sizes = Client("http://127.0.0.1:1"), list[int]()

    def answer(request: Request, timeout: float) -> io.BytesIO:
        assert isinstance(request.data, bytes)
        texts = json.loads(request.data)["prompt"]
        sizes.append(len(texts))
        if len(texts) > 2:
            headers = Message()
            headers["Retry-After"] = "0"
            raise HTTPError(request.full_url, 429, "", headers, io.BytesIO(b"full"))
        return io.BytesIO(json.dumps({"choices": [{"text": text} for text in texts]}).encode())

    client._open = answer  # type: ignore[assignment]
    assert client.complete("free", TEXTS[:4]) == TEXTS[:4]
    assert sizes == [4, 4, 2, 2]


def test_errors_name_the_row_of_the_whole_call(server: Running) -> None:
    client = Client(server.url)
    with pytest.raises(UserError, match=r"^text 41: the column 'text' is empty"):
        client.complete("free", [*["good"] * 40, "", "good"])
    with pytest.raises(UserError, match=r"^text 33 has 100,001 characters"):
        client.classify("mood", [*["good"] * 32, "x" * 100_001])


def test_a_broken_prompt_is_not_an_unknown_one(server: Running) -> None:
    client = Client(server.url)
    with pytest.raises(UserError, match="The prompt 'broken' cannot be used; the server's log"):
        client.prompt("broken")
    with pytest.raises(UserError, match="has no prompt 'mod'; did you mean mood"):
        client.prompt("mod")


@pytest.mark.parametrize("key", ["a-secret-key\n", "a-secret-key-ø"])
def test_a_key_that_no_header_can_carry_is_refused_unseen(key: str) -> None:
    with pytest.raises(UserError, match="set SOFTPROMPTS_API_KEY to the key alone") as caught:
        Client("http://127.0.0.1:1", key)
    assert "secret" not in str(caught.value)


def test_text_that_is_no_unicode_is_the_servers_error(server: Running) -> None:
    with pytest.raises(UserError, match="not valid Unicode text"):
        Client(server.url).complete("free", ["\ud800"])
