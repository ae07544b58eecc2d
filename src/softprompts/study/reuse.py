"""Cells that another study has finished: its runs with the same settings are copied, not repeated.

Studies of one paper often share an arm, such as plain prompts of 20 tokens.
"""

import dataclasses
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..artifacts.file_names import CHECKPOINT, PLAN, RESULT
from ..artifacts.study_folder import CellResult, StudyFolder
from ..errors import UserError, setting
from .cells import commit
from .config import read_study
from .leases import Leases
from .plan import Cell

OWN_FILES = (PLAN, RESULT, CHECKPOINT)
"""Files of a cell that are not copied: a plan and a result name the study's own cells."""


def reuse_cells(cells: Sequence[Cell], folder: StudyFolder, other: StudyFolder) -> list[str]:
    """Copy the runs that another study has finished, and return the names of their cells.

    A run is the same if its settings, its seed and its task are. If other runs chose some of its
    settings, these must be in both folders. Cells that start from others' prompts are not copied.
    """
    finished, fingerprints = _finished(other), _fingerprints(cells, folder)
    plans = {cell.name: json.loads(json.dumps(cell.plain())) for cell in cells}
    copied: list[str] = []
    with Leases(folder) as leases:
        for cell in cells:  # each after those that choose its settings
            name = finished.get(same_run(cell.name, plans))
            if name is None or folder.cell(cell.name).is_done:
                continue
            choices = {choice: finished[same_run(choice, plans)] for choice in cell.choices}
            if any(_run(folder, own) != _run(other, theirs) for own, theirs in choices.items()):
                continue
            result = other.cell(name).result()
            assert result is not None
            _check_weights(cell, result, fingerprints, other)
            if leases.acquire(cell.name):
                _copy(other, result, folder, cell)
                leases.release(cell.name)
                copied.append(cell.name)
    return copied


def _finished(study: StudyFolder) -> dict[str | None, str]:
    """The finished cells of a study, by what makes their runs the same as others."""
    plans = {}
    for file in sorted(study.cells.rglob(PLAN)):
        name = file.parent.relative_to(study.cells).as_posix()
        plan, result = study.cell(name).plan(), study.cell(name).result()
        if plan is not None and result is not None and result.score is not None:
            plans[name] = plan
    return {key: name for name in plans if (key := same_run(name, plans)) is not None}


def same_run(name: str, plans: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What makes a cell's run the same as another study's; None if it starts from other cells, or
    some of those that chose its settings are missing."""
    plan = plans[name]
    choices = plan.get("choices", [])
    if plan["starts"] or plan["like"] or any(choice not in plans for choice in choices):
        return None
    same = {part: plan[part] for part in ("stage", "backbone", "source", "target", "seed")}
    keys = [same_run(choice, plans) for choice in choices]
    return json.dumps([same, plan["config"], keys], sort_keys=True)


def _run(study: StudyFolder, name: str) -> tuple[Any, ...] | None:
    """What identifies the run of a cell, wherever it was copied to."""
    result = study.cell(name).result()
    return None if result is None else (result.worker, result.begun, result.finished, result.score)


def _fingerprints(cells: Sequence[Cell], folder: StudyFolder) -> dict[str, tuple[str, str]]:
    """For each backbone, a cell that was run on it, and the fingerprint of its weights."""
    found = {}
    for cell in cells:
        result = None if cell.trains_model else folder.cell(cell.name).result()
        if result is not None and result.fingerprint is not None:
            found[cell.backbone] = cell.name, result.fingerprint
    return found


def _check_weights(
    cell: Cell,
    result: CellResult,
    fingerprints: dict[str, tuple[str, str]],
    other: StudyFolder,
) -> None:
    """Refuse a run on other weights than those of this study's finished cells."""
    if cell.trains_model or result.fingerprint is None:
        return
    known, fingerprint = fingerprints.setdefault(cell.backbone, (cell.name, result.fingerprint))
    if result.fingerprint != fingerprint:
        raise UserError(
            f"{other.path} and {known} were run on different versions of {cell.backbone}, "
            f"so their scores cannot be compared; leave {other.path} out of {setting('reuse')}."
        )


def _copy(other: StudyFolder, result: CellResult, folder: StudyFolder, cell: Cell) -> None:
    """Copy a run's files, the result last."""
    source, target = other.cell(result.cell), folder.cell(cell.name)
    target.clear()
    for path in source.path.iterdir():
        if path.name.startswith(".") or path.name in OWN_FILES:
            continue
        if path.is_dir():
            shutil.copytree(path, target.path / path.name)
        else:
            shutil.copyfile(path, target.path / path.name)
    target.write_plan(cell.plain())
    origin = result.reused or f"{read_study(other.study_file).name}: {result.cell}"
    here = {"cell": cell.name, **cell.identity(), "beside": [], "resumed": []}
    commit(folder, dataclasses.replace(result, **here, reused=origin))


def check_reused(folders: Sequence[Path], output: Path) -> None:
    """Refuse to copy cells from the folder that they would be copied to."""
    if any(folder.resolve() == output.resolve() for folder in folders):
        raise UserError(f"{output} is the study's own folder; name others with {setting('reuse')}.")
