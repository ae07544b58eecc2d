"""Studies: each cell is run once, whichever worker is killed, silent or loses a lease."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from softprompts.artifacts.file_names import RESULT, WORKERS
from softprompts.artifacts.study_folder import CellResult, StudyFolder, lease_owner
from softprompts.cli.study import main
from softprompts.errors import UserError
from softprompts.files import atomic as files
from softprompts.files import process_exists
from softprompts.study import processes, workers
from softprompts.study.cells import commit, open_cell
from softprompts.study.config import read_study
from softprompts.study.leases import Leases
from softprompts.study.plan import plan
from softprompts.study.state import StudyState, StudyWatcher, next_cohort, study_status
from softprompts.study.workers import LeaseLostError, run_cohort, work
from softprompts.transfer.strategies import start_from
from softprompts.tuning import Run, RunFailedError

from ..processes import ForkServer, Process
from .conftest import FEW, QUICK, Write, cell_path, planned, results, scores


class Started(Protocol):
    def __call__(self, study: Path, folder: Path, *more: str) -> Process: ...


@pytest.fixture
def started(torch_server: ForkServer) -> Started:
    """Starts the command in a process of its own."""

    def start(study: Path, folder: Path, *more: str) -> Process:
        flags = ["--device", "cpu", "--cohort", "1", "--quiet", *more]
        argv = ["study", "run", str(study), "--output", str(folder), *flags]
        return torch_server.start(argv, PYTHONPATH=os.pathsep.join(sys.path))

    return start


def wait_for(what: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.02)


def test_a_third_worker_finishes_the_study_of_two_killed_ones(
    write: Write, finished_study: Path, tmp_path: Path, started: Started
) -> None:
    """It takes over their cells; no cell is lost or counted twice."""
    study, folder = write(retrieval={}), tmp_path / "study"
    workers = [started(study, folder) for _ in range(2)]
    try:
        wait_for(
            lambda: (
                len(list((folder / WORKERS).glob("[!.]*.json"))) == 2 and len(results(folder)) >= 1
            )
        )
        for worker in workers:
            wait_for(
                lambda pid=worker.pid: (
                    holds(folder, pid) and list(folder.rglob("checkpoint.safetensors"))
                )
            )
            worker.send_signal(signal.SIGKILL)
            worker.wait()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    before = results(folder)
    assert 0 < len(before) < 16
    assert study_status(plan(read_study(study)), StudyFolder(folder))["running"] == [], (
        "killed workers hold nothing"
    )
    assert main(["run", str(study), "--output", str(folder), "--device", "cpu"]) == 0
    after = results(folder)
    assert {name: after[name] for name in before} == before, "finished cells stay unchanged"
    assert len(after) == 16
    assert scores(folder).items() <= scores(finished_study).items()


def test_one_command_starts_several_workers(write: Write, tmp_path: Path, started: Started) -> None:
    study, folder = write(**FEW, source={"steps": 40}, target={"steps": 40}), tmp_path / "study"
    command = started(study, folder, "--workers", "3")
    try:
        wait_for(lambda: len(list((folder / WORKERS).glob("[!.]*.json"))) == 3)
        assert command.wait(120) == 0
    finally:
        command.kill()
    by_cell = results(folder)
    assert len(by_cell) == 8
    assert len({result["worker"] for result in by_cell.values()}) > 1
    assert not list((folder / WORKERS).glob("[!.]*.json")), "all workers have exited"
    assert command.stderr == "", "without output"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_stop_with_their_command(
    write: Write, tmp_path: Path, how: signal.Signals, started: Started
) -> None:
    study, folder = write(**FEW, source={"steps": 4000}, target={"steps": 4}), tmp_path / "study"
    command = started(study, folder, "--workers", "2")
    try:
        wait_for(lambda: len(list((folder / WORKERS).glob("[!.]*.json"))) == 2)
        command.send_signal(how)
        assert command.wait(60) != 0
    finally:
        command.kill()
    wait_for(
        lambda: study_status(plan(read_study(study)), StudyFolder(folder))["running"] == [], 20
    )


def test_killed_workers_are_noticed_and_hanging_ones_are_stopped(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "EXIT_TIMEOUT", 0.5)
    study = write(**FEW, source={"steps": 4000}, target={"steps": 4})
    hangs = [sys.executable, "-c", "import time; time.sleep(600)"]
    real, begun = subprocess.Popen, []

    def start(command: list[str], **how: Any) -> "subprocess.Popen[bytes]":
        begun.append(real(hangs, **how))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with processes.worker_processes([str(study)], 3):
        assert len(begun) == 2
        begun[0].kill()
        wait_for(lambda: not process_exists(begun[0].pid), 10)
        assert process_exists(begun[1].pid)
    assert all(worker.poll() is not None for worker in begun)


def test_a_ray_cluster_excludes_workers(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="either ray or workers"):
        main(
            [
                "run",
                str(write(**FEW)),
                "--output",
                str(tmp_path / "study"),
                "--ray",
                "--workers",
                "2",
            ]
        )


def test_a_study_resumes_with_the_same_model_only(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another model under the same name is refused, also in a report."""
    study, folder = write(**FEW), tmp_path / "study"
    command = ["run", str(study), "--output", str(folder), "--device", "cpu"]
    assert main([*command, "--only", "baseline"]) == 0
    before = results(folder)
    other = {name: {**result, "fingerprint": "another"} for name, result in before.items()}
    for name, result in other.items():
        (cell_path(folder, name) / RESULT).write_text(json.dumps(result))
    with pytest.raises(
        UserError,
        match=r"was run on a different version of .* than the current one.*choose another output",
    ):
        main(command)
    assert results(folder) == other
    changed = next(iter(before))
    (cell_path(folder, changed) / RESULT).write_text(json.dumps(before[changed]))
    with pytest.raises(UserError, match="cannot be compared"):
        main(["report", str(folder)])


def holds(folder: Path, process: int) -> bool:
    """Whether a worker has a lease."""
    owners = [lease_owner(lease) for lease in folder.rglob(".claim-*")]
    return any(f"-{process}-" in worker for worker in owners if worker is not None)


def test_a_lease_belongs_to_one_worker(tmp_path: Path) -> None:
    with Leases(StudyFolder(tmp_path)) as first, Leases(StudyFolder(tmp_path)) as second:
        assert first.acquire("a")
        assert not second.acquire("a")
        assert not first.acquire("a")
        assert second.acquire("b")
    with Leases(StudyFolder(tmp_path)) as third:
        assert third.acquire("a"), "a worker that left holds nothing"


def test_of_many_workers_one_gets_a_lease(tmp_path: Path) -> None:
    workers = [Leases(StudyFolder(tmp_path)) for _ in range(8)]
    got: list[str] = []
    barrier = threading.Barrier(8)

    def race(leases: Leases) -> None:
        for number in range(20):
            barrier.wait()
            if leases.acquire(f"cell{number}"):
                got.append(f"cell{number}")

    threads = [threading.Thread(target=race, args=(leases,)) for leases in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(f"cell{number}" for number in range(20))


def test_silent_workers_lose_their_leases_and_notice(tmp_path: Path) -> None:
    with (
        Leases(StudyFolder(tmp_path), heartbeat=3600) as silent,
        Leases(StudyFolder(tmp_path), heartbeat=0.01, timeout=30) as other,
    ):
        assert silent.acquire("a")
        assert not other.acquire("a")
        os.utime(silent.file, (time.time() - 60, time.time() - 60))
        assert other.acquire("a")
        assert not silent.acquire("a")
        assert silent._is_lost("a", silent.held["a"])
        time.sleep(0.1)
        assert not other.lost.is_set()


def test_a_worker_on_another_machine_is_judged_by_its_heartbeat(tmp_path: Path) -> None:
    with (
        Leases(StudyFolder(tmp_path), heartbeat=3600) as far,
        Leases(StudyFolder(tmp_path)) as near,
    ):
        far.file.write_text(json.dumps({"host": "elsewhere", "pid": 2**22 + 1}))
        assert far.acquire("a")
        assert not near.acquire("a"), "its process is on another machine"
        far.file.unlink()
        assert near.acquire("a")


@pytest.mark.parametrize("heartbeat", ["[]", "3", "null", "{"])
def test_a_corrupted_heartbeat_is_that_of_a_dead_worker(tmp_path: Path, heartbeat: str) -> None:
    with Leases(StudyFolder(tmp_path), heartbeat=3600) as one, Leases(StudyFolder(tmp_path)) as two:
        assert one.acquire("a")
        one.file.write_text(heartbeat)
        assert two.acquire("a")


def test_a_worker_whose_heartbeat_was_removed_notices_what_it_lost(
    tmp_path: Path,
) -> None:
    """A machine was suspended for long: another worker took it for dead, and took its cell."""
    with Leases(StudyFolder(tmp_path), heartbeat=0.02) as sleeper:
        assert sleeper.acquire("a")
        assert sleeper.acquire("b")
        (cell_path(tmp_path, "a") / ".claim-1").write_text(json.dumps({"worker": "another"}))
        sleeper.file.unlink()
        wait_for(sleeper.file.exists, 10)
        wait_for(sleeper.lost.is_set, 10)
        with Leases(StudyFolder(tmp_path)) as other:
            assert not other.acquire("b"), "it is alive, so its other lease is still valid"


def test_a_process_on_another_machine_of_the_same_name_is_not_looked_up(tmp_path: Path) -> None:
    with (
        Leases(StudyFolder(tmp_path), heartbeat=3600) as far,
        Leases(StudyFolder(tmp_path)) as near,
    ):
        result = json.loads(far.file.read_text())
        assert result["machine"].split()[0] == socket.gethostname()
        far.file.write_text(
            json.dumps(
                {**result, "machine": f"{socket.gethostname()} another boot", "pid": 2**22 + 1}
            )
        )
        assert far.acquire("a")
        assert not near.acquire("a")


def test_a_temporary_study_file_does_not_block_the_folder(write: Write, tmp_path: Path) -> None:
    """Two workers started at once, or one was killed while it wrote the study file."""
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / ".study.123.yaml").write_text("name: tri")
    assert (
        main(
            [
                "run",
                str(write(**FEW, sources=[], targets=["helpdesk/urgency"])),
                "--output",
                str(tmp_path / "study"),
                "--quiet",
            ]
        )
        == 0
    )


def test_a_file_system_without_hard_links_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with Leases(StudyFolder(tmp_path)) as leases:
        monkeypatch.setattr(os, "link", refuse)
        with pytest.raises(UserError, match="supports hard links"):
            leases.acquire("a")
    assert list(cell_path(tmp_path, "a").iterdir()) == []


class TakenOver(StudyWatcher):
    """Another worker takes the first cell over while it is tuned, and leaves without a result."""

    def __init__(self, folder: Path, leases: Leases) -> None:
        self.other, self.leases, self.takeovers = Leases(StudyFolder(folder)), leases, 0

    def on_step(self, run: Run) -> None:
        if not self.takeovers:
            lease = next(iter(self.leases.held.values()))
            lease.with_name(".claim-1").write_text(json.dumps({"worker": self.other.worker}))
            self.takeovers += 1
            wait_for(self.leases.lost.is_set, 20)

    def on_update(self, state: StudyState) -> None:
        if self.takeovers:
            self.other.file.unlink(missing_ok=True)


def test_a_worker_that_lost_a_lease_stops(write: Write, tmp_path: Path) -> None:
    cells = [cell for cell in plan(read_study(write(**FEW)), "cpu") if cell.stage == "baseline"]
    leases = Leases(StudyFolder(tmp_path / "study"), heartbeat=0.05)
    watcher = TakenOver(tmp_path / "study", leases)
    assert work(cells, StudyFolder(tmp_path / "study"), 4, watcher, leases=leases).done == {
        cell.name for cell in cells
    }
    assert watcher.takeovers == 1


def test_a_run_of_a_moved_study_starts_again(tmp_path: Path) -> None:
    """Its config names source prompts that no longer exist."""
    cell = next(cell for cell in planned() if cell.stage == "transfer")
    home = cell_path(tmp_path, cell.name)
    here, elsewhere = (
        start_from(cell.config, [folder / "source"]) for folder in (tmp_path, tmp_path / "other")
    )
    home.mkdir(parents=True)
    files.temporary_path(home / "cell.json", 2**22 + 1).touch()  # of a killed worker
    open_cell(cell, here, StudyFolder(tmp_path))
    here.save(home / "config.yaml")
    (home / "checkpoint.safetensors").touch()
    open_cell(cell, here, StudyFolder(tmp_path))
    assert (home / "checkpoint.safetensors").exists()
    open_cell(cell, elsewhere, StudyFolder(tmp_path))
    assert sorted(path.name for path in home.iterdir()) == ["cell.json"]


def test_a_result_is_committed_once_and_ends_all_leases(tmp_path: Path) -> None:
    with Leases(StudyFolder(tmp_path)) as leases:
        assert leases.acquire("a")
        commit(StudyFolder(tmp_path), CellResult("a", score=1.0))
        commit(StudyFolder(tmp_path), CellResult("a", score=2.0))
        leases.release("a")
        assert not leases.acquire("a")
        assert results(tmp_path)["a"]["score"] == 1.0
        assert sorted(path.name for path in cell_path(tmp_path, "a").iterdir()) == [RESULT]


def test_a_suspended_worker_does_not_touch_a_finished_cell(tmp_path: Path) -> None:
    """It was taken for dead, and another worker finished its cell."""
    cells = {cell.name: cell for cell in planned()}
    cell = next(cell for cell in cells.values() if cell.stage == "source")
    with Leases(StudyFolder(tmp_path)) as slept, Leases(StudyFolder(tmp_path), timeout=-1) as other:
        assert slept.acquire(cell.name)
        assert other.acquire(cell.name), "without heartbeats"
        assert (slept.holds(cell.name), other.holds(cell.name)) == (False, True)
        prompt = cell_path(tmp_path, cell.name) / "prompt.safetensors"
        prompt.touch()
        commit(StudyFolder(tmp_path), CellResult(cell.name, score=1.0))
        other.release(cell.name)
        assert not slept.holds(cell.name)
        with pytest.raises(LeaseLostError):
            run_cohort(slept, [cell], cells)
        assert prompt.exists()


def test_a_worker_that_lost_a_lease_commits_its_other_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = {cell.name: cell for cell in planned()}
    two = [cell for cell in cells.values() if cell.stage == "source"][:2]
    with Leases(StudyFolder(tmp_path)) as slept, Leases(StudyFolder(tmp_path), timeout=-1) as other:
        assert all(slept.acquire(cell.name) for cell in two)

        def tuned(members: Any, *rest: Any, **named: Any) -> list[Any]:
            assert other.acquire(two[0].name)
            return [RunFailedError("no number") for _ in members]

        monkeypatch.setattr(workers, "tune_cohort", tuned)
        monkeypatch.setattr(workers, "_backbone", lambda *_: None)
        with pytest.raises(LeaseLostError):
            run_cohort(slept, two, cells)
        assert [StudyFolder(tmp_path).cell(cell.name).is_done for cell in two] == [False, True]
        assert other.holds(two[0].name)


def test_a_cohort_has_one_model_and_one_number_of_steps() -> None:
    cells = planned(variants={"one": {}, "other": {"backbones": ["some/model"]}}, retrieval={})
    ready = StudyState().ready(cells)
    first = next_cohort(ready, 100)
    assert len({(cell.config.model, cell.config.tuning.steps) for cell in first}) == 1
    assert len(next_cohort(ready, 3)) == 3
    finished_study = planned(settings={"preset": "model-tuning"}, retrieval={})
    assert len(next_cohort(StudyState().ready(finished_study), 8)) == 1, (
        "a finished_study model shares nothing"
    )


def test_a_tuned_model_starts_the_next_run(write: Write, tmp_path: Path) -> None:
    """Multi-task model tuning: the target's run starts from the source's model."""
    tuned = {
        **{name: value for name, value in QUICK.items() if name not in ("preset", "prompt", "lr")},
        "preset": "model-tuning",
    }
    study = write(
        settings=tuned,
        sources=["helpdesk/intent+helpdesk/area"],
        targets=["helpdesk/urgency"],
        seeds=[0],
        retrieval={},
    )
    assert work(plan(read_study(study), "cpu"), StudyFolder(tmp_path / "study"), 4).failed == set()
    (result,) = (
        result for result in results(tmp_path / "study").values() if result["stage"] == "transfer"
    )
    assert result["config"]["model"].endswith("source/helpdesk-intent-helpdesk-area/seed0/model")
