"""A study's files: results of this and of older versions, written once, and leases."""

import json
from pathlib import Path

import pytest

from softprompts.artifacts.file_names import RESULT
from softprompts.artifacts.study_folder import CellResult, ChosenSource, StudyFolder, lease_owner
from softprompts.errors import UserError

SAVED = Path(__file__).parents[1] / "saved" / "study"


def test_saved_results_are_read_and_written_unchanged() -> None:
    folder = StudyFolder(SAVED)
    paths = sorted(folder.cells.rglob(RESULT))
    assert paths
    for path in paths:
        result = folder.cell(path.parent.relative_to(folder.cells).as_posix()).result()
        assert result is not None
        assert result.plain() == json.loads(path.read_text())


def test_older_results_lack_keys_and_newer_ones_have_others(tmp_path: Path) -> None:
    path = tmp_path / RESULT
    path.write_text('{"cell": "a", "score": 50.0, "begun": 1.0, "finished": 2.0, "colour": 3}')
    assert CellResult.read(path) == CellResult("a", score=50.0, begun=1.0, finished=2.0)
    for content in ("[]", "{}", "null", '{"cell": "a", "chosen": [{"colour": 1}]}'):
        path.write_text(content)
        with pytest.raises(UserError, match="is corrupted, or not the result of a cell"):
            CellResult.read(path)


def test_a_failed_run_has_no_scores() -> None:
    chosen = [ChosenSource("source", 0.5), ChosenSource("other", 0.25, 0.4)]
    result = CellResult("a", "average", chosen=chosen, failed="the loss was not finite", config={})
    written = result.plain()
    assert written["score"] is None
    assert written["chosen"] == [
        {"cell": "source", "similarity": 0.5},
        {"cell": "other", "similarity": 0.25, "weight": 0.4},
    ]
    assert not {"metric", "rows", "steps", "machine"} & written.keys()


def test_the_first_result_stays(tmp_path: Path) -> None:
    cell = StudyFolder(tmp_path).cell("a/b")
    assert not cell.is_done
    assert cell.write_result(CellResult("a/b", score=1.0))
    assert not cell.write_result(CellResult("a/b", score=2.0))
    assert cell.result() == CellResult("a/b", score=1.0)


def test_the_last_lease_counts(tmp_path: Path) -> None:
    cell = StudyFolder(tmp_path).cell("a")
    assert cell.lease() is None
    first = cell.write_lease("one", after=None)
    assert first is not None
    assert cell.write_lease("other", after=None) is None, "it was too late"
    second = cell.write_lease("other", after=first)
    assert cell.lease() == second
    assert second is not None
    assert lease_owner(second) == "other"
    cell.remove_leases()
    assert cell.lease() is None
    assert lease_owner(second) is None
