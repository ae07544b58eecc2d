"""A study on a real Ray cluster of two machines' worth of workers, one of which is killed mid-way."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from softprompts.cli.study import main
from softprompts.errors import UserError

from .conftest import FEW, Write, results, scores

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A head that takes no work, and two nodes with one slot each."""
    pytest.importorskip("ray", reason="Ray is not installed (softprompts[study])")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        yield made
    finally:
        made.shutdown()


def at_work(found: dict[str, Any]) -> set[str]:
    """The processes that results are of."""
    return {told["worker"].split("-")[-2] for told in found.values()}


def test_one_node_is_killed_and_nothing_is_lost(
    cluster: Any, write: Write, whole: Path, tmp_path: Path
) -> None:
    nodes = [cluster.add_node(num_cpus=1, include_dashboard=False) for _ in range(2)]
    cluster.wait_for_nodes()
    study, folder = write(**FEW), tmp_path / "study"
    before: dict[str, Any] = {}

    def kill() -> None:
        """When both nodes have finished something."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            found = results(folder)
            if len(at_work(found)) == 2:
                before.update(found)
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
    assert scores(folder).items() <= scores(whole).items()


def test_without_a_cluster_a_sentence_says_what_to_start(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (softprompts[study])")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(UserError, match="ray start --head"):
        main(["run", str(write(**FEW)), "--output", str(tmp_path / "study"), "--ray"])
    assert not (tmp_path / "study").exists()


def test_without_ray_a_sentence_names_the_extra(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"install softprompts\[study\]"):
        main(["run", str(write(**FEW)), "--output", str(tmp_path / "study"), "--ray"])
    assert not (tmp_path / "study").exists()
