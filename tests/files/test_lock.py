"""One process at a time in an output folder: the second is refused and touches nothing, and the dead hold nothing."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from softprompts.cli.main import main
from softprompts.errors import UserError
from softprompts.files.lock import LOCK, exclusive

from ..conftest import write_toy
from ..pretraining.conftest import texts

fcntl = pytest.importorskip("fcntl", reason="a folder is locked on POSIX systems only")

STOPPING = """
import os, signal, sys, torch
torch.set_num_threads(1)
from softprompts import cli
from softprompts.pretraining.train import Pretraining
from softprompts.tuning import cohort

def stop_after(save):
    def saved(*given):
        save(*given)
        os.kill(os.getpid(), signal.SIGSTOP)
    return saved

cohort.save_checkpoint, Pretraining.save = stop_after(cohort.save_checkpoint), stop_after(Pretraining.save)
sys.exit(cli.main(sys.argv[1:]))
"""
"""The command line, but it stops for good at its first checkpoint."""

QUICK = [
    "--steps",
    "4",
    "--batch-size",
    "4",
    "--checkpoint-every",
    "2",
    "--prompt.length",
    "3",
    "--max-length",
    "40",
    "--device",
    "cpu",
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reviews, a text, and a prompt to start from."""
    folder = tmp_path_factory.mktemp("home")
    write_toy(folder)
    (folder / "text.txt").write_text("\n\n".join(texts()), encoding="utf-8")
    assert main([*own(folder, "tune"), "--output", str(folder / "source")]) == 0
    return folder


def own(home: Path, command: str) -> list[str]:
    return [
        command,
        "--train",
        str(home / "reviews.csv"),
        "--text",
        "review",
        "--label",
        "mood",
        "--preset",
        "prompt-tuning",
        *QUICK,
    ]


def commands(home: Path) -> dict[str, list[str]]:
    sizes = [
        "--d-model",
        "16",
        "--d-kv",
        "8",
        "--d-ff",
        "32",
        "--num-layers",
        "1",
        "--num-decoder-layers",
        "1",
        "--num-heads",
        "2",
    ]
    rows = [
        "--vocabulary",
        "150",
        "--sentinels",
        "9",
        "--input-length",
        "24",
        "--batch-tokens",
        "320",
        "--processes",
        "1",
    ]
    pretrain = [
        "pretrain",
        "--text",
        str(home / "text.txt"),
        "--objectives",
        "span=1",
        *sizes,
        *rows,
        "--device",
        "cpu",
    ]
    return {
        "a run": own(home, "tune"),
        "a cohort": [*own(home, "tune"), "--seed", "0,1"],
        "a transfer": [*own(home, "transfer"), "--from", str(home / "source")],
        "pretraining": [*pretrain, "--steps", "4", "--warmup", "1", "--checkpoint-every", "2"],
    }


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.usefixtures("no_curves")
@pytest.mark.parametrize("name", ["a run", "a cohort", "a transfer", "pretraining"])
def test_a_second_process_is_refused_until_the_first_is_dead(
    name: str,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "cache"))
    command, folder = (
        [*commands(home)[name], "--output", str(tmp_path / "out"), "--quiet"],
        tmp_path / "out",
    )
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    first = subprocess.Popen(
        [sys.executable, "-c", STOPPING, *command], stdout=subprocess.DEVNULL, env=path
    )
    try:
        assert os.WIFSTOPPED(os.waitpid(first.pid, os.WUNTRACED)[1]), "it is at work"
        before = contents(folder)
        assert folder / LOCK in before
        for more in ([], ["--overwrite"]):
            assert main([*command, *more]) == 2
            who = f"(process {first.pid} on host {socket.gethostname()})"
            told = f"softprompts: Another process is at work in {folder} {who}; wait for it, or name another --output.\n"
            assert capsys.readouterr() == ("", told)
            assert contents(folder) == before
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert main(command) == 0
    assert not list(folder.rglob(LOCK))
    assert list(folder.rglob("prompt.json" if name != "pretraining" else "training.json"))


def test_of_many_one_at_a_time_is_at_work_and_nothing_is_left(tmp_path: Path) -> None:
    """They make and remove the folder and the file under each other's eyes."""
    folder, inside, most, entered = tmp_path / "some" / "where", 0, 0, 0
    count = threading.Lock()

    def work() -> None:
        nonlocal inside, most, entered
        for _ in range(200):
            try:
                with exclusive(folder):
                    with count:
                        inside, entered = inside + 1, entered + 1
                        most = max(most, inside)
                    time.sleep(0)
                    with count:
                        inside -= 1
            except UserError:
                continue

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most, inside) == (1, 0)
    assert entered > 0
    assert not list(tmp_path.rglob(LOCK))


def test_a_folder_that_nothing_came_into_goes_and_others_stay(tmp_path: Path) -> None:
    with exclusive(tmp_path / "new" / "er"):
        assert (tmp_path / "new" / "er" / LOCK).exists()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / LOCK).write_text("what a killed process left")
    with exclusive(tmp_path / "old"):
        pass
    with exclusive(tmp_path / "full"):
        (tmp_path / "full" / "file").touch()
    assert sorted(tmp_path.rglob("*")) == [
        tmp_path / "full",
        tmp_path / "full" / "file",
        tmp_path / "old",
    ]


def test_where_files_cannot_be_locked_it_goes_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with exclusive(tmp_path / "run"), exclusive(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
