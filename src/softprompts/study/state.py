"""Where a study stands, and which cells come next."""

from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import dataclass, field

from ..artifacts.study_folder import CellResult, StudyFolder
from ..tuning import Watcher
from .plan import Cell

FIRST_STAGES = ("source", "baseline", "mixture-source")
"""Stages that others wait for, in the order in which they run."""


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
        ready = [cell for cell in self.remaining(cells) if self.done >= set(cell.needs)]
        return sorted(ready, key=_priority)


def _priority(cell: Cell) -> tuple[int, str, float, str, str]:
    first = cell.stage in FIRST_STAGES
    stage = FIRST_STAGES.index(cell.stage) if first else len(FIRST_STAGES)
    return stage, model_key(cell), -_steps(cell), str(cell.config.task.task), cell.name


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
    """Follows a study's progress; this one does nothing."""

    def on_update(self, state: StudyState) -> None:
        """Before and after every cohort."""
