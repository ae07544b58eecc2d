"""Where a fleet sends a request, and what becomes of it when a replica dies: without a cluster."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="Ray Serve is not installed (softprompts[ray])")

from fastapi import Request
from prometheus_client import generate_latest
from ray import serve
from ray.exceptions import ActorDiedError

from softprompts.config.serve import ServeSettings
from softprompts.serving.fleet import application
from softprompts.serving.ingress import Forwarded, Ingress, LabelledMetrics
from softprompts.serving.keys import Keys
from softprompts.serving.metrics import Metrics
from softprompts.serving.prompt_router import COMFORTABLE, preferences, ranked
from softprompts.serving.replica import Model
from softprompts.serving.requests import Stats

REPLICAS = ["a", "b", "c", "d"]
PROMPTS = [f"prompt {number}" for number in range(400)]
KEY = "a-key-for-all-prompts"


# -- where -----------------------------------------------------------------------------------------


def test_a_prompt_has_its_replica_and_moves_only_if_that_stops() -> None:
    loads = dict.fromkeys(REPLICAS, 0)
    homes = {prompt: preferences(prompt, loads)[0][0] for prompt in PROMPTS}
    assert all(70 < count < 130 for count in Counter(homes.values()).values())
    del loads["b"]
    for prompt, home in homes.items():
        (now,) = preferences(prompt, loads)[0]
        assert now == (home if home != "b" else ranked(prompt, REPLICAS)[1])


def test_a_busy_replica_is_passed_over() -> None:
    first, second, *_ = ranked("mood", REPLICAS)
    loads = dict.fromkeys(REPLICAS, 0)
    for load, warm in [(COMFORTABLE - 1, first), (COMFORTABLE, second), (50, second)]:
        assert preferences("mood", {**loads, first: load})[0] == [warm]
    busy = dict.fromkeys(REPLICAS, 100)
    assert preferences("mood", {**busy, first: 120})[0] == [first], "not much above the mean"
    assert preferences("mood", {**busy, first: 140})[0] == [second]
    ranks = preferences("mood", {**busy, first: 140})
    assert sorted(name for rank in ranks for name in rank) == REPLICAS, "all are tried in the end"
    assert preferences("mood", loads, avoid=[first])[0] == [second]
    assert preferences("mood", loads, avoid=REPLICAS)[0] == [first]
    one = {**loads, first: 1}
    assert preferences("mood", one, comfortable=1)[0] == [second], "autoscaling aims for one each"
    assert sorted(preferences(None, loads)[0]) == REPLICAS, "Ray takes the least loaded"


# -- what becomes of it ----------------------------------------------------------------------------

Step = list[dict[str, Any]] | Exception | float
"""Messages, the end of a replica, or seconds without either."""


class Stream:
    """What a replica sends."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps, self.cancelled = steps, False

    async def __aiter__(self) -> AsyncIterator[Any]:
        for step in self.steps:
            await asyncio.sleep(step if isinstance(step, float) else 0)
            if isinstance(step, float):
                continue
            if isinstance(step, Exception):
                raise step
            yield step
        if not self.steps:
            await asyncio.sleep(60)  # there is no replica

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """Replicas that answer one after another."""

    def __init__(self, *answers: list[Step]) -> None:
        self.streams = [Stream(steps) for steps in answers]
        self.asked: list[Forwarded] = []

    def options(self, **_: Any) -> "Handle":
        return self

    def remote(self, request: Forwarded) -> Stream:
        self.asked.append(request)
        return self.streams[len(self.asked) - 1]


def start(status: int = 200, kind: str = "application/json", replica: str = "a") -> dict[str, Any]:
    headers = [(b"content-type", kind.encode()), (b"x-served-by", replica.encode())]
    return {"type": "http.response.start", "status": status, "headers": headers}


def body(text: str) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


def died() -> Exception:
    return ActorDiedError()


def answer(
    handle: Handle,
    content: bytes | None = b'{"model": "mood"}',
    path: str = "/v1/completions",
    headers: dict[str, str] | None = None,
    method: str = "POST",
    **settings: Any,
) -> tuple[int, str]:
    """The status and the body that a client gets, whose own body never comes if it is None."""

    async def run() -> tuple[int, str]:
        async def receive() -> dict[str, Any]:
            if content is None:
                await asyncio.sleep(60)
            return {"type": "http.request", "body": content, "more_body": False}

        named = {"authorization": f"Bearer {KEY}", **(headers or {})}
        raw = [(name.encode(), value.encode()) for name, value in named.items()]
        scope = {"type": "http", "method": method, "path": path, "headers": raw}
        ingress = Ingress(handle, ServeSettings(**settings), Keys([(KEY, ())]), quiet=True)
        response: Any = await ingress(Request(scope, receive))
        sent: list[Any] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await response(scope, receive, send)
        text = b"".join(message.get("body", b"") for message in sent)
        return sent[0]["status"], text.decode()

    return asyncio.run(run())


def test_a_request_whose_replica_dies_goes_to_another() -> None:
    whole = [start(), body("{}")]
    for dying in ([died()], [[start()], died()]):  # before anything was sent to the client
        handle = Handle(dying, [whole])
        assert answer(handle) == (200, "{}")
        assert [request.prompt for request in handle.asked] == ["mood", "mood"]
        assert handle.streams[0].cancelled
        assert not handle.streams[1].cancelled


def test_another_replica_has_only_the_time_that_is_left() -> None:
    handle = Handle([died()], [[start(), body("{}")]])
    answer(handle, timeout=9.0)
    limits = [dict(request.scope["headers"]).get(b"x-request-timeout") for request in handle.asked]
    assert limits[0] is None
    assert 8 < float(limits[1] or 0) <= 9
    handle = Handle([died()], [[start(), body("{}")]])
    answer(handle, headers={"x-request-timeout": "0.5"})
    assert dict(handle.asked[1].scope["headers"])[b"x-request-timeout"] == b"0.500"


@pytest.mark.parametrize(
    "own", [{"headers": {"x-request-timeout": "5"}}, {"content": b'{"timeout": 5}'}]
)
def test_another_replica_has_what_is_left_of_the_time_of_the_request(own: dict[str, Any]) -> None:
    handle = Handle([0.2, died()], [[start(), body("{}")]])
    answer(handle, **own)
    assert 4 < float(dict(handle.asked[1].scope["headers"])[b"x-request-timeout"]) <= 4.8


def test_a_request_that_no_replica_takes_ends_after_its_own_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("softprompts.serving.ingress.SLACK", 0.0)
    for own in ({"headers": {"x-request-timeout": "0.1"}}, {"content": b'{"timeout": 0.1}'}):
        status, text = answer(Handle([]), **own)  # type: ignore[arg-type]
        assert status == 504
        assert json.loads(text)["error"]["code"] == "timeout"
    handle = Handle([[start(400), body("no")]])  # what is not a time, the replica refuses
    assert answer(handle, b'{"timeout": 1e999}', headers={"x-request-timeout": "soon"})[0] == 400


def test_an_answer_that_has_begun_ends_with_an_error() -> None:
    handle = Handle([[start(kind="text/event-stream"), body("data: 1\n\n")], died()])
    status, text = answer(handle)
    first, last, end = text.split("\n\n")
    assert (status, first, end) == (200, "data: 1", "")
    error = json.loads(last.removeprefix("data: "))["error"]
    assert (error["code"], error["type"]) == ("replica_died", "server_error")
    with pytest.raises(ActorDiedError):  # the connection is closed before its end
        answer(Handle([[start(), body("{")], died()]))


@pytest.mark.parametrize("status", [429, 503])
def test_a_full_replica_is_avoided_while_another_has_room(status: int) -> None:
    handle = Handle([[start(status), body("full")]], [[start(replica="b"), body("{}")]])
    assert answer(handle) == (200, "{}")
    assert [request.avoid for request in handle.asked] == [(), ("a",)]
    handle = Handle([[start(status), body("full")]], [[start(status), body("full")]])
    assert answer(handle) == (status, "full"), "all are full"


def test_without_a_replica_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "softprompts.serving.ingress"
    monkeypatch.setattr(f"{module}.SLACK", 0.0)
    monkeypatch.setattr(f"{module}.PROBE_SECONDS", 0.1)
    cases: list[Callable[[], tuple[int, str]]] = [
        lambda: answer(Handle([]), timeout=0.1),
        lambda: answer(Handle([]), path="/ready"),
        lambda: answer(Handle(*[[died()]] * 5), headers={"x-request-timeout": "9"}),
    ]
    for case in cases:
        status, text = case()
        assert status == 503
        assert json.loads(text)["error"]["code"] == "no_replica"


def test_metrics_of_a_replica_that_hangs_are_an_error() -> None:
    class Hanging(Handle):
        def broadcast(self, _: str) -> "Hanging":
            return self

        async def results_async(self, **_: Any) -> list[Any]:
            raise TimeoutError

    handle = Hanging([[start(), body("metrics of one replica")]])
    status, text = answer(handle, b"", path="/metrics", method="GET")
    assert (status, json.loads(text)["error"]["code"]) == (503, "no_replica")


def test_a_body_that_is_refused_is_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[tuple[bytes, dict[str, str]]] = [
        (b'{"model": "mood"}', {"authorization": "Bearer wrong"}),
        (b"x" * 2000, {"content-length": "2000"}),
    ]
    for content, headers in refused:
        handle = Handle([[start(401), body("no")]])
        assert answer(handle, content, headers=headers, max_body=0.001) == (401, "no")
        assert (handle.asked[0].body, handle.asked[0].prompt) == (b"", None)
    handle = Handle([[start(401), body("no")]])
    monkeypatch.setattr("softprompts.serving.ingress.DRAIN_SECONDS", 0.05)
    assert answer(handle, None, headers=refused[0][1]) == (401, "no"), "nobody waits for it"
    handle = Handle([[start(413), body("no")]])  # of unknown length
    answer(handle, b"x" * 2000, max_body=0.001)
    assert len(handle.asked[0].body) > 1048, "enough for the replica to refuse it"


# -- how it is deployed ----------------------------------------------------------------------------


def deployments(monkeypatch: pytest.MonkeyPatch, gpus: int = 0, **settings: Any) -> dict[str, Any]:
    """The options of both deployments, which Ray Serve has checked."""
    options: dict[str, Any] = {}
    create = serve.deployment

    def recorded(kind: type, **given: Any) -> Any:
        options[kind.__name__] = given
        return create(kind, **given)

    monkeypatch.setattr("softprompts.serving.fleet.serve.deployment", recorded)
    application(Model("t5-tiny", ()), ServeSettings(**settings), Keys(), gpus=gpus)
    return options


def test_a_fleet_has_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = deployments(monkeypatch, replicas=9, max_queue=7, grace=3.0, replica_cpus=2.0)
    assert fixed["Replica"]["num_replicas"] == 9
    assert fixed["Ingress"]["num_replicas"] == 2, "one for every eight replicas"
    assert fixed["Replica"]["max_ongoing_requests"] == 7
    assert fixed["Replica"]["graceful_shutdown_timeout_s"] == 3
    assert fixed["Replica"]["ray_actor_options"]["num_cpus"] == 2
    monkeypatch.setenv("SOFTPROMPTS_PLUGINS", "my_plugin")
    scaled = deployments(monkeypatch, gpus=1, max_replicas=4, replica_load=2)["Replica"]
    assert scaled["autoscaling_config"] == {
        "min_replicas": 1,
        "max_replicas": 4,
        "target_ongoing_requests": 2,
    }
    assert "num_replicas" not in scaled
    assert scaled["request_router_config"].request_router_kwargs == {"comfortable": 2}
    resources = scaled["ray_actor_options"]
    assert resources["num_gpus"] == 1
    assert resources["runtime_env"]["env_vars"] == {"SOFTPROMPTS_PLUGINS": "my_plugin"}


def test_metrics_of_replicas_are_told_apart() -> None:
    replies = []
    for name in ("a", "b"):
        metrics = Metrics(lambda: Stats(*range(21)))
        metrics.count("/v1/classify", 200, 0.1, "mood", {"prompt": 3}, None)
        replies.append((name, list(metrics.registry.collect())))
    text = generate_latest(LabelledMetrics(replies)).decode()
    assert text.count("# TYPE softprompts_engine_waiting gauge") == 1
    for name in ("a", "b"):
        assert f'softprompts_engine_waiting{{replica="{name}"}} 0.0\n' in text
        tokens = f'softprompts_tokens_total{{kind="prompt",prompt="mood",replica="{name}"}} 3.0\n'
        assert tokens in text
