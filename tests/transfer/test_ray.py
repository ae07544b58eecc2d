"""A study on a real Ray cluster of two machines' worth of workers, one of which is killed mid-way."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from softprompts.errors import UserError
from softprompts.transfer.study_command import main

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


def test_one_node_is_killed_and_nothing_is_lost(cluster: Any, write: Write, whole: Path, tmp_path: Path) -> None:
    nodes = [cluster.add_node(num_cpus=1, include_dashboard=False) for _ in range(2)]
    cluster.wait_for_nodes()
    study, folder = write(**FEW), tmp_path / "study"
    before: dict[str, Any] = {}

    def kill() -> None:
        """When both nodes are at work and something is finished."""
        end = time.monotonic() + 120
        while time.monotonic() < end:
            workers = {json.loads(path.read_text())["worker"] for path in folder.rglob(".claim-*") if path.exists()}
            if len(workers) == 2 and results(folder):
                before.update(results(folder))
                cluster.remove_node(nodes[0], allow_graceful=False)
                return
            time.sleep(0.05)

    killer = threading.Thread(target=kill)
    killer.start()
    assert main(["run", str(study), "--output", str(folder), "--device", "cpu", "--cohort", "1", "--ray", cluster.address]) == 0
    killer.join()
    after = results(folder)
    assert before
    assert len(after) == 8
    assert {name: after[name] for name in before} == before
    assert len({told["worker"].split("-")[-2] for told in after.values()}) >= 2, "both nodes finished cells"
    assert scores(folder).items() <= scores(whole).items()


def test_without_a_cluster_a_sentence_says_what_to_start(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (softprompts[study])")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with pytest.raises(UserError, match="ray start --head"):
        main(["run", str(write(**FEW)), "--output", str(tmp_path / "study"), "--ray"])


def test_without_ray_a_sentence_names_the_extra(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"install softprompts\[study\]"):
        main(["run", str(write(**FEW)), "--output", str(tmp_path / "study"), "--ray"])
