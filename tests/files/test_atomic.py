"""Files are complete or absent, and those who may not read them get a clear error."""

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from softprompts.errors import UserError
from softprompts.files import read_json, remove_stale, write_json, write_once
from softprompts.files.atomic import temporary_path
from softprompts.files.tensors import check_tensors, read_tensors, write_tensors
from softprompts.tasks.sources import read_rows

from ..conftest import another_user


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_every_file_has_the_mode_of_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_json(tmp_path / "a.json", {})
        write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(2)})
    finally:
        os.umask(before)
    for name in ("a.json", "a.safetensors"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~umask, name


def test_a_file_without_read_permission_is_not_reported_as_missing(commons: Path) -> None:
    write_json(commons / "a.json", {})
    write_tensors(commons / "a.safetensors", {"x": torch.ones(2)})
    (commons / "a.csv").write_text("text,label\nx,y\n")
    for path in commons.iterdir():
        path.chmod(0o600)
    readers: dict[str, Callable[[Path], object]] = {
        "a.json": read_json,
        "a.safetensors": read_tensors,
        "a.csv": lambda path: read_rows(str(path)),
    }
    with another_user():
        for name, read in readers.items():
            with pytest.raises(UserError, match=f"permission to read .*{name}; ask its owner"):
                read(commons / name)


def test_a_corrupted_or_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    for read in (check_tensors, read_tensors):
        with pytest.raises(UserError, match="does not exist"):
            read(path)
    write_tensors(path, {"x": torch.ones(100)})
    check_tensors(path)
    path.write_bytes(path.read_bytes()[:-1])
    for read in (check_tensors, read_tensors):
        with pytest.raises(UserError, match="is corrupted"):
            read(path)
    with pytest.raises(UserError, match="cannot be read as JSON"):
        read_json(path)


def test_a_path_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"written \(.*file is not a folder\); choose another path"):
        write_tensors(tmp_path / "file" / "x.safetensors", {"a": torch.zeros(2)})


def test_only_temporary_files_of_dead_processes_of_this_host_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    running = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        written = temporary_path(path, running.pid)
        stale = temporary_path(path, 999999999)
        remote = tmp_path / ".checkpoint.0123abcd-999999999.safetensors"
        for temporary in (written, stale, remote):
            temporary.touch()
        remove_stale(tmp_path, [path.name])
        assert sorted(tmp_path.iterdir()) == sorted([written, remote])
    finally:
        running.kill()
        running.wait()


def test_of_several_writers_exactly_one_writes_a_file_once(tmp_path: Path) -> None:
    path, start, written = tmp_path / "a.json", threading.Barrier(8), []

    def write(number: int) -> None:
        start.wait()
        if write_once(path, {"writer": number}):
            written.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(written) == 1
    assert read_json(path) == {"writer": written[0]}
    assert list(tmp_path.iterdir()) == [path]


def test_write_once_needs_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(UserError, match="file system that supports hard links"):
        write_once(tmp_path / "a.json", {})
    assert list(tmp_path.iterdir()) == []
