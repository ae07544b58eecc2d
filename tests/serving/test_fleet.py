"""`softprompts serve --ray` on a real cluster of this machine: two replicas, one is killed."""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from softprompts.backbone import Backbone
from softprompts.cli import main
from softprompts.tuning.tuned import Tuned

from ..processes import ForkServer, Process, wait_until
from .http_server import ask
from .test_engine import MOODS, tuned

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]

ALL, SOME = "a-key-for-all-prompts", "a-key-for-some-prompts"
HEADERS = {"Authorization": f"Bearer {ALL}"}
NAMES = [f"mood {number}" for number in range(6)]
LONG = {"model": "free", "prompt": "x", "max_tokens": 300, "temperature": 2, "seed": 1}


@dataclass
class Fleet:
    url: str
    process: Process
    prompts: dict[str, Tuned]
    hello: dict[str, Any]

    def classify(self, name: str) -> tuple[int, Any, dict[str, str]]:
        return ask(f"{self.url}/v1/classify", {"model": name, "input": "good food"}, HEADERS)

    def complete(self, **body: Any) -> tuple[int, Any, dict[str, str]]:
        return ask(f"{self.url}/v1/completions", {**LONG, **body}, HEADERS)

    def metrics(self) -> dict[str, dict[str, float]]:
        """Values by name and replica, of the metrics without other labels."""
        status, text, _ = ask(f"{self.url}/metrics", None, HEADERS)
        assert status == 200
        values: dict[str, dict[str, float]] = defaultdict(dict)
        for line in text.splitlines():
            name, _, rest = line.partition('{replica="')
            replica, end, value = rest.partition('"} ')
            if end:
                values[name][replica] = float(value)
        return values

    def engine(self, name: str) -> float:
        return sum(self.metrics()[f"softprompts_engine_{name}"].values())


@pytest.fixture(scope="module")
def fleet(
    one_ray_cluster: None,
    tiny: Backbone,
    torch_server: ForkServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    """A cluster that this process has started, and the command that deploys to it."""
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed (softprompts[ray])")
    import ray

    folder = tmp_path_factory.mktemp("fleet")
    prompts = {
        name: tuned(tiny, number, MOODS, scoring="labels", length=3)
        for number, name in enumerate(NAMES)
    }
    prompts["free"] = tuned(tiny, 9, [], scoring="generate", length=4)
    for name, prompt in prompts.items():
        prompt.save(folder / "library" / name)
    (folder / "keys").write_text(f"{ALL}\n{SOME} free\n")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}.items():
            patch.setenv(name, value)
        context: Any = ray.init(
            address="local",  # never the cluster of another test
            num_cpus=2,
            object_store_memory=80 * 2**20,
            include_dashboard=False,
            log_to_driver=False,
        )
        try:
            command = [
                *("serve", "--library", str(folder / "library"), "--device", "cpu", "--port", "0"),
                *("--ray", context.address_info["gcs_address"], "--replicas", "2"),
                *("--api-keys", str(folder / "keys"), "--grace", "20", "--json"),
            ]
            with torch_server.start(command) as process:
                wait_until(lambda: "\n" in process.stdout or process.poll() is not None, 120)
                assert process.stdout, process.stderr
                hello = json.loads(process.stdout)
                yield Fleet(hello["url"], process, prompts, hello)
        finally:
            ray.shutdown()


def replica_processes() -> dict[str, int]:
    """The process of each replica."""
    import ray

    processes = {}
    for actor in ray.util.list_named_actors(all_namespaces=True):
        if "#Replica#" in actor["name"]:
            handle: Any = ray.get_actor(actor["name"], actor["namespace"])
            pid = ray.get(handle.__ray_call__.remote(lambda _: os.getpid()))
            processes[actor["name"].rpartition("#")[2]] = pid
    return processes


def test_requests_go_where_their_prompt_is_warm(fleet: Fleet) -> None:
    assert fleet.hello == {
        "url": fleet.url,
        "model": "t5-tiny",
        "prompts": 7,
        "api_keys": 2,
        "replicas": 2,
    }
    homes = defaultdict(set)
    for _ in range(3):
        for name in NAMES:
            status, reply, headers = fleet.classify(name)
            assert status == 200
            (item,) = reply["data"]
            expected = fleet.prompts[name].probabilities(["good food"], verbose=False)[0]
            assert dict(zip(item["labels"], item["probs"], strict=True)) == pytest.approx(
                expected, abs=1e-4
            )
            homes[name].add(headers["x-served-by"])
    assert all(len(replicas) == 1 for replicas in homes.values()), "each prompt has one replica"
    on_device = fleet.metrics()["softprompts_engine_on_device"]
    assert on_device == {
        replica: sum(replicas == {replica} for replicas in homes.values()) for replica in on_device
    }
    assert on_device.keys() == replica_processes().keys()


def test_streams_keys_and_limits_are_those_of_the_server(fleet: Fleet) -> None:
    with OpenAI(base_url=f"{fleet.url}/v1", api_key=SOME, max_retries=0) as client:
        assert [model.id for model in client.models.list()] == ["free"]
        asked: Any = {"model": "free", "prompt": "good", "max_tokens": 12}
        whole = client.completions.create(**asked).choices[0].text
        chunks = [
            chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)
        ]
        assert "".join(chunks) == whole
        assert len(chunks) > 3
    url = f"{fleet.url}/v1/classify"
    body = {"model": NAMES[0], "input": "x"}
    assert ask(url, body)[0] == 401
    assert ask(url, body, {"Authorization": f"Bearer {SOME}"})[0] == 404
    assert ask(f"{fleet.url}/metrics", None, {"Authorization": f"Bearer {SOME}"})[0] == 403
    assert ask(url, b"x" * (5 * 2**20), HEADERS)[0] == 413
    status, reply, _ = fleet.complete(timeout=0.05)
    assert (status, reply["error"]["code"]) == (504, "timeout")
    headers = {**HEADERS, "X-Request-Id": "mine"}
    assert ask(f"{fleet.url}/ready", None, headers)[2]["x-request-id"] == "mine"
    assert ask(f"{fleet.url}/ready")[1]["status"] == "ready"


def test_whoever_hangs_up_stops_costing(fleet: Fleet) -> None:
    host, port = fleet.url.removeprefix("http://").split(":")
    data = json.dumps({**LONG, "max_tokens": 512, "n": 4, "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ALL}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    before = fleet.engine("cancelled_total")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + data)
        assert connection.recv(100)
    wait_until(lambda: fleet.engine("cancelled_total") == before + 1)
    wait_until(lambda: fleet.engine("decoding") == 0, 2)


def test_a_killed_replica_loses_no_request_without_an_error(fleet: Fleet) -> None:
    """Answers that have begun end with an error; all other requests go to the other replica."""
    home = fleet.complete(max_tokens=1)[2]["x-served-by"]
    pid, stop = replica_processes()[home], threading.Event()
    answers: list[tuple[int, Any, dict[str, str]]] = []

    def keep_asking(first: int) -> None:
        number = first
        while not stop.is_set():
            answers.append(fleet.classify(NAMES[number % len(NAMES)]))
            number += 1

    threads = [threading.Thread(target=keep_asking, args=[number]) for number in range(4)]
    threads += [
        threading.Thread(target=lambda: answers.append(fleet.complete(max_tokens=300)))
        for _ in range(2)
    ]
    with OpenAI(base_url=f"{fleet.url}/v1", api_key=ALL, max_retries=0) as client:
        for thread in threads:
            thread.start()
        asked: Any = {**LONG, "max_tokens": 512, "n": 4, "stream": True}
        streams = [iter(client.completions.create(**asked)) for _ in range(2)]
        for stream in streams:
            next(stream)
        os.kill(pid, signal.SIGKILL)
        before = len(answers)
        for stream in streams:
            with pytest.raises(openai.APIError, match="The replica that generated this answer"):
                list(stream)
    wait_until(lambda: len(answers) > before + 10, 30)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert {status for status, _, _ in answers} == {200}
    assert home not in {headers["x-served-by"] for _, _, headers in answers[-5:]}
    wait_until(lambda: "the request is sent to another" in fleet.process.stderr)


@pytest.mark.parametrize("call", [None, lambda number, _: sys.exit(number)])
def test_a_stop_while_ray_starts_is_a_normal_end(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ray.init exits with the signal's number."""

    @contextmanager
    def start_cluster(*_: object, **__: object) -> Iterator[None]:
        if call is not None:
            signal.signal(signal.SIGTERM, call)
        signal.raise_signal(signal.SIGTERM)
        yield

    pytest.importorskip("ray.serve", reason="Ray Serve is not installed (softprompts[ray])")
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")  # the command sets it otherwise, and for good
    monkeypatch.setattr("softprompts.study.ray_cluster.cluster", start_cluster)
    before = signal.getsignal(signal.SIGTERM)
    command = ["serve", "--library", str(tmp_path), "--model", "t5-tiny", "--port", "0"]
    assert main([*command, "--ray", "local"]) == 0
    assert signal.getsignal(signal.SIGTERM) == before


def test_sigterm_finishes_what_was_taken(fleet: Fleet) -> None:
    """The last test: it ends the fleet."""
    replies: list[tuple[int, Any, dict[str, str]]] = []
    body = {"max_tokens": 400, "stream": True}
    asking = threading.Thread(target=lambda: replies.append(fleet.complete(**body)))
    asking.start()
    wait_until(lambda: fleet.engine("decoding") == 1)
    began = time.monotonic()
    fleet.process.send_signal(signal.SIGTERM)
    asking.join(30)
    ((status, text, _),) = replies
    assert status == 200
    assert text.endswith("data: [DONE]\n\n")
    assert fleet.process.wait(30) == 0
    assert time.monotonic() - began < 25
    with pytest.raises(OSError, match="refused"):
        ask(f"{fleet.url}/health")
    assert "Traceback" not in fleet.process.stderr
