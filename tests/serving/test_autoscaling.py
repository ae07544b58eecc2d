"""A fleet on a real Ray cluster of this machine gets a second replica when it is busy."""

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from softprompts.backbone import Backbone
from softprompts.config.serve import ServeSettings
from softprompts.serving.keys import Keys

from ..processes import wait_until
from .http_server import ask
from .test_engine import MOODS, tuned

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]

QUICK = {"upscale_delay_s": 1.0, "look_back_period_s": 3.0}
"""Ray's own values are 30 seconds each."""
NAMES = [f"mood {number}" for number in range(8)]
LONG = {"model": "free", "prompt": "x", "max_tokens": 300, "temperature": 2}


@pytest.fixture
def ray(one_ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster that this process has started."""
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed (softprompts[ray])")
    import ray

    pushes = [
        f"RAY_SERVE_{what}_AUTOSCALING_METRIC_PUSH_INTERVAL_S" for what in ("HANDLE", "REPLICA")
    ]
    for name in ("OMP_NUM_THREADS", *pushes):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(
        address="local",  # never the cluster of another test
        num_cpus=2,
        object_store_memory=80 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
    )
    yield ray
    ray.shutdown()


def test_load_makes_a_second_replica_appear(
    ray: Any, tiny: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from softprompts.serving import fleet
    from softprompts.serving.replica import Model

    deployment = fleet.serve.deployment

    def deployed_quickly(kind: type, **options: Any) -> Any:
        if "autoscaling_config" in options:
            options["autoscaling_config"] |= QUICK
        return deployment(kind, **options)

    monkeypatch.setattr(fleet.serve, "deployment", deployed_quickly)
    for number, name in enumerate(NAMES):
        tuned(tiny, number, MOODS, scoring="labels", length=3).save(tmp_path / "library" / name)
    tuned(tiny, 9, [], scoring="generate", length=4).save(tmp_path / "library" / "free")
    settings = ServeSettings(replicas=1, max_replicas=2, replica_load=2, grace=1.0)
    model = Model("t5-tiny", (tmp_path / "library",), "fp32", "cpu")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url, stop = f"http://127.0.0.1:{port}", threading.Event()

    def running() -> set[str]:
        return set(re.findall(r'replica="(\w+)"', ask(f"{url}/metrics")[1]))

    def answering() -> set[str]:
        """Those that answer requests for these prompts."""
        replies = [ask(f"{url}/v1/classify", {"model": name, "input": "x"}) for name in NAMES]
        assert {status for status, _, _ in replies} == {200}
        return {headers["x-served-by"] for _, _, headers in replies}

    def keep_busy() -> None:
        while not stop.is_set():
            ask(f"{url}/v1/completions", LONG)

    application = fleet.application(model, settings, Keys(), quiet=True)
    with fleet.deployed(application, "127.0.0.1", port):
        first = running()
        assert len(first) == 1
        assert answering() == first
        threads = [threading.Thread(target=keep_busy) for _ in range(6)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(running()) == 2, 45)
            (second,) = running() - first
            wait_until(lambda: second in answering())
        finally:
            stop.set()
            for thread in threads:
                thread.join(30)
