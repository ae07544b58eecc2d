"""A study on a local Ray cluster of two nodes, one of which is killed."""

import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from softprompts.cli import main as softprompts
from softprompts.cli.study import main
from softprompts.errors import UserError
from softprompts.study import ray_cluster

from ..processes import wait_until
from .conftest import FEW, Write, results, scores

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.usefixtures("one_ray_cluster"),
]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that takes no work, and two nodes with one slot each."""
    pytest.importorskip("ray", reason="Ray is not installed (softprompts[study])")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    try:
        yield cluster
    finally:
        cluster.shutdown()


def processes(by_cell: dict[str, Any]) -> set[str]:
    """The processes that wrote these results."""
    return {result["worker"].split("-")[-2] for result in by_cell.values()}


def test_a_killed_node_loses_no_results(
    cluster: Any, write: Write, finished_study: Path, tmp_path: Path
) -> None:
    nodes = [cluster.add_node(num_cpus=1, include_dashboard=False) for _ in range(2)]
    cluster.wait_for_nodes()
    study, folder = write(**FEW), tmp_path / "study"
    before: dict[str, Any] = {}

    def kill() -> None:
        """Kill a node when both have finished a cell."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            current = results(folder)
            if len(processes(current)) == 2:
                before.update(current)
                cluster.remove_node(nodes[0], allow_graceful=False)
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    assert (
        main(
            [
                "run",
                str(study),
                "--output",
                str(folder),
                "--device",
                "cpu",
                "--cohort",
                "1",
                "--ray",
                cluster.address,
            ]
        )
        == 0
    )
    killer.join()
    after = results(folder)
    assert len(before) < len(after) == 8
    assert {name: after[name] for name in before} == before
    assert scores(folder).items() <= scores(finished_study).items()


def test_without_a_cluster_the_error_says_what_to_start(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = pytest.importorskip(
        "ray._private.services", reason="Ray is not installed (softprompts[study])"
    )
    wait_until(lambda: not services.find_gcs_addresses(), 60)  # clusters of other tests end slowly
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(UserError, match="ray start --head"):
        main(["run", str(write(**FEW)), "--output", str(tmp_path / "study"), "--ray"])
    assert not (tmp_path / "study").exists()


def test_a_cluster_that_can_run_nothing_is_refused(
    cluster: Any, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(write(**FEW)), "--output", str(tmp_path / "study"), "--ray", cluster.address]
    assert softprompts(["study", "run", *arguments]) == 2
    assert "The Ray cluster has no CPU and no whole GPU; add a machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("resources", "slots"), [({"CPU": 3.0, "GPU": 0.5}, 3), ({"CPU": 3.0, "GPU": 2.0}, 2), ({}, 0)]
)
def test_a_cohort_takes_a_whole_gpu_or_a_cpu(resources: dict[str, float], slots: int) -> None:
    assert ray_cluster._slots(Mock(cluster_resources=lambda: resources))[0] == slots


def test_an_address_where_nothing_listens_is_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed (softprompts[study])")
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray tries for minutes"))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with (
            pytest.raises(UserError, match=f"no Ray cluster at '{address}'"),
            ray_cluster.cluster(address),
        ):
            pass


def test_without_ray_the_error_names_the_extra(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"install softprompts\[study\]"):
        main(["run", str(write(**FEW)), "--output", str(tmp_path / "study"), "--ray"])
    assert not (tmp_path / "study").exists()
