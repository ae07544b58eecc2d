"""Files: whole or not there, and readable by whom the user lets."""

import os
import stat
from pathlib import Path

import pytest
import torch

from softprompts.errors import UserError
from softprompts.files import read_json, share, write_json
from softprompts.files.tensors import check_tensors, read_tensors, write_tensors
from softprompts.tasks.sources import read_rows

from ..conftest import another_user


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077])
def test_every_file_has_the_mode_that_the_umask_gives(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_json(tmp_path / "a.json", {})
        write_tensors(tmp_path / "a.safetensors", {"x": torch.ones(2)})
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "weights").touch(0o600)
        share(tmp_path / "model")
    finally:
        os.umask(before)
    for name in ("a.json", "a.safetensors", "model/weights"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o666 & ~umask, name
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["weights"]


def test_another_users_file_is_said_to_be_anothers_and_not_to_be_missing(commons: Path) -> None:
    write_json(commons / "a.json", {})
    write_tensors(commons / "a.safetensors", {"x": torch.ones(2)})
    (commons / "a.csv").write_text("text,label\nx,y\n")
    for path in commons.iterdir():
        path.chmod(0o600)
    readers = {
        "a.json": read_json,
        "a.safetensors": read_tensors,
        "a.csv": lambda path: read_rows(str(path)),
    }
    with another_user():
        for name, read in readers.items():
            with pytest.raises(
                UserError, match=f"{name} may not be read by this user; ask its owner"
            ):
                read(commons / name)


def test_a_file_that_is_cut_or_missing_is_told_without_its_numbers_being_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.safetensors"
    for look in (check_tensors, read_tensors):
        with pytest.raises(UserError, match="does not exist"):
            look(path)
    write_tensors(path, {"x": torch.ones(100)})
    check_tensors(path)
    path.write_bytes(path.read_bytes()[:-1])
    for look in (check_tensors, read_tensors):
        with pytest.raises(UserError, match="is damaged"):
            look(path)
    with pytest.raises(UserError, match="cannot be read as JSON"):
        read_json(path)
