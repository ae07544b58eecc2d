"""Folders are complete or absent, whatever happens while they are written."""

import os
import stat
from pathlib import Path

import pytest
from safetensors import SafetensorError

from softprompts.errors import UserError
from softprompts.files import restore_folders, staged_files, staged_folder
from softprompts.files.atomic import temporary_path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_when_the_block_ends_and_replaces_the_previous_one(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "model.v1"
    for text, other in (("first", "a"), ("second", "b")):
        with staged_folder(path) as staged:
            (staged / "weights").write_text(text)
            (staged / other).mkdir()
            assert not path.exists() or (path / "weights").read_text() != text
        assert (path / "weights").read_text() == text
        assert names(path) == [other, "weights"]
        assert names(path.parent) == ["model.v1"]


@pytest.mark.parametrize("exists", [False, True])
def test_an_error_leaves_the_folder_as_it_was(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "weights").write_text("old")

    def fail_halfway(folder: Path) -> None:
        (folder / "weights").write_text("new")
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"), staged_folder(tmp_path / "model") as staged:
        fail_halfway(staged)
    assert names(tmp_path) == (["model"] if exists else [])
    assert not exists or (tmp_path / "model" / "weights").read_text() == "old"


@pytest.mark.parametrize("error", [OSError(28, "No space left"), SafetensorError("No space left")])
def test_a_full_disk_is_a_clear_error(tmp_path: Path, error: Exception) -> None:
    with (
        pytest.raises(UserError, match=r"model cannot be written \(No space left\); buy a disk\."),
        staged_folder(tmp_path / "model", "buy a disk"),
    ):
        raise error
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"), staged_folder(tmp_path / "file/x"):
        pass


def test_an_old_folder_comes_back_if_the_new_one_cannot_be_moved_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with staged_folder(tmp_path / "model") as staged:
        (staged / "weights").write_text("old")
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if path.name.startswith(".new-"):
            raise OSError(5, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(UserError, match="Input/output"), staged_folder(tmp_path / "model"):
        pass
    assert names(tmp_path) == ["model"]
    assert (tmp_path / "model" / "weights").read_text() == "old"


def test_what_killed_processes_left_is_removed_or_restored(tmp_path: Path) -> None:
    dead = temporary_path(tmp_path / "new-model", 2**22 + 1)
    running = temporary_path(tmp_path / "new-model", os.getppid())
    for path in (dead, running, tmp_path / ".old-model"):
        path.mkdir()
        (path / "weights").touch()
    with staged_folder(tmp_path / "model"):
        pass
    assert names(tmp_path) == sorted([running.name, "model"])
    (tmp_path / ".old-other").mkdir()
    (tmp_path / ".old-model").mkdir()
    (tmp_path / ".lock").touch()
    restore_folders(tmp_path)
    assert names(tmp_path) == [".lock", "model", "other"]


def test_a_link_is_replaced_but_not_what_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "weights").touch()
    (tmp_path / "model").symlink_to(tmp_path / "elsewhere")
    with staged_folder(tmp_path / "model") as staged:
        (staged / "new").touch()
    assert names(tmp_path) == ["elsewhere", "model"]
    assert names(tmp_path / "elsewhere") == ["weights"]
    assert names(tmp_path / "model") == ["new"]


def test_files_are_moved_in_with_the_named_one_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").write_text("stays")
    moved, replace = [], os.replace

    def record(source: Path, target: Path) -> None:
        moved.append(target.name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", record)
    with staged_files(tmp_path, "b") as staged:
        for name in "abc":
            (staged / name).write_text(name)
        assert not (tmp_path / "a").exists()
    assert moved[-1] == "b"
    assert names(tmp_path) == ["a", "b", "c", "other"]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_files_in_a_folder_have_the_mode_of_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with staged_folder(tmp_path / "model") as staged:
            (staged / "deep").mkdir()
            (staged / "deep" / "weights").touch(0o600)
    finally:
        os.umask(before)
    mode = (tmp_path / "model" / "deep" / "weights").stat().st_mode
    assert stat.S_IMODE(mode) == 0o666 & ~umask
    assert names(tmp_path / "model") == ["deep"]
