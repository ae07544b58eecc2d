"""Runs that another study has finished are copied, not repeated."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from softprompts.artifacts.file_names import RESULT
from softprompts.artifacts.study_folder import StudyFolder
from softprompts.cli import main
from softprompts.errors import UserError
from softprompts.study.config import read_study
from softprompts.study.plan import plan
from softprompts.study.reuse import reuse_cells

from .conftest import GRID, QUICK, Write, cell_path, results

SMALL: dict[str, Any] = {
    "sources": [],
    "retrieval": {},
    "targets": ["helpdesk/urgency"],
    "seeds": [0, 1],
    "settings": {**QUICK, "steps": 2},
    "choose": {"lr": [0.1, 0.3]},
}
LONG = {"settings": {"prompt": {"length": 5}}}
FIRST = {"variants": {"short": {}, "long": LONG}}
SECOND = {"variants": {"five": LONG, "six": {"settings": {"prompt": {"length": 6}}}}}


def run(study: Path, folder: Path, *more: str) -> int:
    flags = ["--output", str(folder), "--device", "cpu", "--quiet"]
    return main(["study", "run", str(study), *flags, *more])


@pytest.fixture(scope="module")
def first(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study, which no test changes."""
    folder = tmp_path_factory.mktemp("first")
    (folder / "first.yaml").write_text(
        yaml.safe_dump({**GRID, "backbones": [model], **SMALL, **FIRST})
    )
    assert run(folder / "first.yaml", folder / "study") == 0
    return folder / "study"


def test_cells_with_the_same_settings_are_copied_and_the_others_run(
    write: Write, tmp_path: Path, first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, study = tmp_path / "second", write("second.yaml", **SMALL, **SECOND)
    capsys.readouterr()
    assert run(study, folder, "--reuse", str(first), "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["done"], status["reused"]) == (8, 4)
    before = results(first)
    for name, result in results(folder).items():
        if result["variant"] == "six":
            assert "reused" not in result
            continue
        origin = name.replace("five", "long", 1)
        assert result["reused"] == f"trial: {origin}"
        named = ("cell", "variant", "beside", "resumed", "reused")
        for there in (result, before[origin]):
            there.update(dict.fromkeys(named))
        assert result == before[origin]
        for file in ("prompt.safetensors", "predictions.json", "metrics.jsonl", "prompt.json"):
            copy = (cell_path(folder, name) / file).read_bytes()
            assert copy == (cell_path(first, origin) / file).read_bytes()
    # as if it had been run here: it resumes, and nothing is copied again
    assert run(study, folder, "--reuse", str(first)) == 0
    assert main(["study", "report", str(folder), "--quiet"]) == 0


def test_a_copied_run_uses_the_settings_that_were_chosen_for_it(
    write: Write, tmp_path: Path, first: Path
) -> None:
    """With other rates to choose from, or a choice of its own, a cell is run here."""
    narrower = {**SMALL, **SECOND, "choose": {"lr": [0.1, 0.2]}}
    cells = plan(read_study(write("narrower.yaml", **narrower)))
    copied = reuse_cells(cells, StudyFolder(tmp_path / "a"), StudyFolder(first))
    assert [name.split("/")[-2:] for name in copied] == [["lr-0.1", "seed0"]]

    study = write("second.yaml", **SMALL, **SECOND)
    folder = tmp_path / "b"
    assert run(study, folder, "--only", "choice") == 0
    assert reuse_cells(plan(read_study(study)), StudyFolder(folder), StudyFolder(first)) == []


def test_runs_on_other_weights_or_from_the_same_folder_are_refused(
    write: Write, tmp_path: Path, first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write("second.yaml", **SMALL, **SECOND)
    cells, folder = plan(read_study(study)), StudyFolder(tmp_path / "second")
    changed = StudyFolder(Path(shutil.copytree(first, tmp_path / "changed")))
    for name, result in results(first).items():
        if "seed1" in name:
            path = cell_path(changed.path, name) / RESULT
            path.write_text(json.dumps({**result, "fingerprint": "other"}))
    with pytest.raises(UserError, match="were run on different versions of"):
        reuse_cells(cells, folder, changed)
    assert run(study, first, "--reuse", str(first)) == 2
    assert "own folder; name others with --reuse" in capsys.readouterr().err
    assert run(study, folder.path, "--reuse", str(tmp_path / "none")) == 2
    assert "is not the folder of a study" in capsys.readouterr().err


def test_a_copied_cell_is_run_again_where_it_came_from(
    write: Write, tmp_path: Path, first: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = plan(read_study(write("second.yaml", **SMALL, **SECOND)))
    folder = StudyFolder(tmp_path / "second")
    folder.path.mkdir()
    (tmp_path / "second.yaml").rename(folder.study_file)
    copied = reuse_cells(cells, folder, StudyFolder(first))
    assert len(copied) == 4
    command = ["study", "rerun", str(folder.path), copied[-1], "--output", str(tmp_path / "again")]
    assert main(command) == 2
    assert "was copied from another study (trial: long/" in capsys.readouterr().err
