"""Where a study stands, which cells come next, and how long they will take."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, field
from typing import TypedDict

from ..artifacts.study_folder import CellResult, StudyFolder
from ..tuning import Watcher
from .leases import is_alive, lease_holder
from .plan import Cell

STAGE_ORDER = {"source-choice": 0, "choice": 1, "source": 2, "baseline": 3, "mixture-source": 4}
"""Stages that others wait for run first."""
RECENT = 100
"""Results that the pace is measured by."""


@dataclass
class StudyState:
    """Results so far, cells that failed, and cells that cannot run because of those."""

    results: dict[str, CellResult] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    blocked: set[str] = field(default_factory=set)

    @property
    def done(self) -> Set[str]:
        return self.results.keys()

    def update(self, cells: Sequence[Cell], folder: StudyFolder) -> "StudyState":
        """Read the results that are new in the folder."""
        for cell in cells:
            result = None if cell.name in self.done else folder.cell(cell.name).result()
            if result is not None:
                self.results[cell.name] = result
                if result.score is None:
                    self.failed.add(cell.name)
            if cell.is_blocked(self.failed | self.blocked):
                self.blocked.add(cell.name)
        return self

    def remaining(self, cells: Sequence[Cell], stages: Collection[str] | None = None) -> list[Cell]:
        """Cells (of these stages) that have no result and may still get one."""
        return [
            cell
            for cell in cells
            if (stages is None or cell.stage in stages)
            and cell.name not in self.done
            and cell.name not in self.blocked
        ]

    def ready(self, cells: Sequence[Cell]) -> list[Cell]:
        """Cells that can run now, those that others wait for first.

        Cells of one model, one number of steps and one task are next to each other.
        """
        return sorted(
            (cell for cell in self.remaining(cells) if self.done >= set(cell.needs)),
            key=lambda cell: (
                STAGE_ORDER.get(cell.stage, len(STAGE_ORDER)),
                model_key(cell),
                -_steps(cell),
                str(cell.config.task.task),
                cell.name,
            ),
        )


def model_key(cell: Cell) -> str:
    """Cells with the same key may share a forward pass; model tuning shares nothing."""
    config = cell.config
    return cell.name if cell.trains_model else f"{config.model} {config.dtype} {config.device}"


def _steps(cell: Cell) -> float:
    tuning = cell.config.tuning
    return tuning.steps if tuning.epochs is None else tuning.epochs


def next_cohort(
    ready: Sequence[Cell], limit: int, acquire: Callable[[str], bool] = lambda name: True
) -> list[Cell]:
    """The first cells that can be acquired and trained together: of one model and as many steps."""
    cohort: list[Cell] = []
    for cell in ready:
        key = (model_key(cell), _steps(cell))
        fits = not cohort or key == (model_key(cohort[0]), _steps(cohort[0]))
        if len(cohort) < limit and fits and acquire(cell.name):
            cohort.append(cell)
    return cohort


class StudyWatcher(Watcher):
    """Follows a study's cells, and the start and the steps of this process's cohorts; this one does
    nothing."""

    def on_update(self, state: StudyState) -> None:
        """Before and after every cohort."""


class Pace(TypedDict):
    """None if nothing is finished yet."""

    cells_per_minute: float | None
    eta_seconds: int | None


class StudyStatus(Pace):
    """What `softprompts study status --json` prints."""

    folder: str
    total: int
    done: int
    failed: dict[str, str | None]  # errors by cell
    blocked: list[str]  # because cells they need failed
    running: list[str]
    finished: list[str]
    missing: list[str]
    stages: dict[str, dict[str, int]]
    workers: list[str]
    reused: int  # cells copied from other studies


def study_status(
    cells: Sequence[Cell], folder: StudyFolder, state: StudyState | None = None
) -> StudyStatus:
    state = state or StudyState().update(cells, folder)
    total = Counter(cell.stage for cell in cells)
    done = Counter(cell.stage for cell in cells if cell.name in state.done)
    missing, now = [cell for cell in cells if cell.name not in state.done], folder.now()
    return {
        "folder": str(folder.path),
        "total": len(cells),
        "done": len(cells) - len(missing),
        "failed": {name: state.results[name].failed for name in sorted(state.failed)},
        "blocked": sorted(state.blocked),
        "running": [cell.name for cell in missing if lease_holder(folder, cell.name, now)],
        "finished": [cell.name for cell in cells if cell.name in state.done],
        "missing": [cell.name for cell in missing],
        "stages": {stage: {"done": done[stage], "total": total[stage]} for stage in total},
        "workers": [file.stem for file in folder.heartbeats() if is_alive(folder, file.stem, now)],
        "reused": sum(result.reused is not None for result in state.results.values()),
        **pace(missing, state),
    }


def pace(missing: Sequence[Cell], state: StudyState) -> Pace:
    """Cells per minute by the latest results, and the seconds that the missing cells will take."""
    own = [result for result in state.results.values() if result.reused is None]
    recent = sorted(own, key=lambda result: result.finished)[-RECENT:]
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
