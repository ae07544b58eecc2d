"""Priorities and deadlines of HTTP requests."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from softprompts.backbone import Backbone
from softprompts.config.serve import ServeSettings
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.jobs import Job
from softprompts.serving.keys import Keys
from softprompts.serving.server import limits_of

from ..processes import wait_until
from .http_server import Running, ask, running
from .test_engine import MOODS, tuned

ONE, OTHER = "the-key-of-one-team", "the-key-of-the-others"
LONG = {"model": "free", "prompt": "x", "max_tokens": 400, "temperature": 2, "seed": 1}
SHORT = {"model": "free", "prompt": "x", "max_tokens": 1}


@pytest.fixture(scope="module")
def server(tiny: Backbone) -> Iterator[Running]:
    """It generates one answer at a time."""
    prompts = {
        "free": tuned(tiny, 1, [], scoring="generate", length=3),
        "mood": tuned(tiny, 2, MOODS, scoring="labels", length=3),
    }
    settings = ServeSettings(slots=1, min_priority=-5)
    engine = AsyncEngine(tiny, prompts=prompts, limits=limits_of(settings))
    with running(engine, settings, Keys([(ONE, ()), (OTHER, ())])) as server:
        yield server


def complete(
    server: Running, body: dict[str, Any], key: str = ONE, **headers: str
) -> tuple[int, Any, dict[str, str]]:
    sent = {"Authorization": f"Bearer {key}", **headers}
    return ask(f"{server.base_url}/completions", body, sent)


def test_lower_values_are_answered_first_whoever_asks(server: Running) -> None:
    stats, threads = server.engine.stats, list[threading.Thread]()

    def start(request_id: str, body: dict[str, Any], key: str) -> None:
        headers = {"X-Request-Id": request_id}
        work = threading.Thread(target=complete, args=(server, body, key), kwargs=headers)
        work.start()
        threads.append(work)

    start("first", LONG, ONE)
    wait_until(lambda: stats().decoding == 1)
    asked = [(ONE, 10), (OTHER, 0), (ONE, -1), (OTHER, -5), (ONE, 0), (ONE, -1)]
    for waiting, (key, priority) in enumerate(asked, 1):
        start(f"priority:{priority}", {**SHORT, "priority": priority}, key)
        wait_until(lambda waiting=waiting: stats().waiting == waiting)
    for thread in threads:
        thread.join(30)
    wait_until(lambda: len(server.lines()) == 7)
    order = [line["request_id"].removeprefix("priority:") for line in server.lines()]
    assert order == ["first", "-5", "-1", "-1", "0", "0", "10"]


def test_keys_have_equal_shares(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many texts the other one has sent before."""
    worker, may_begin, rows = server.engine.worker, threading.Event(), list[int]()
    score, stats, threads = worker._score, server.engine.stats, list[threading.Thread]()
    before = stats().rows

    def slow_score(jobs: list[Job]) -> None:
        may_begin.wait(30)
        score(jobs)
        time.sleep(0.05)  # in which whoever has all answers can say so

    def classify(key: str, texts: int) -> None:
        body = {"model": "mood", "input": ["word " * 60] * texts}
        status, _, _ = ask(f"{server.base_url}/classify", body, {"Authorization": f"Bearer {key}"})
        rows.append(stats().rows - before if status == 200 else -1)

    def start(key: str, texts: int, waiting: int) -> None:
        threads.append(threading.Thread(target=classify, args=(key, texts)))
        threads[-1].start()
        wait_until(lambda: stats().waiting == waiting)

    monkeypatch.setattr(worker, "_score", slow_score)
    monkeypatch.setattr(worker._score_pace, "budget", 4 * 64)
    monkeypatch.setattr(worker._score_pace, "choose", lambda tokens, seconds: None)
    start(ONE, 40, 36)  # four are taken, and wait for the event
    start(OTHER, 1, 37)
    may_begin.set()
    for thread in threads:
        thread.join(30)
    assert rows[1] == 41
    assert 0 < rows[0] <= 20, "a turn of the first key has 512 tokens, and a text 64"


def test_priorities_have_a_limit(server: Running) -> None:
    status, reply, _ = complete(server, {**SHORT, "priority": -6})
    assert status == 400
    assert "this server accepts -5 and above" in reply["error"]["message"]
    assert complete(server, {**SHORT, "priority": -5})[0] == 200
    assert complete(server, {**SHORT, "priority": "first"})[0] == 400
    body = {"model": "mood", "input": "x", "priority": -6}
    url = f"{server.base_url}/classify"
    headers = {"Authorization": f"Bearer {ONE}"}
    assert ask(url, body, headers)[0] == 400
    assert ask(url, {**body, "priority": 3}, headers)[0] == 200
    assert ServeSettings().min_priority == 0, "nobody gets ahead of others unless that is allowed"


def test_a_header_limits_the_time_too(server: Running) -> None:
    status, reply, _ = complete(server, LONG, **{"X-Request-Timeout": "0.05"})
    assert (status, reply["error"]["code"]) == (504, "timeout")
    status, reply, _ = complete(server, {**LONG, "timeout": 0.05}, **{"X-Request-Timeout": "9"})
    assert (status, reply["error"]["code"]) == (504, "timeout")
    assert complete(server, SHORT, **{"X-Request-Timeout": "1e9"})[0] == 200
    for wrong in ("soon", "0", "-1", "nan"):
        status, reply, _ = complete(server, SHORT, **{"X-Request-Timeout": wrong})
        assert status == 400
        assert "X-Request-Timeout must be a positive number" in reply["error"]["message"]
