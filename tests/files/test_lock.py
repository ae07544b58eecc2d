"""One process at a time in an output folder: a second one is refused and changes nothing."""

import errno
import socket
import threading
import time
from pathlib import Path

import pytest

from softprompts.cli import main
from softprompts.errors import UserError
from softprompts.files.lock import LOCK_FILE, exclusive

from ..conftest import write_toy
from ..pretraining.conftest import texts
from ..processes import ForkServer

fcntl = pytest.importorskip("fcntl", reason="a folder is locked on POSIX systems only")

STOPPING = """
import os, signal, sys, torch
torch.set_num_threads(1)
from softprompts import cli
from softprompts.pretraining.run import Pretraining
from softprompts.tuning import cohort

def stop_after(save):
    def save_and_stop(*arguments):
        save(*arguments)
        os.kill(os.getpid(), signal.SIGSTOP)
    return save_and_stop

cohort.save_checkpoint = stop_after(cohort.save_checkpoint)
Pretraining.save = stop_after(Pretraining.save)
sys.exit(cli.main(sys.argv[1:]))
"""
"""The command line, which stops for good at its first checkpoint."""

QUICK = [
    *("--steps", "4", "--batch-size", "4", "--checkpoint-every", "2", "--prompt.length", "3"),
    *("--max-length", "40", "--device", "cpu"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labelled reviews, a text, and a prompt to start from."""
    folder = tmp_path_factory.mktemp("home")
    write_toy(folder)
    (folder / "text.txt").write_text("\n\n".join(texts()), encoding="utf-8")
    assert main([*on_reviews(folder, "tune"), "--output", str(folder / "source")]) == 0
    return folder


def on_reviews(home: Path, command: str) -> list[str]:
    data = ["--train", str(home / "reviews.csv"), "--text", "review", "--label", "mood"]
    return [command, *data, "--preset", "prompt-tuning", *QUICK]


def commands(home: Path) -> dict[str, list[str]]:
    sizes = "--d-model 16 --d-kv 8 --d-ff 32 --num-layers 1 --num-decoder-layers 1 --num-heads 2"
    rows = "--vocabulary 150 --sentinels 9 --input-length 24 --batch-tokens 320 --processes 1"
    steps = "--steps 4 --warmup 1 --checkpoint-every 2 --device cpu"
    pretrain = ["pretrain", "--text", str(home / "text.txt"), "--objectives", "span=1"]
    return {
        "a run": on_reviews(home, "tune"),
        "a cohort": [*on_reviews(home, "tune"), "--seed", "0,1"],
        "a transfer": [*on_reviews(home, "transfer"), "--from", str(home / "source")],
        "pretraining": [*pretrain, *f"{sizes} {rows} {steps}".split()],
    }


def contents(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("name", ["a run", "a cohort", "a transfer", "pretraining"])
def test_a_second_process_is_refused_until_the_first_ends(
    name: str,
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    torch_server: ForkServer,
) -> None:
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "out"
    command = [*commands(home)[name], "--output", str(folder), "--quiet"]
    with torch_server.start(command, code=STOPPING) as first:
        while not first.stopped:
            assert first.poll() is None, first.stderr
            time.sleep(0.01)
        before = contents(folder)
        assert folder / LOCK_FILE in before
        for more in ([], ["--overwrite"]):
            assert main([*command, *more]) == 2
            holder = f"(process {first.pid} on host {socket.gethostname()})"
            message = (
                f"softprompts: Another process is using {folder} {holder}; "
                "wait until it ends, or choose another --output.\n"
            )
            assert capsys.readouterr() == ("", message)
            assert contents(folder) == before
    assert main(command) == 0
    assert not list(folder.rglob(LOCK_FILE))
    assert list(folder.rglob("prompt.json" if name != "pretraining" else "training.json"))


def test_of_many_threads_one_at_a_time_holds_the_lock_and_nothing_is_left(tmp_path: Path) -> None:
    """The threads create and remove the folder and the file concurrently."""
    folder, inside, most, entered = tmp_path / "deep" / "folder", 0, 0, 0
    counting = threading.Lock()

    def work() -> None:
        nonlocal inside, most, entered
        for _ in range(200):
            try:
                with exclusive(folder):
                    with counting:
                        inside, entered = inside + 1, entered + 1
                        most = max(most, inside)
                    time.sleep(0)
                    with counting:
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
    assert not list(tmp_path.rglob(LOCK_FILE))


def test_only_new_folders_that_stay_empty_are_removed(tmp_path: Path) -> None:
    with exclusive(tmp_path / "new" / "er"):
        assert (tmp_path / "new" / "er" / LOCK_FILE).exists()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / LOCK_FILE).write_text("left by a killed process")
    with exclusive(tmp_path / "old"):
        pass
    with exclusive(tmp_path / "full"):
        (tmp_path / "full" / "file").touch()
    assert sorted(tmp_path.rglob("*")) == [
        tmp_path / "full",
        tmp_path / "full" / "file",
        tmp_path / "old",
    ]


def test_a_file_system_without_locks_is_used_unlocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", fail)
    with exclusive(tmp_path / "run"), exclusive(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
