"""Workers: processes that work on a study's folder.

Each leases cells, tunes them as a cohort, and commits each result once.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..artifacts.study_folder import CellResult, StudyFolder
from ..backbone import Backbone, load_backbone
from ..config import Member, RunConfig
from ..errors import UserError
from ..tuning import Run, RunFailedError, Watcher
from ..tuning.summary import write_table
from ..tuning.tune import tune_cohort
from .cells import (
    check_fingerprints,
    check_rows,
    commit,
    make_result,
    open_cell,
    resolve_start,
    saved_config,
    scored_alike,
    task_key,
)
from .leases import Leases
from .plan import Cell
from .state import StudyState, StudyWatcher, model_key, next_cohort

POLL = 1.0
"""Seconds between two checks for results of other workers."""


class LeaseLostError(Exception):
    """Another worker took a cell over, because this one had no heartbeat for too long."""


class _LeaseGuard(Watcher):
    """Passes the steps of a cohort on, and ends it when a lease was lost."""

    def __init__(self, leases: Leases, watcher: StudyWatcher) -> None:
        self.leases, self.watcher = leases, watcher

    def on_step(self, run: Run) -> None:
        if self.leases.lost.is_set():
            raise LeaseLostError
        self.watcher.on_step(run)


_loaded: dict[str, Backbone] = {}
"""The frozen model of the last cohort, which the next one usually needs, too."""


def _backbone(
    cell: Cell, config: RunConfig, cells: Iterable[Cell], folder: StudyFolder
) -> Backbone | None:
    if cell.trains_model:
        _loaded.clear()
        return None
    key = model_key(cell)
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = load_backbone(
            config.model, config.dtype, config.device, config.trust_remote_code
        )
    check_fingerprints(cells, folder, cell.config.model, _loaded[key].fingerprint)
    return _loaded[key]


def run_cohort(
    leases: Leases,
    cohort: Sequence[Cell],
    cells: Mapping[str, Cell],
    watcher: StudyWatcher | None = None,
) -> None:
    """Tune leased cells together, each from its last checkpoint, and commit their results."""
    folder, watcher, begun = leases.folder, watcher or StudyWatcher(), round(time.time(), 3)
    names = [cell.name for cell in cohort]
    starts = [resolve_start(scored_alike(cell, cells, folder), cells, folder) for cell in cohort]
    for cell, (config, _) in zip(cohort, starts, strict=True):
        if not leases.holds(cell.name):
            raise LeaseLostError
        open_cell(cell, config, folder)
    resumed = [name for name in names if folder.cell(name).has_checkpoint]
    members = [
        Member(config, {"cell": name}, name)
        for name, (config, _) in zip(names, starts, strict=True)
    ]
    backbone = _backbone(cohort[0], members[0].config, cells.values(), folder)
    digests: dict[str, dict[str, str]] = {}

    def on_start(runs: Sequence[Run]) -> None:
        digests.update(_digests(runs))
        check_rows(cells, folder, digests)
        watcher.on_start(runs)

    outcomes = tune_cohort(
        members,
        folder.cells,
        watcher=_LeaseGuard(leases, watcher),
        backbone=backbone,
        on_start=on_start,
        curves=False,
    )
    check_rows(cells, folder, digests)  # other workers may have finished meanwhile
    held = [name for name in names if leases.holds(name)]
    for cell, (_, chosen), outcome in zip(cohort, starts, outcomes, strict=True):
        if cell.name in held:
            how = {"worker": leases.worker, "begun": begun, "beside": names, "resumed": resumed}
            commit(folder, make_result(cell, chosen, outcome, **how))
            leases.release(cell.name)
    if len(held) < len(cohort):
        raise LeaseLostError


def _digests(runs: Iterable[Run]) -> dict[str, dict[str, str]]:
    return {task_key(run.config.task): run.task.digests for run in runs}


def work(
    cells: Sequence[Cell],
    folder: StudyFolder,
    cohort: int,
    watcher: StudyWatcher | None = None,
    stages: Collection[str] | None = None,
    leases: Leases | None = None,
) -> StudyState:
    """Run cells until none is left; those of other workers are waited for, or taken over."""
    by_name = {cell.name: cell for cell in cells}
    state, watcher = StudyState(), watcher or StudyWatcher()
    with leases or Leases(folder) as leases:
        while remaining := state.update(cells, folder).remaining(cells, stages):
            watcher.on_update(state)
            leased = next_cohort(state.ready(remaining), cohort, leases.acquire)
            if not leased:
                time.sleep(POLL)
                continue
            try:
                run_cohort(leases, leased, by_name, watcher)
            except LeaseLostError:
                leases.held.clear()
                leases.lost.clear()
    watcher.on_update(state)
    return state


def rerun(
    folder: StudyFolder, name: str, output: Path, data_dir: str | None = None
) -> list[dict[str, Any]]:
    """Run the cohort of a finished cell again, from the cells' saved configs, with its table.

    Returns the score of each cell as recorded, and of the same run again.
    """
    result = folder.cell(name).result()
    if result is None:
        raise UserError(
            f"The study in {folder.path} has no result of a cell {name!r}; "
            f'`softprompts study status {folder.path} --json` lists finished cells as "finished".'
        )
    if result.reused is not None:
        raise UserError(
            f"{name} was copied from another study ({result.reused}); run it again in that study."
        )
    recorded = {cell: folder.cell(cell).result() or CellResult(cell) for cell in result.beside}
    configs = {cell: saved_config(folder, other, data_dir) for cell, other in recorded.items()}

    def on_start(runs: Sequence[Run]) -> None:
        check_rows(configs, folder, _digests(runs))

    members = [Member(config, {"cell": cell}, cell) for cell, config in configs.items()]
    outcomes = tune_cohort(members, output, on_start=on_start, exclusive=True)
    write_table(members, outcomes, output)
    scores = {
        cell: None if isinstance(outcome, RunFailedError) else outcome.card.score
        for cell, outcome in zip(configs, outcomes, strict=True)
    }
    return [
        {
            "cell": cell,
            "recorded": recorded[cell].score,
            "again": score,
            "same": score == recorded[cell].score,
            "resumed": cell in result.resumed,
        }
        for cell, score in scores.items()
    ]
