"""Limits that hold: keys, sizes, the queue, clients that go away; logs and metrics."""

import http.client
import io
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import openai
import pytest
from openai import OpenAI

from softprompts.backbone import Backbone
from softprompts.cli import main
from softprompts.config.serve import ServeSettings
from softprompts.errors import UserError
from softprompts.library.library import Library
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.keys import Key, Keys, check_open, read_keys
from softprompts.serving.logs import JsonLog
from softprompts.serving.metrics import OTHER, Metrics
from softprompts.serving.requests import Limits
from softprompts.serving.server import limits_of

from ..processes import wait_until
from .http_server import Running, ask, running
from .test_engine import MOODS, tuned

ALL, SOME, WRONG = "a-key-for-all-prompts", "a-key-for-some-prompts", "a-key-nobody-has-given"
KEYS = f"{ALL}\n{SOME} team-*  # one team\n"
SECRET = "nobody else may read this review"


@pytest.fixture(scope="module")
def library(tiny: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four prompts, one of them broken, and a fifth beside the library."""
    folder = tmp_path_factory.mktemp("limits")
    for number, name in enumerate(["team-mood", "mood", "free", "broken"]):
        labels = [] if name == "free" else MOODS
        scoring = None if labels else "generate"
        tuned(tiny, number, labels, scoring=scoring or "labels", length=3).save(
            folder / "library" / name
        )
    (folder / "library" / "broken" / "prompt.safetensors").write_bytes(b"nothing")
    tuned(tiny, 9, MOODS, scoring="labels", length=3).save(folder / "outside")
    return folder / "library"


@pytest.fixture(scope="module")
def keys(library: Path) -> Keys:
    path = library.parent / "keys.txt"
    path.write_text(KEYS)
    return read_keys(path)


@pytest.fixture(scope="module")
def server(tiny: Backbone, library: Path, keys: Keys) -> Iterator[Running]:
    settings = ServeSettings(max_body=0.05, metric_prompts=2, max_queue=8, slots=4)
    engine = AsyncEngine(tiny, library, limits=limits_of(settings))
    with running(engine, settings, keys) as server:
        yield server


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


# -- keys ------------------------------------------------------------------------------------------


def test_every_path_but_two_needs_a_key(server: Running) -> None:
    for path in ("/health", "/ready"):
        assert ask(server.url + path)[0] == 200
    paths = [
        *("/metrics", "/docs", "/openapi.json", "/redoc", "/v1/models", "/v1/models/mood"),
        *("/v1/completions", "/nothing", "/health/", "//health", "/ready/../metrics"),
    ]
    for path in paths:
        for headers in ({}, bearer(WRONG), bearer(ALL[:-1]), {"Authorization": ALL}):
            status, reply, got = ask(server.url + path, None, headers)
            assert (status, got["www-authenticate"]) == (401, "Bearer"), path
            assert reply["error"]["type"] == "authentication_error"
    assert ask(f"{server.url}/openapi.json", None, bearer(ALL))[0] == 200
    with (
        OpenAI(base_url=server.base_url, api_key=WRONG, max_retries=0) as client,
        pytest.raises(openai.AuthenticationError, match="The API key is missing or wrong"),
    ):
        client.models.list()


def test_a_key_sees_only_its_own_prompts(server: Running) -> None:
    rows = [{"text": "good food", "label": "positive"}]
    with OpenAI(base_url=server.base_url, api_key=SOME, max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["team-mood"]
        assert client.completions.create(model="team-mood", prompt="x").choices[0].text in MOODS
        refusals = []
        for name in ("mood", "no such prompt"):
            with pytest.raises(openai.NotFoundError) as caught:
                client.completions.create(model=name, prompt="x")
            refusals.append(str(caught.value).replace(name, "NAME"))
            with pytest.raises(openai.NotFoundError):
                client.models.retrieve(name)
            with pytest.raises(openai.NotFoundError):
                client.embeddings.create(model="t5-tiny", input=name)
            status, _, _ = ask(
                f"{server.base_url}/classify", {"model": name, "input": "x"}, bearer(SOME)
            )
            assert status == 404
        assert refusals[0] == refusals[1], "nothing says that the other one exists"
    before = server.engine.stats().rows
    _, found, _ = ask(f"{server.base_url}/search", {"rows": rows, "top": 1}, bearer(SOME))
    assert [item["id"] for item in found["data"]] == ["team-mood"]
    assert server.engine.stats().rows == before + 1, "no other prompt was asked"
    assert ask(f"{server.url}/metrics", None, bearer(SOME))[0] == 403
    body = {"model": "t5-tiny", "input": rows}
    assert ask(f"{server.base_url}/embeddings", body, bearer(SOME))[0] == 403


@pytest.mark.parametrize(
    "name", ["../outside", "library/../mood", "mood/../mood", "/etc/passwd", ".", "..", "mood/"]
)
def test_names_never_reach_the_file_system(
    server: Running, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    stat = Path.stat

    def watched(path: Path, **options: Any) -> Any:
        opened.append(str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", watched)
    status, _, _ = ask(
        f"{server.base_url}/completions", {"model": name, "prompt": "x"}, bearer(ALL)
    )
    assert status == 404
    status, _, _ = ask(f"{server.base_url}/models/{name.replace('/', '%2F')}", None, bearer(ALL))
    assert status == 404
    assert not any("outside" in path or "passwd" in path for path in opened)


def test_a_broken_prompt_is_named_in_the_log_only(
    tiny: Backbone, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("softprompts"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("softprompts"), "propagate", True)
    with running(AsyncEngine(tiny, library)) as server:
        JsonLog(server.log).take_over("softprompts")
        for _ in range(2):
            status, reply, _ = ask(f"{server.base_url}/classify", {"model": "broken", "input": "x"})
            assert status == 404
            assert str(library) not in json.dumps(reply)
            assert "the server's log says why" in reply["error"]["message"]
            assert reply["error"]["code"] == "model_broken"
        listed = ask(f"{server.base_url}/models")[1]["data"]
        assert [model["id"] for model in listed] == ["free", "mood", "team-mood"]
        warning = server.wait_for_line(level="warning")
        assert "The prompt broken cannot be used" in warning["message"]
        assert [line for line in server.lines() if line["level"] == "warning"] == [warning], "once"


def test_no_other_log_is_written_beside_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, raw, log = logging.getLogger("transformers"), io.StringIO(), io.StringIO()
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(raw)])
    monkeypatch.setattr(logger, "propagate", False)
    JsonLog(log).take_over("transformers")
    logging.getLogger("transformers.tokens").error("a long text")
    assert raw.getvalue() == ""
    line = json.loads(log.getvalue())
    assert (line["level"], line["message"]) == ("error", "a long text")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no key; write one per line."),
        ("short\n", "is too short or has non-ASCII characters; use at least 16 characters"),
        (f"{ALL}\n{ALL} mood\n", "is listed twice"),
        (f"{SOME} mood,a-prompt-with-a-long-name\n", "separate it and the names of its prompts"),
    ],
)
def test_a_bad_key_file_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_keys(path)


def test_keys_come_from_a_variable_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTPROMPTS_API_KEYS", f"{ALL}, {SOME} team-* mood")
    keys = read_keys()
    every, some = keys.find(ALL), keys.find(SOME)
    assert isinstance(every, Key)
    assert isinstance(some, Key)
    assert every.allows("anything")
    assert (some.allows("team-x"), some.allows("mood"), some.allows("mood-2")) == (
        True,
        True,
        False,
    )
    assert keys.find(None) is keys.find("") is keys.find(WRONG) is None
    assert ALL not in repr(vars(keys))
    with pytest.raises(UserError, match=r"Anyone who can reach 0\.0\.0\.0 could use the server"):
        check_open(Keys(), "0.0.0.0", allow=False)
    check_open(keys, "0.0.0.0", allow=False)
    check_open(Keys(), "127.0.0.1", allow=False)


def test_all_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr("hmac.compare_digest", compare)
    keys = Keys([(ALL, ()), (SOME, ()), (WRONG, ())])
    for secret in (ALL, WRONG, "x", "x" * 1000, None):
        compared.clear()
        keys.find(secret)
        assert compared == [(32, 32)] * 3


# -- sizes and the queue ---------------------------------------------------------------------------


def test_a_large_body_is_refused(server: Running) -> None:
    body = {"model": "mood", "prompt": "x" * 60_000}
    status, reply, _ = ask(f"{server.base_url}/completions", body, bearer(ALL))
    assert status == 413
    assert "larger than 0.05 MiB; send fewer or shorter texts." in reply["error"]["message"]


def test_a_large_body_of_unknown_length_is_refused(server: Running) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ALL}\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
        try:
            for _ in range(20):
                connection.sendall(chunk)
        except OSError:
            pass  # refused before the end
        assert b" 413 " in connection.recv(200)


def test_a_body_that_comes_too_slowly_is_refused(tiny: Backbone, library: Path) -> None:
    settings = ServeSettings(timeout=0.3)
    with running(AsyncEngine(tiny, library, limits=limits_of(settings)), settings) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
            connection.sendall(head.encode() + b"{")
            reply = connection.recv(2000).decode()
    assert " 408 " in reply.splitlines()[0]
    assert "did not arrive in time; send it again." in reply


def test_a_full_queue_says_when_to_come_back(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = server.engine.worker
    monkeypatch.setattr(worker, "limits", replace(worker.limits, queue=0))
    with (
        OpenAI(base_url=server.base_url, api_key=ALL, max_retries=0) as client,
        pytest.raises(openai.RateLimitError) as caught,
    ):
        client.completions.create(model="free", prompt=["good food"] * 8)
    monkeypatch.undo()
    assert int(caught.value.response.headers["retry-after"]) >= 1
    wait_until(lambda: server.engine.stats().waiting == server.engine.stats().decoding == 0)
    with OpenAI(base_url=server.base_url, api_key=ALL, max_retries=0) as client:
        assert client.completions.create(model="mood", prompt="x").choices[0].text in MOODS


def test_a_request_that_no_queue_can_take_is_refused_for_good(server: Running) -> None:
    body = {"model": "free", "prompt": ["good food"] * 9}
    status, reply, _ = ask(f"{server.base_url}/completions", body, bearer(ALL))
    assert (status, reply["error"]["code"]) == (400, "too_many_inputs")
    assert reply["error"]["message"] == (
        "A request has at most 8 inputs, and this one has 9; split it."
    )


def test_an_error_quotes_the_start_of_a_request_as_valid_unicode(server: Running) -> None:
    body = {"model": "mood", "prompt": {"\ud800" + "x" * 40_000: "x"}}
    status, reply, _ = ask(f"{server.base_url}/completions", body, bearer(ALL))
    assert status == 400
    message = reply["error"]["message"]
    assert message.startswith("text 1 has no column 'text'; its columns are \\ud800xx")
    assert len(message) < 1100


def test_a_request_has_its_time(tiny: Backbone, library: Path) -> None:
    settings = ServeSettings(timeout=0.2)
    long = {"model": "free", "prompt": "x", "max_tokens": 500, "temperature": 2, "seed": 1}
    with running(AsyncEngine(tiny, library, limits=limits_of(settings)), settings) as server:
        status, reply, headers = ask(f"{server.base_url}/completions", long)
        assert (status, reply["error"]["code"]) == (504, "timeout")
        assert headers["x-should-retry"] == "false"
        status, text, _ = ask(f"{server.base_url}/completions", {**long, "stream": True})
        if status == 200:  # an answer that has begun ends with the error
            assert '"code": "timeout"' in text.split("\n\n")[-2]
            assert "[DONE]" not in text


def test_a_request_may_have_less_time(server: Running) -> None:
    body = {"model": "free", "prompt": "x", "max_tokens": 500, "temperature": 2, "timeout": 0.1}
    status, reply, _ = ask(f"{server.base_url}/completions", body, bearer(ALL))
    assert (status, reply["error"]["code"]) == (504, "timeout")
    body["timeout"] = 0
    assert ask(f"{server.base_url}/completions", body, bearer(ALL))[0] == 400


def test_the_defaults_are_the_engines() -> None:
    assert limits_of(ServeSettings()) == Limits()


def test_of_two_servers_that_start_at_once_on_a_port_one_gives_up(
    tiny: Backbone,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("softprompts", "transformers", "uvicorn"):  # whose logs the server takes over
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))

        def load(*_: object) -> Backbone:
            other.listen()  # it has loaded its model first
            return tiny

        monkeypatch.setattr("softprompts.backbone.load_backbone", load)
        port = str(other.getsockname()[1])
        assert main(["serve", "--library", str(library), "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1:{port} (Address already in use)" in capsys.readouterr().err


# -- clients that go away --------------------------------------------------------------------------


def test_a_closed_stream_frees_its_slot(server: Running) -> None:
    before = server.engine.stats()
    with OpenAI(base_url=server.base_url, api_key=ALL, max_retries=0) as client:
        stream = client.completions.create(
            model="free",
            prompt="x",
            max_tokens=500,
            temperature=2,
            seed=3,
            stream=True,
            n=4,
            extra_headers={"X-Request-Id": "closed"},
        )
        next(iter(stream))
        wait_until(lambda: server.engine.stats().decoding == 4)
        stream.close()
    wait_until(lambda: server.engine.stats().decoding == 0)
    after = server.engine.stats()
    assert after.completion_tokens - before.completion_tokens < 2000
    assert after.cancelled == before.cancelled + 1
    assert server.wait_for_line(request_id="closed", status=499)["completion_tokens"] > 0


def test_whoever_hangs_up_stops_costing(server: Running) -> None:
    """Also without a stream, where nothing is sent that could fail."""
    host, port = server.url.removeprefix("http://").split(":")
    body = {"model": "free", "prompt": "x", "max_tokens": 500, "temperature": 2, "seed": 3}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ALL}\r\n"
    head += "X-Request-Id: hung-up\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    before = server.engine.stats().cancelled
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + data)
        wait_until(lambda: server.engine.stats().decoding == 1)
    wait_until(lambda: server.engine.stats().decoding == 0, 2)
    assert server.engine.stats().cancelled == before + 1
    server.wait_for_line(request_id="hung-up", status=499)


def test_a_client_may_leave_while_it_sends(server: Running) -> None:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ALL}\r\n"
    address = server.url.removeprefix("http://").split(":")
    with socket.create_connection((address[0], int(address[1]))) as client:
        client.sendall(f"{head}Content-Length: 99\r\nX-Request-Id: left\r\n\r\n{{".encode())
    assert server.wait_for_line(request_id="left")["status"] == 499


# -- a library that changes ------------------------------------------------------------------------


def test_prompts_come_and_go_without_a_restart(
    tiny: Backbone, library: Path, tmp_path: Path
) -> None:
    changing = Library(tmp_path / "library")
    versions = [tuned(tiny, seed, MOODS, scoring="labels", length=3) for seed in (11, 12)]
    expected = [version.probabilities([SECRET], verbose=False)[0] for version in versions]
    assert expected[0] != pytest.approx(expected[1], abs=1e-3)
    for number, version in enumerate(versions):
        version.save(tmp_path / f"run-{number}")
    changing.add(library / "mood", "old")
    with running(AsyncEngine(tiny, changing.folder)) as server:

        def shares(name: str) -> Any:
            _, reply, _ = ask(f"{server.base_url}/classify", {"model": name, "input": SECRET})
            if "error" in reply:
                return reply["error"]["code"]
            (item,) = reply["data"]
            return dict(zip(item["labels"], item["probs"], strict=True))

        def listed() -> list[str]:
            return [model["id"] for model in ask(f"{server.base_url}/models")[1]["data"]]

        assert (shares("new"), listed()) == ("model_not_found", ["old"])
        changing.add(tmp_path / "run-0", "new")
        assert shares("new") == pytest.approx(expected[0], abs=1e-4)
        assert listed() == ["new", "old"]
        changing.add(tmp_path / "run-1", "new", overwrite=True)
        assert shares("new") == pytest.approx(expected[1], abs=1e-4)
        changing.remove("new")
        assert (shares("new"), listed()) == ("model_not_found", ["old"])


# -- logs and metrics ------------------------------------------------------------------------------


def test_requests_are_logged_without_their_texts(server: Running) -> None:
    headers = {**bearer(SOME), "X-Request-Id": "my-request.1"}
    body = {"model": "team-mood", "input": SECRET}
    _, _, got = ask(f"{server.base_url}/classify", body, headers)
    assert got["x-request-id"] == "my-request.1"
    line = server.wait_for_line(request_id="my-request.1")
    assert (line["event"], line["status"], line["prompt"]) == ("request", 200, "team-mood")
    assert (line["method"], line["route"]) == ("POST", "/v1/classify")
    assert line["prompt_tokens"] > 3
    assert re.fullmatch(r"[0-9a-f]{8}", line["key"])
    log = server.log.getvalue()
    assert not any(text in log for text in (SECRET, ALL, SOME))
    for bad in ("a b", "x" * 200, 'a"b'):
        _, _, got = ask(f"{server.base_url}/models", None, {**bearer(ALL), "X-Request-Id": bad})
        assert re.fullmatch(r"[0-9a-f]{32}", got["x-request-id"])


def test_texts_are_logged_if_asked_for(tiny: Backbone, library: Path) -> None:
    with running(AsyncEngine(tiny, library), ServeSettings(log_texts=True)) as server:
        _, reply, _ = ask(f"{server.base_url}/completions", {"model": "mood", "prompt": SECRET})
        line = server.wait_for_line(event="request")
        assert (line["input"], line["output"]) == ([SECRET], [reply["choices"][0]["text"]])


def test_a_failure_is_logged_and_hides_its_cause(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(server.engine, "known_prompt", fail)
    body = {"model": "mood", "prompt": "x"}
    status, reply, got = ask(f"{server.base_url}/completions", body, bearer(ALL))
    assert status == 500
    assert got["x-request-id"] in reply["error"]["message"]
    line = server.wait_for_line(level="error", request_id=got["x-request-id"])
    assert line["error"] == "RuntimeError"
    assert any("in fail" in frame or " fail" in frame for frame in line["traceback"])
    assert SECRET not in server.log.getvalue() + json.dumps(reply)


def test_an_error_of_many_requests_has_no_longer_lines_than_one_of_few() -> None:
    error, log = RuntimeError(), io.StringIO()

    def origin() -> None:
        raise error

    with pytest.raises(RuntimeError):
        origin()
    for _ in range(200):
        try:
            raise error
        except RuntimeError:
            JsonLog(log).error("failed", error)
    lines = [json.loads(line)["traceback"] for line in log.getvalue().splitlines()]
    assert all(line[-1].endswith(" origin") for line in lines)
    assert max(map(len, lines)) <= 50


def test_metrics_count_what_happens(server: Running) -> None:
    for name in ("mood", "free"):
        ask(f"{server.base_url}/completions", {"model": name, "prompt": "x"}, bearer(ALL))
    status, text, headers = ask(f"{server.url}/metrics", None, bearer(ALL))
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    values = {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in text.splitlines())
        if not name.startswith("#")
    }
    stats = server.engine.stats()
    for name in ("prefix_hits", "prefix_misses", "device_misses", "loads", "refused"):
        assert values[f"softprompts_engine_{name}_total"] == getattr(stats, name)
    for name in ("waiting", "decoding", "known", "on_device", "last_batch"):
        assert values[f"softprompts_engine_{name}"] == getattr(stats, name)
    for name in ("passes", "rows", "prompt_tokens", "completion_tokens", "device_hits"):
        assert values[f"softprompts_engine_{name}_total"] == getattr(stats, name) > 0
    assert values['softprompts_http_requests_total{route="/v1/completions",status="200"}'] >= 2
    assert any(name.startswith("softprompts_request_seconds_bucket") for name in values)
    prompts = set(re.findall(r'prompt="([^"]*)"', text))
    assert len(prompts - {OTHER}) <= 2, "settings.metric_prompts"


def test_labels_of_metrics_are_bounded(server: Running) -> None:
    metrics = Metrics(server.engine.stats, most_prompts=3)
    for number in range(1000):
        metrics.count("/v1/classify", 200, 0.01, f"prompt-{number}", {"prompt": 3}, None)
    text = metrics.text().decode()
    assert set(re.findall(r'prompt="([^"]*)"', text)) == {"prompt-0", "prompt-1", "prompt-2", OTHER}
    assert 'softprompts_tokens_total{kind="prompt",prompt="other"} 2991.0' in text
    for prompt, count in (("prompt-0", 1), ("other", 997)):
        labels = f'{{prompt="{prompt}",route="/v1/classify"}}'
        assert f"softprompts_request_seconds_count{labels} {count}.0" in text


# -- the end ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_whose_worker_died_says_so(
    tiny: Backbone, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"model": "mood", "input": "x"}
    with running(AsyncEngine(tiny, library)) as server:
        assert ask(f"{server.url}/ready")[0] == 200
        monkeypatch.setattr(server.engine.worker, "_round", Mock(side_effect=SystemExit))
        for _ in range(2):  # the request at whose time it dies, and a later one
            status, reply, _ = ask(f"{server.base_url}/classify", {**body, "timeout": 20})
            assert (status, reply["error"]["code"]) == (503, "engine_stopped")
        wait_until(lambda: not server.engine.running)
        status, reply, _ = ask(f"{server.url}/ready")
        assert (status, reply["status"]) == (503, "not ready")


def test_grace_has_an_end(tiny: Backbone, library: Path) -> None:
    body: Any = {"model": "free", "prompt": "x", "max_tokens": 512, "temperature": 2, "seed": 1}
    replies: list[Any] = []
    settings = ServeSettings(grace=0.5, max_tokens=5000)
    engine = AsyncEngine(tiny, library, limits=limits_of(settings))

    def read(url: str) -> None:
        try:
            replies.append(ask(url, {**body, "stream": True, "max_tokens": 5000}))
        except (OSError, http.client.HTTPException) as error:
            replies.append(error)

    with running(engine, settings) as server:
        asking = threading.Thread(target=read, args=[f"{server.base_url}/completions"])
        asking.start()
        wait_until(lambda: server.engine.stats().decoding == 1)
        began = time.monotonic()
    asking.join(10)
    assert time.monotonic() - began < 6
    assert not engine.running
    ((status, text, _),) = replies
    *_, error, end = text.split("\n\n")
    assert (status, '"code": "shutting_down"' in error, end) == (200, True, "")
    assert server.wait_for_line(event="request")["status"] == 503


def test_a_stop_finishes_what_was_taken(tiny: Backbone, library: Path) -> None:
    body: Any = {"model": "free", "prompt": "x", "max_tokens": 100, "temperature": 2, "seed": 1}
    texts: list[Any] = []
    with running(AsyncEngine(tiny, library)) as server:
        url = f"{server.base_url}/completions"
        asking = threading.Thread(target=lambda: texts.append(ask(url, {**body, "stream": True})))
        asking.start()
        wait_until(lambda: server.engine.stats().decoding == 1)
    asking.join(10)
    ((status, text, _),) = texts
    assert status == 200
    assert text.endswith("data: [DONE]\n\n")
    assert not server.engine.running
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0])), 1)
