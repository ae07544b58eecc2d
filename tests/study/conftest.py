"""A study small enough to run in a test, and one that is finished."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from softprompts.analysis.runs import Runs, of_cell
from softprompts.artifacts.file_names import CELLS, RESULT
from softprompts.artifacts.study_folder import CellResult, StudyFolder
from softprompts.cli.study import main
from softprompts.study.config import StudyConfig
from softprompts.study.plan import Cell, plan

from ..models import random_t5

SHORT = {
    "preset": "prompt-tuning",
    "prompt": {"length": 3},
    "batch_size": 4,
    "max_length": 24,
    "cap": 16,
    "cap_validation": 12,
}
QUICK = {
    **SHORT,
    "lr": 0.1,
    "evaluate_every": 2,
    "checkpoint_every": 1,
    "embed_at": 2,
    "scoring": "labels",
}
GRID: dict[str, Any] = {
    "name": "trial",
    "sources": ["helpdesk/intent", "helpdesk/area"],
    "targets": ["helpdesk/urgency", "helpdesk/register"],
    "seeds": [0, 1],
    "settings": QUICK,
    "source": {"steps": 4},
    "target": {"steps": 2},
    "retrieval": {"best": [1, 2], "average": [2], "mixture": [1]},
    "cohort": 4,
}


FEW: dict[str, Any] = {"seeds": [0], "retrieval": {}}
"""Changes that leave few cells."""


def planned(**changes: Any) -> list[Cell]:
    return plan(StudyConfig.of({**GRID, **changes}))


def cell_path(folder: Path, name: str) -> Path:
    return StudyFolder(folder).cell(name).path


def results(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        str(path.parent.relative_to(folder / CELLS)): json.loads(path.read_text())
        for path in (folder / CELLS).rglob(RESULT)
    }


def as_runs(results: Sequence[CellResult]) -> Runs:
    """The runs of results that left no files."""
    return Runs(Path("x"), "study", [of_cell(one.plain(), Path("none")) for one in results])


def scores(folder: Path) -> dict[str, float]:
    return {name: result["score"] for name, result in results(folder).items()}


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random T5 small enough to tune dozens of times, as a folder."""
    folder, backbone = tmp_path_factory.mktemp("models") / "random-t5", random_t5()
    backbone.model.save_pretrained(folder)
    backbone.tokenizer.save_pretrained(folder)
    return str(folder)


Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, model: str) -> Write:
    """Writes the study file, with some keys changed."""

    def write_file(name: str = "trial.yaml", **changes: Any) -> Path:
        path = tmp_path / name
        path.write_text(yaml.safe_dump({**GRID, "backbones": [model], **changes}))
        return path

    return write_file


@pytest.fixture(scope="session")
def finished_study(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that ran without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "trial.yaml").write_text(yaml.safe_dump({**GRID, "backbones": [model]}))
    assert (
        main(
            [
                "run",
                str(folder / "trial.yaml"),
                "--output",
                str(folder / "study"),
                "--device",
                "cpu",
            ]
        )
        == 0
    )
    return folder / "study"
