"""Workers: whoever works on a study's folder. Each takes cells, tunes them as a cohort, and commits each result once."""

import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..backbone import Backbone, load_backbone
from ..config.products import Member
from ..errors import UserError
from ..tasks.task import DATA_VARIABLE
from ..tuning import Run, RunConfig, RunFailedError, Watcher
from ..tuning.api import COHORT, tune_cohort
from ..tuning.checkpoint import CHECKPOINT
from . import cells as on_disk
from .cells import Chosen
from .leases import Claims
from .plan import Cell

POLL = 1.0
"""Seconds between two looks at cells that others are working on."""
CRASHES = 20
"""Workers of a Ray cluster that may die, one after another, without a cell being finished."""


class LostError(Exception):
    """Another worker took a cell over, because this one had not been heard of for too long."""


# -- which cells come next ---------------------------------------------------------------------------------------------------


@dataclass
class State:
    """Where a study stands: cells with a result, cells whose result is a failure, cells that wait for a failed one in vain."""

    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    blocked: set[str] = field(default_factory=set)

    @property
    def done(self) -> Set[str]:
        return self.results.keys()

    def look(self, cells: Sequence[Cell], folder: Path) -> "State":
        for cell in cells:
            if (
                cell.name not in self.done
                and (told := on_disk.read_result(folder, cell.name)) is not None
            ):
                self.results[cell.name] = told
                if told["score"] is None:
                    self.failed.add(cell.name)
            if cell.hopeless(self.failed | self.blocked):
                self.blocked.add(cell.name)
        return self

    def left(self, cells: Sequence[Cell], stages: Collection[str] | None = None) -> list[Cell]:
        """Cells (of these stages) that have no result and may still get one."""
        asked = [cell for cell in cells if stages is None or cell.stage in stages]
        return [
            cell for cell in asked if cell.name not in self.done and cell.name not in self.blocked
        ]

    def ready(self, cells: Sequence[Cell]) -> list[Cell]:
        """Cells that could run now: those that others wait for first, then of one model, of like length, and of one task together."""
        found = [cell for cell in self.left(cells) if self.done >= set(cell.needs)]
        first = {"source": 0, "baseline": 1, "mixture-source": 2}
        return sorted(
            found,
            key=lambda cell: (
                first.get(cell.stage, 3),
                _model(cell),
                -_work(cell),
                str(cell.config.task.task),
                cell.name,
            ),
        )


def _model(cell: Cell) -> str:
    """Cells with the same may share a forward pass; a whole model that learns shares nothing."""
    return (
        cell.name
        if cell.whole_model
        else f"{cell.config.model} {cell.config.dtype} {cell.config.device}"
    )


def _work(cell: Cell) -> float:
    tuning = cell.config.tuning
    return tuning.steps if tuning.epochs is None else tuning.epochs


def cohort_of(
    ready: Sequence[Cell], most: int, take: Callable[[str], bool] = lambda name: True
) -> list[Cell]:
    """The first cells that can be taken, as many as may share one forward pass and are of one length."""
    taken: list[Cell] = []
    for cell in ready:
        fits = not taken or (_model(cell), _work(cell)) == (_model(taken[0]), _work(taken[0]))
        if len(taken) < most and fits and take(cell.name):
            taken.append(cell)
    return taken


# -- working -----------------------------------------------------------------------------------------------------------------


class StudyWatcher(Watcher):
    """Who is told how a study gets on; this one does not look."""

    def looked(self, state: State) -> None:
        """Before and after every cohort."""


class _Guard(Watcher):
    """Passes on what a cohort tells, and ends it when a cell was lost."""

    def __init__(self, claims: Claims, watcher: Watcher) -> None:
        self.claims, self.watcher = claims, watcher

    def stepped(self, run: Run) -> None:
        if self.claims.lost.is_set():
            raise LostError
        self.watcher.stepped(run)

    def evaluating(self, run: Run, rows: int) -> None:
        self.watcher.evaluating(run, rows)

    def evaluated(self, run: Run) -> None:
        self.watcher.evaluated(run)


_kept: dict[str, Backbone] = {}
"""The frozen model of the last cohort, which the next one most often needs too."""


def _backbone(
    cell: Cell, config: RunConfig, cells: Iterable[Cell], folder: Path
) -> Backbone | None:
    if cell.whole_model:
        _kept.clear()
        return None
    key = _model(cell)
    if key not in _kept:
        _kept.clear()
        _kept[key] = load_backbone(
            config.model, config.dtype, config.device, config.trust_remote_code
        )
    on_disk.check_model(cells, folder, cell.config.model, _kept[key].fingerprint)
    return _kept[key]


def run_cohort(
    claims: Claims,
    taken: Sequence[Cell],
    cells: Mapping[str, Cell],
    watcher: StudyWatcher | None = None,
) -> None:
    """Tune claimed cells side by side, each from where it left off, and commit what they came to."""
    folder, watcher = claims.folder, watcher or StudyWatcher()
    how: dict[str, Any] = {
        "worker": claims.worker,
        "begun": round(time.time(), 3),
        "beside": [cell.name for cell in taken],
    }
    settled: list[tuple[RunConfig, Chosen]] = [
        on_disk.settle(cell, cells, folder) for cell in taken
    ]
    for cell, (config, _) in zip(taken, settled, strict=True):
        if not claims.holds(cell.name):
            raise LostError
        on_disk.open_cell(cell, config, folder)
    how["resumed"] = [
        cell.name for cell in taken if (on_disk.place(folder, cell.name) / CHECKPOINT).exists()
    ]
    members = [
        Member(config, {"cell": cell.name}, cell.name)
        for cell, (config, _) in zip(taken, settled, strict=True)
    ]
    home = folder / on_disk.CELLS
    backbone = _backbone(taken[0], settled[0][0], cells.values(), folder)

    digests: dict[str, dict[str, str]] = {}

    def began(runs: Sequence[Run]) -> None:
        digests.update(_digests(runs))
        on_disk.check_rows(cells, folder, digests)
        watcher.began(runs)

    outcomes = tune_cohort(
        members, home, watcher=_Guard(claims, watcher), backbone=backbone, began=began, curves=False
    )
    (home / COHORT).unlink(missing_ok=True)  # a cohort is how cells were run, not what they are
    on_disk.check_rows(cells, folder, digests)  # others may have ended meanwhile
    kept = [cell.name for cell in taken if claims.holds(cell.name)]
    for cell, (_, chosen), outcome in zip(taken, settled, outcomes, strict=True):
        if cell.name in kept:
            on_disk.commit(folder, on_disk.record(cell, chosen, outcome, **how))
            claims.drop(cell.name)
    if len(kept) < len(taken):
        raise LostError


def _digests(runs: Iterable[Run]) -> dict[str, dict[str, str]]:
    """What the rows of each run's task are."""
    return {on_disk.task_key(run.config.task): run.task.digests for run in runs}


def rerun(
    folder: Path, name: str, output: Path, data_dir: str | None = None
) -> list[dict[str, Any]]:
    """The cohort that a cell was run in once more, from the cells' saved configs; each cell's score as recorded and as it is now."""
    told = on_disk.read_result(folder, name)
    if told is None:
        finished = (
            f'softprompts study status {folder} --json names the finished cells under "finished"'
        )
        raise UserError(f"The study in {folder} has no result of a cell {name!r}; {finished}.")
    configs = {cell: on_disk.saved_config(folder, cell, data_dir) for cell in told["beside"]}

    def began(runs: Sequence[Run]) -> None:
        on_disk.check_rows(configs, folder, _digests(runs))

    outcomes = tune_cohort(
        [Member(config, {"cell": cell}, cell) for cell, config in configs.items()],
        output,
        began=began,
        alone=True,
    )
    found = []
    for cell, outcome in zip(configs, outcomes, strict=True):
        again = (
            None
            if isinstance(outcome, RunFailedError)
            else outcome.card["metrics"][outcome.card["task"]["metrics"][0]]
        )
        recorded = (on_disk.read_result(folder, cell) or {}).get("score")
        found.append(
            {
                "cell": cell,
                "recorded": recorded,
                "again": again,
                "same": again == recorded,
                "resumed": cell in told["resumed"],
            }
        )
    return found


def work(
    cells: Sequence[Cell],
    folder: Path,
    cohort: int,
    watcher: StudyWatcher | None = None,
    stages: Collection[str] | None = None,
    claims: Claims | None = None,
) -> State:
    """Run what there is to run, until nothing is left; cells that others work on are waited for, or taken over."""
    by_name = {cell.name: cell for cell in cells}
    state, watcher = State(), watcher or StudyWatcher()
    with claims or Claims(folder) as own:
        while left := state.look(cells, folder).left(cells, stages):
            watcher.looked(state)
            taken = cohort_of(state.ready(left), cohort, own.take)
            if not taken:
                time.sleep(POLL)
                continue
            try:
                run_cohort(own, taken, by_name, watcher)
            except LostError:
                own.held.clear()
                own.lost.clear()
    watcher.looked(state)
    return state


# -- a Ray cluster -----------------------------------------------------------------------------------------------------------


@contextmanager
def cluster(address: str | None) -> Iterator[Any]:
    """Ray, joined to the cluster at an address as long as this is open; None where no cluster is asked for."""
    ray = _ray(address) if address is not None else None
    try:
        yield ray
    finally:
        if ray is not None:
            ray.shutdown()


def work_on_ray(
    ray: Any,
    cells: Sequence[Cell],
    folder: Path,
    cohort: int,
    watcher: StudyWatcher | None = None,
    stages: Collection[str] | None = None,
) -> State:
    """The same on a Ray cluster whose machines share the folder: a cohort on each GPU, or on each CPU where there are none.

    A cohort whose machine died is planned anew from what it left; results are in the folder, so that none is lost or counted twice.
    """
    watcher = watcher or StudyWatcher()
    by_name = {cell.name: cell for cell in cells}
    state, crashes = State(), 0
    pending: dict[Any, list[str]] = {}
    given = (Path.cwd(), os.environ.get(DATA_VARIABLE), folder, by_name)
    with Claims(folder) as own:
        while left := state.look(cells, folder).left(cells, stages):
            watcher.looked(state)
            busy = {name for names in pending.values() for name in names}
            ready = [
                cell
                for cell in state.ready(left)
                if cell.name not in busy and own.is_free(cell.name)
            ]
            slots, options = _slots(ray)
            while ready and (free := slots - len(pending)) > 0:
                chosen = cohort_of(ready, min(cohort, math.ceil(len(ready) / free)))
                ready = [cell for cell in ready if cell not in chosen]
                job = ray.remote(_cohort_on_ray).options(max_retries=0, **options)
                names = [cell.name for cell in chosen]
                pending[job.remote(*given, names)] = names
            if not pending:
                time.sleep(POLL)
                continue
            finished, _ = ray.wait(list(pending), timeout=POLL)
            before = len(state.done)
            for job in finished:
                del pending[job]
                crashes += _crashed(ray, job)
            crashes = 0 if len(state.look(cells, folder).done) > before else crashes
            if crashes > CRASHES:
                raise UserError(
                    f"{crashes} workers of the Ray cluster died without finishing a cell; look at their logs and memory."
                )
    watcher.looked(state)
    return state


def _cohort_on_ray(
    here: Path, data: str | None, folder: Path, cells: Mapping[str, Cell], names: Sequence[str]
) -> None:
    """In a worker of the cluster: what can be claimed of these cells, from where the command was given and with its data."""
    os.chdir(here)
    if data is not None:
        os.environ[DATA_VARIABLE] = data
    with Claims(folder) as own:
        taken = [cells[name] for name in names if own.take(name)]
        if taken:
            run_cohort(own, taken, cells)


def _ray(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise UserError(
            "Ray is not installed; install softprompts[study], or leave --ray out."
        ) from None
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        told = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"There is no Ray cluster at {address!r} ({told}); start one with `ray start --head`."
        ) from None
    return ray


def _slots(ray: Any) -> tuple[int, dict[str, float]]:
    """How many cohorts the cluster has room for now, and what each asks for."""
    there = ray.cluster_resources()
    if there.get("GPU"):
        return int(there["GPU"]), {"num_gpus": 1, "num_cpus": 1}
    return int(there.get("CPU", 0)), {"num_cpus": 1}


def _crashed(ray: Any, job: Any) -> bool:
    """Whether the machine or process of a job died; what a person must mend is told."""
    try:
        ray.get(job)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, LostError):
            return False
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError:
        return True
    return False
