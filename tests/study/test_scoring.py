"""Studies that an earlier version began, which generated answers to your own data by default."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from softprompts.artifacts.study_folder import StudyFolder
from softprompts.cli.study import main
from softprompts.study.cells import scored_alike
from softprompts.study.config import read_study
from softprompts.study.plan import plan

from .conftest import FEW, SHORT, Write, results


def grid(rows: Path, **changes: Any) -> dict[str, Any]:
    """Own data as source and targets, and a named task."""
    mine = {"train": str(rows), "text": "review", "label": "mood"}
    return {
        **FEW,
        "sources": [{"name": "mine", **mine}],
        "targets": [{"name": "other", **mine}, {"name": "third", **mine}, "helpdesk/urgency"],
        "settings": {**SHORT, "evaluate_every": 2, **changes},
    }


def begin(study: Path, folder: Path) -> None:
    """Run the sources with generated answers, which was the default, so plans say auto."""
    device = ["--output", str(folder), "--device", "cpu", "--quiet"]
    assert main(["run", str(study), "--only", "source", *device]) == 0
    for path in folder.rglob("cell.json"):
        plan = json.loads(path.read_text())
        plan["config"]["tuning"]["scoring"] = "auto"
        path.write_text(json.dumps(plan))


def scoring(folder: Path) -> dict[str, str]:
    return {
        str(result["target"] or result["source"]): result["config"]["tuning"]["scoring"]
        for result in results(folder).values()
    }


def test_a_half_done_study_of_an_earlier_version_keeps_its_scoring(
    write: Write, toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, study = tmp_path / "study", grid(toy_csv)
    begin(write(**grid(toy_csv, scoring="generate")), folder)
    ran = ["run", str(write(**study)), "--device", "cpu", "--quiet"]
    assert main([*ran, "--output", str(folder)]) == 0
    assert set(scoring(folder).values()) == {"generate"}
    assert main([*ran, "--output", str(tmp_path / "new"), "--only", "baseline"]) == 0
    assert scoring(tmp_path / "new") == {
        "other": "labels",
        "third": "labels",
        "helpdesk/urgency": "generate",
    }
    capsys.readouterr()


def test_an_unfinished_run_on_labels_decides_and_free_text_does_not(
    write: Write, toy_csv: Path, tmp_path: Path
) -> None:
    free = tmp_path / "free.csv"
    free.write_text("review,mood\n" + "".join(f"text {i},answer {i}\n" for i in range(20)))
    for rows, expected in ((free, "auto"), (toy_csv, "generate")):
        folder = StudyFolder(tmp_path / rows.stem)
        settings = {"train": str(rows), "text": "review", "label": "mood"}
        settings |= {"free_text": True} if rows == free else {}
        study = grid(toy_csv) | {"sources": [{"name": "mine", **settings}]}
        cells = {cell.name: cell for cell in plan(read_study(write(**study)), "cpu")}
        begun = next(cell for cell in cells.values() if cell.stage == "source")
        target = next(cell for cell in cells.values() if cell.target == "third")
        assert scored_alike(target, cells, folder) == target
        folder.cell(begun.name).write_checkpoint(
            {"x": torch.zeros(1)}, {"config": {"tuning": {"scoring": "generate"}}}
        )
        assert scored_alike(target, cells, folder).config.tuning.scoring == expected
