"""A run's folder: whose it is, what is removed, copied and kept."""

import dataclasses
import subprocess
from pathlib import Path

import pytest
import torch

import softprompts
from softprompts.artifacts.file_names import COHORT_TABLE
from softprompts.artifacts.run_folder import CHECKPOINT_FORMAT, FILES, RunFolder
from softprompts.config import RunConfig
from softprompts.errors import UserError
from softprompts.files.tensors import read_tensors, write_tensors
from softprompts.prompt.prompt import folded_prompt

from ..cards import card

CONFIG = RunConfig()


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A finished run's."""
    folder = RunFolder(tmp_path / "run")
    folder.write_config(CONFIG)
    folder.write_metrics([{"step": 1}])
    described = card(config=CONFIG.plain())
    folder.save(folded_prompt(torch.randn(1, 3, 8)), described, torch.randn(1, 3, 8))
    folder.write_checkpoint({"state/prompt/table": torch.zeros(1)}, {"step": 1})
    return folder


def names(folder: RunFolder) -> set[str]:
    return {path.name for path in folder.path.iterdir()}


def test_file_names_are_written_down_once() -> None:
    """Other modules ask `RunFolder`; pretraining's folders are not runs."""
    source = Path(softprompts.__file__).parent
    for name in (*FILES, COHORT_TABLE):
        command = ["grep", "-rlE", f"[\"'/]{name}[\"']", "--include=*.py", str(source)]
        found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        modules = {Path(line).relative_to(source).as_posix() for line in found.split()}
        assert modules - {"pretraining/run.py", "pretraining/train.py"} == {
            "artifacts/file_names.py"
        }


def test_a_run_resumes_in_its_folder(folder: RunFolder) -> None:
    folder.check_available(CONFIG, 10, overwrite=False)
    folder.remove_checkpoint()
    with pytest.raises(UserError, match="already holds a prompt; choose another output"):
        folder.check_available(CONFIG, 10, overwrite=False)
    folder.check_available(CONFIG, 10, overwrite=True)


def test_a_run_without_steps_replaces_only_its_own_prompt(folder: RunFolder) -> None:
    folder.remove_checkpoint()
    folder.check_available(CONFIG, 0, overwrite=False)
    with pytest.raises(UserError, match="already holds a prompt"):
        folder.check_available(dataclasses.replace(CONFIG, seed=1), 0, overwrite=False)


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / "notes.txt").touch()
    folder.check_available(CONFIG, 10, overwrite=False)
    (tmp_path / "curve.png").touch()
    with pytest.raises(UserError, match=r"curve.png was not written by softprompts"):
        folder.check_available(CONFIG, 10, overwrite=True)
    (tmp_path / "config.yaml").write_text("lr: 1\n")
    with pytest.raises(UserError, match=r"config.yaml was not written by softprompts"):
        folder.check_available(CONFIG, 10, overwrite=True)


def test_clearing_removes_the_run_and_nothing_else(folder: RunFolder) -> None:
    for path in (folder.model, folder.trackers):
        path.mkdir()
    (folder.path / "notes.txt").touch()
    folder.clear()
    assert names(folder) == {"notes.txt"}


def test_a_copy_has_no_training_state(folder: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(tmp_path / "copy")
    copy.check_overwrite(overwrite=False)
    folder.copy_prompt(copy.path)
    assert names(copy) == names(folder) - {"checkpoint.safetensors"}
    assert copy.card() == folder.card()
    assert torch.equal(copy.task_vectors(), folder.task_vectors())
    with pytest.raises(UserError, match=r"already holds prompt.json"):
        copy.check_overwrite(overwrite=False)


def test_a_stamp_changes_with_the_prompt(folder: RunFolder) -> None:
    before = folder.stamp()
    assert folder.stamp() == before
    folder.save(folded_prompt(torch.randn(1, 3, 8)), card())
    assert folder.stamp() != before


def test_without_an_embedding_the_vectors_represent_the_task(folder: RunFolder) -> None:
    embedding = folder.embedding()
    assert embedding is not None
    assert torch.equal(folder.task_vectors(), embedding)
    prompt = folded_prompt(torch.randn(1, 3, 8))
    folder.save(prompt, card())
    assert folder.embedding() is None, "another prompt's embedding does not stay"
    assert torch.equal(folder.task_vectors(), prompt.table)


@pytest.mark.parametrize(
    "tensors",
    [
        {"vectors": torch.zeros(3, 4)},
        {"other": torch.zeros(1, 3, 4)},
        {"vectors": torch.full((1, 2, 3), float("nan"))},
    ],
)
def test_invalid_vectors_are_a_clear_error(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    write_tensors(tmp_path / "embedding.safetensors", tensors)
    with pytest.raises(UserError, match="holds no valid prompt vectors"):
        RunFolder(tmp_path).embedding()


def test_checkpoints_of_another_format_are_refused(folder: RunFolder) -> None:
    tensors, note = read_tensors(folder.checkpoint)
    del note["format"]
    write_tensors(folder.checkpoint, tensors, note)
    assert folder.read_checkpoint_note() == {"step": 1}, "older versions named no format"
    write_tensors(folder.checkpoint, tensors, {**note, "format": CHECKPOINT_FORMAT + 1})
    with pytest.raises(UserError, match="another version of softprompts"):
        folder.read_checkpoint()
