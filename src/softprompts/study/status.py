"""How far a study is, how fast it runs, and how long it will take."""

from collections.abc import Sequence
from typing import TypedDict

from ..artifacts.study_folder import StudyFolder
from .leases import is_alive, lease_holder
from .plan import Cell
from .state import StudyState

RECENT = 100
"""Results that the pace is measured by."""


class Progress(TypedDict):
    done: int
    total: int


class Pace(TypedDict):
    """None where nothing is finished yet."""

    cells_per_minute: float | None
    eta_seconds: int | None


class StudyStatus(Pace):
    """What `softprompts study status --json` prints."""

    folder: str
    total: int
    done: int
    failed: dict[str, str | None]
    """Errors by cell."""
    blocked: list[str]
    """Cells that cannot run, because cells they need failed."""
    running: list[str]
    finished: list[str]
    missing: list[str]
    stages: dict[str, Progress]
    workers: list[str]


def study_status(
    cells: Sequence[Cell], folder: StudyFolder, state: StudyState | None = None
) -> StudyStatus:
    state = state or StudyState().update(cells, folder)
    stages: dict[str, Progress] = {}
    for cell in cells:
        stage = stages.setdefault(cell.stage, {"done": 0, "total": 0})
        stage["done"] += cell.name in state.done
        stage["total"] += 1
    missing, now = [cell for cell in cells if cell.name not in state.done], folder.now()
    workers = [file.stem for file in folder.heartbeats()]
    return {
        "folder": str(folder.path),
        "total": len(cells),
        "done": len(cells) - len(missing),
        "failed": {name: state.results[name].failed for name in sorted(state.failed)},
        "blocked": sorted(state.blocked),
        "running": [cell.name for cell in missing if lease_holder(folder, cell.name, now)],
        "finished": [cell.name for cell in cells if cell.name in state.done],
        "missing": [cell.name for cell in missing],
        "stages": stages,
        "workers": [worker for worker in workers if is_alive(folder, worker, now)],
        **pace(missing, state),
    }


def pace(missing: Sequence[Cell], state: StudyState) -> Pace:
    """Cells per minute by the latest results, and the seconds that the missing cells will take."""
    recent = sorted(state.results.values(), key=lambda result: result.finished)[-RECENT:]
    steps = sum(result.steps or 0 for result in recent)
    if not recent or not steps:
        return {"cells_per_minute": None, "eta_seconds": None}
    seconds = max(1e-3, _busy_seconds([(result.begun, result.finished) for result in recent]))
    waiting = [cell for cell in missing if cell.name not in state.blocked]
    return {
        "cells_per_minute": round(60 * len(recent) / seconds, 2),
        "eta_seconds": round(seconds * relative_work(waiting, steps, len(recent))),
    }


def relative_work(waiting: Sequence[Cell], steps: int, cells: int) -> float:
    """The work of waiting cells, as a multiple of that many steps in that many cells.

    By steps; by cells where some are given in epochs.
    """
    tuning = [cell.config.tuning for cell in waiting]
    if any(part.epochs is not None for part in tuning):
        return len(tuning) / cells
    return sum(part.steps for part in tuning) / steps


def _busy_seconds(spans: Sequence[tuple[float, float]]) -> float:
    """The seconds covered by spans of time, which may overlap or have days between them."""
    total, until = 0.0, float("-inf")
    for begun, ended in sorted(spans):
        total += max(0.0, ended - max(begun, until))
        until = max(until, ended)
    return total
