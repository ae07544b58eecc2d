"""Studies: each cell is run once, whoever is killed, silent or robbed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from softprompts.cli.study import main
from softprompts.errors import UserError
from softprompts.files import atomic as files
from softprompts.study import processes as company
from softprompts.study import workers
from softprompts.study.cells import RESULT, commit, is_done, open_cell, place
from softprompts.study.leases import WORKERS, Claims, _process, owner
from softprompts.study.plan import plan, read_study
from softprompts.study.records import status
from softprompts.study.workers import LostError, State, StudyWatcher, cohort_of, run_cohort, work
from softprompts.transfer.strategies import start_from
from softprompts.tuning import Run, RunFailedError

from .conftest import FEW, QUICK, Write, planned, results, scores

START = "import sys, torch; torch.set_num_threads(1); from softprompts.transfer.study_command import main; sys.exit(main(sys.argv[1:]))"


def started(study: Path, folder: Path, *more: str) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        "-c",
        START,
        "run",
        str(study),
        "--output",
        str(folder),
        "--device",
        "cpu",
        "--cohort",
        "1",
        "--quiet",
        *more,
    ]
    with folder.with_name("stderr").open("wb") as stderr:
        surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        heard = partial(
            signal.signal, signal.SIGINT, signal.SIG_DFL
        )  # what runs in a shell's background is deaf to Ctrl-C
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=stderr, env=surroundings, preexec_fn=heard
        )


def wait_for(what: Callable[[], bool], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def test_two_workers_are_killed_and_a_third_ends_the_study(
    write: Write, whole: Path, tmp_path: Path
) -> None:
    """Who comes later takes over what the dead held; no cell is lost, none is run into the results twice."""
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
    assert status(plan(read_study(study)), folder)["running"] == [], "the dead hold nothing"
    assert main(["run", str(study), "--output", str(folder), "--device", "cpu"]) == 0
    after = results(folder)
    assert {name: after[name] for name in before} == before, "finished cells stay as they are"
    assert len(after) == 16
    assert scores(folder).items() <= scores(whole).items()


def test_one_command_has_several_workers_which_end_with_it(write: Write, tmp_path: Path) -> None:
    study, folder = write(**FEW, source={"steps": 40}, target={"steps": 40}), tmp_path / "study"
    command = started(study, folder, "--workers", "3")
    try:
        wait_for(lambda: len(list((folder / WORKERS).glob("[!.]*.json"))) == 3)
        assert command.wait(120) == 0
    finally:
        command.kill()
    found = results(folder)
    assert len(found) == 8
    assert len({told["worker"] for told in found.values()}) > 1
    assert not list((folder / WORKERS).glob("[!.]*.json")), "all have left"
    assert folder.with_name("stderr").read_text() == "", "and quietly"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_of_a_command_that_is_stopped_stop_too(
    write: Write, tmp_path: Path, how: signal.Signals
) -> None:
    study, folder = write(**FEW, source={"steps": 4000}, target={"steps": 4}), tmp_path / "study"
    command = started(study, folder, "--workers", "2")
    try:
        wait_for(lambda: len(list((folder / WORKERS).glob("[!.]*.json"))) == 2)
        command.send_signal(how)
        assert command.wait(60) != 0
    finally:
        command.kill()
    wait_for(lambda: status(plan(read_study(study)), folder)["running"] == [], 20)


def test_a_worker_that_is_killed_is_missed_at_once_and_one_that_hangs_is_not_waited_for(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(company, "PATIENCE", 0.5)
    study = write(**FEW, source={"steps": 4000}, target={"steps": 4})
    hangs = [sys.executable, "-c", "import time; time.sleep(600)"]
    real, begun = subprocess.Popen, []

    def start(command: list[str], **how: Any) -> "subprocess.Popen[bytes]":
        begun.append(real(hangs, **how))
        return begun[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with company.company(["run", str(study)], 3):
        assert len(begun) == 2
        begun[0].kill()
        wait_for(lambda: not _process(begun[0].pid), 10)
        assert _process(begun[1].pid)
    assert all(worker.poll() is not None for worker in begun)


def test_either_a_ray_cluster_or_workers(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="either --ray or --workers"):
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


def test_a_study_goes_on_with_the_model_it_began_with(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another model under the same name is refused, and what is done stays; so is a report of both."""
    study, folder = write(**FEW), tmp_path / "study"
    command = ["run", str(study), "--output", str(folder), "--device", "cpu"]
    assert main([*command, "--only", "baseline"]) == 0
    before = results(folder)
    other = {name: {**told, "fingerprint": "another"} for name, told in before.items()}
    for name, told in other.items():
        (place(folder, name) / RESULT).write_text(json.dumps(told))
    with pytest.raises(
        UserError, match=r"was done on another .* than it is now.*give another --output"
    ):
        main(command)
    assert results(folder) == other
    changed = next(iter(before))
    (place(folder, changed) / RESULT).write_text(json.dumps(before[changed]))
    with pytest.raises(UserError, match="cannot be compared"):
        main(["report", str(folder)])


def holds(folder: Path, process: int) -> bool:
    """Whether a worker has claimed a cell."""
    owners = [owner(claim) for claim in folder.rglob(".claim-*")]
    return any(f"-{process}-" in worker for worker in owners if worker is not None)


def test_a_claim_is_one_workers(tmp_path: Path) -> None:
    with Claims(tmp_path) as one, Claims(tmp_path) as other:
        assert one.take("a")
        assert not other.take("a")
        assert not one.take("a")
        assert other.take("b")
    with Claims(tmp_path) as third:
        assert third.take("a"), "who left holds nothing"


def test_of_many_that_race_one_gets_it(tmp_path: Path) -> None:
    workers = [Claims(tmp_path) for _ in range(8)]
    got: list[str] = []
    barrier = threading.Barrier(8)

    def race(claims: Claims) -> None:
        for number in range(20):
            barrier.wait()
            if claims.take(f"cell{number}"):
                got.append(f"cell{number}")

    threads = [threading.Thread(target=race, args=(claims,)) for claims in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(f"cell{number}" for number in range(20))


def test_the_silent_are_taken_over_and_notice(tmp_path: Path) -> None:
    with Claims(tmp_path, beat=3600) as silent, Claims(tmp_path, beat=0.01, stale=30) as other:
        assert silent.take("a")
        assert not other.take("a")
        os.utime(silent.sign, (time.time() - 60, time.time() - 60))
        assert other.take("a")
        assert not silent.take("a")
        assert silent._is_lost("a", silent.held["a"])
        time.sleep(0.1)
        assert not other.lost.is_set()


def test_a_worker_of_another_machine_is_judged_by_its_signs_of_life(tmp_path: Path) -> None:
    with Claims(tmp_path, beat=3600) as far, Claims(tmp_path) as near:
        far.sign.write_text(json.dumps({"host": "elsewhere", "pid": 2**22 + 1}))
        assert far.take("a")
        assert not near.take("a"), "its process is not ours to look for"
        far.sign.unlink()
        assert near.take("a")


def test_a_worker_whose_sign_was_cleared_away_comes_back_and_notices_what_it_lost(
    tmp_path: Path,
) -> None:
    """A machine that slept for long: who came meanwhile took it for dead, and took its cell."""
    with Claims(tmp_path, beat=0.02) as sleeper:
        assert sleeper.take("a")
        assert sleeper.take("b")
        (place(tmp_path, "a") / ".claim-1").write_text(json.dumps({"worker": "another"}))
        sleeper.sign.unlink()
        wait_for(sleeper.sign.exists, 10)
        wait_for(sleeper.lost.is_set, 10)
        with Claims(tmp_path) as other:
            assert not other.take("b"), "it lives, so what nobody took is still its own"


def test_another_machine_of_the_same_name_is_not_looked_for_here(tmp_path: Path) -> None:
    with Claims(tmp_path, beat=3600) as far, Claims(tmp_path) as near:
        told = json.loads(far.sign.read_text())
        assert told["machine"].split()[0] == socket.gethostname()
        far.sign.write_text(
            json.dumps(
                {**told, "machine": f"{socket.gethostname()} another boot", "pid": 2**22 + 1}
            )
        )
        assert far.take("a")
        assert not near.take("a")


def test_a_study_file_on_its_way_is_no_reason_to_refuse_the_folder(
    write: Write, tmp_path: Path
) -> None:
    """Two workers that start at once, or one that was killed while it wrote the study file."""
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


def test_a_file_system_that_takes_no_claims_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with Claims(tmp_path) as claims:
        monkeypatch.setattr(os, "link", refuse)
        with pytest.raises(UserError, match="where files can have two names"):
            claims.take("a")
    assert list(place(tmp_path, "a").iterdir()) == []


class Robbed(StudyWatcher):
    """Someone takes the first cell over while it is tuned, and leaves without finishing it."""

    def __init__(self, folder: Path, own: Claims) -> None:
        self.other, self.own, self.robbed = Claims(folder), own, 0

    def on_step(self, run: Run) -> None:
        if not self.robbed:
            claim = next(iter(self.own.held.values()))
            claim.with_name(".claim-1").write_text(json.dumps({"worker": self.other.worker}))
            self.robbed += 1
            wait_for(self.own.lost.is_set, 20)

    def looked(self, state: State) -> None:
        if self.robbed:
            self.other.sign.unlink(missing_ok=True)


def test_a_worker_that_lost_a_cell_lets_it_go(write: Write, tmp_path: Path) -> None:
    cells = [cell for cell in plan(read_study(write(**FEW)), "cpu") if cell.stage == "baseline"]
    own = Claims(tmp_path / "study", beat=0.05)
    watcher = Robbed(tmp_path / "study", own)
    assert work(cells, tmp_path / "study", 4, watcher, claims=own).done == {
        cell.name for cell in cells
    }
    assert watcher.robbed == 1


def test_a_run_begun_elsewhere_is_begun_anew(tmp_path: Path) -> None:
    """Where the study's folder was moved, a run's config names source prompts that are not there."""
    cell = next(cell for cell in planned() if cell.stage == "transfer")
    home = place(tmp_path, cell.name)
    here, elsewhere = (
        start_from(cell.config, [folder / "source"]) for folder in (tmp_path, tmp_path / "other")
    )
    home.mkdir(parents=True)
    files.temporary_path(home / "cell.json", 2**22 + 1).touch()  # what a killed worker left
    open_cell(cell, here, tmp_path)
    here.save(home / "config.yaml")
    (home / "checkpoint.safetensors").touch()
    open_cell(cell, here, tmp_path)
    assert (home / "checkpoint.safetensors").exists()
    open_cell(cell, elsewhere, tmp_path)
    assert sorted(path.name for path in home.iterdir()) == ["cell.json"]


def test_a_result_is_committed_once_and_what_is_done_is_not_claimed(tmp_path: Path) -> None:
    with Claims(tmp_path) as claims:
        assert claims.take("a")
        assert commit(tmp_path, {"cell": "a", "score": 1.0})
        assert not commit(tmp_path, {"cell": "a", "score": 2.0})
        claims.drop("a")
        assert not claims.take("a")
        assert results(tmp_path)["a"]["score"] == 1.0
        assert sorted(path.name for path in place(tmp_path, "a").iterdir()) == [RESULT]


def test_a_worker_that_slept_leaves_a_finished_cell_alone(tmp_path: Path) -> None:
    """It was taken for dead, its cell run by another and finished; what it finds when it wakes is not its own any more."""
    cells = {cell.name: cell for cell in planned()}
    cell = next(cell for cell in cells.values() if cell.stage == "source")
    with Claims(tmp_path) as slept, Claims(tmp_path, stale=-1) as other:
        assert slept.take(cell.name)
        assert other.take(cell.name), "nobody was heard of"
        assert (slept.holds(cell.name), other.holds(cell.name)) == (False, True)
        prompt = place(tmp_path, cell.name) / "prompt.safetensors"
        prompt.touch()
        commit(tmp_path, {"cell": cell.name, "score": 1.0})
        other.drop(cell.name)
        assert not slept.holds(cell.name)
        with pytest.raises(LostError):
            run_cohort(slept, [cell], cells)
        assert prompt.exists()


def test_a_worker_that_lost_a_cell_commits_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = {cell.name: cell for cell in planned()}
    two = [cell for cell in cells.values() if cell.stage == "source"][:2]
    with Claims(tmp_path) as slept, Claims(tmp_path, stale=-1) as other:
        assert all(slept.take(cell.name) for cell in two)

        def tuned(members: Any, *rest: Any, **named: Any) -> list[Any]:
            assert other.take(two[0].name)
            return [RunFailedError("no number") for _ in members]

        monkeypatch.setattr(workers, "tune_cohort", tuned)
        monkeypatch.setattr(workers, "_backbone", lambda *_: None)
        with pytest.raises(LostError):
            run_cohort(slept, two, cells)
        assert [is_done(tmp_path, cell.name) for cell in two] == [False, True]
        assert other.holds(two[0].name)


def test_a_cohort_is_of_one_model_and_one_length() -> None:
    cells = planned(variants={"one": {}, "other": {"backbones": ["some/model"]}}, retrieval={})
    ready = State().ready(cells)
    first = cohort_of(ready, 100)
    assert len({(cell.config.model, cell.config.tuning.steps) for cell in first}) == 1
    assert len(cohort_of(ready, 3)) == 3
    whole = planned(settings={"preset": "model-tuning"}, retrieval={})
    assert len(cohort_of(State().ready(whole), 8)) == 1, "a whole model shares nothing"


def test_a_model_that_learned_starts_the_next(write: Write, tmp_path: Path) -> None:
    """Multi-task model tuning: the target's run begins with the source's model."""
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
    assert work(plan(read_study(study), "cpu"), tmp_path / "study", 4).failed == set()
    (told,) = (told for told in results(tmp_path / "study").values() if told["stage"] == "transfer")
    assert told["config"]["model"].endswith("source/helpdesk-intent-helpdesk-area/seed0/model")
