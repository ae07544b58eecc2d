"""A study's folder: which files it and its cells hold, and how they are read, checked and written.

study.yaml              the study file as it was last run
cells/NAME/             one folder per cell: the folder of its run, and beside the run's files
    cell.json           what the cell was planned as
    result.json         its result, written once
    .claim-N            leases: which worker runs the cell; the highest N counts
workers/WORKER.json     a worker's heartbeat
"""

import dataclasses
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ..errors import UserError
from ..files import read_json, remove_stale, write_json, write_once
from .file_names import CELLS, LEASE, PLAN, RESULT, STUDY_FILE, WORKERS
from .run_folder import RunFolder


@dataclass(frozen=True)
class ChosenSource:
    """A source prompt that a cell starts from, or whose task it mixes in."""

    cell: str
    similarity: float | None = None
    weight: float | None = None  # in a weighted average

    def plain(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True)
class CellResult:
    """The result of a cell, as `result.json` holds it.

    Of a failed run only the fields before `score`, `failed` and `config` are known. Results of
    older versions lack some others.
    """

    cell: str
    stage: str | None = None
    backbone: str | None = None
    variant: str | None = None
    source: str | None = None
    target: str | None = None
    seed: int | None = None
    k: int | None = None
    similarity: str | None = None
    chosen: list[ChosenSource] = field(default_factory=list)  # nearest first
    worker: str | None = None
    begun: float = 0.0
    beside: list[str] = field(default_factory=list)  # the cells of its cohort, itself among them
    resumed: list[str] = field(default_factory=list)  # those of them that resumed
    finished: float = 0.0
    score: float | None = None  # the first metric on the validation rows; None: it failed
    metric: str | None = None
    metrics: dict[str, float] | None = None
    majority: float | None = None
    data: dict[str, str] | None = None  # digests of the task's rows, by split
    rows: int | None = None  # validation rows
    interval: list[float] | None = None  # 95 %, of the score
    bag_of_words: float | None = None  # its score on the same rows
    test: float | None = None  # the first metric on the test rows, if the task has some
    test_rows: int | None = None
    test_majority: float | None = None
    test_interval: list[float] | None = None
    best_step: int | None = None
    steps: int | None = None
    seconds: float | None = None  # its share of the cohort's training time
    cohort: int | None = None  # how many runs were trained together
    failed: str | None = None
    reused: str | None = None  # the study and the cell that it was copied from
    fingerprint: str | None = None
    parameters: int | None = None
    machine: dict[str, Any] | None = None
    config: dict[str, Any] | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        values = read_json(path)
        try:
            known = {name: values[name] for name in cls.__dataclass_fields__ if name in values}
            known["chosen"] = [ChosenSource(**source) for source in known.get("chosen", [])]
            return cls(**known)
        except TypeError:
            raise UserError(
                f"{path} is corrupted, or not the result of a cell; "
                "remove it to run the cell again."
            ) from None

    def plain(self) -> dict[str, Any]:
        values = dataclasses.asdict(self) | {"chosen": [source.plain() for source in self.chosen]}
        unknown = set(MEASURED) if self.score is None else set()
        unknown |= {name for name in OPTIONAL if values[name] is None}
        return {name: value for name, value in values.items() if name not in unknown}


MEASURED = (
    *("metric", "metrics", "majority", "data", "rows", "best_step", "steps", "seconds"),
    *("cohort", "fingerprint", "parameters", "machine"),
)
"""Fields that only the result of a run that did not fail has."""
OPTIONAL = (
    *("interval", "bag_of_words", "reused"),
    *("test", "test_rows", "test_majority", "test_interval"),
)
"""Fields that results of older versions lack, as do those of tasks without labels or test rows, and
of cells that were run here."""


@dataclass(frozen=True)
class CellFolder(RunFolder):
    @property
    def is_done(self) -> bool:
        return (self.path / RESULT).exists()

    def result(self) -> CellResult | None:
        return CellResult.read(self.path / RESULT) if self.is_done else None

    def write_result(self, result: CellResult) -> bool:
        """Write the result; False if there already is one, which stays."""
        return write_once(self.path / RESULT, result.plain())

    def plan(self) -> Mapping[str, Any] | None:
        path = self.path / PLAN
        return dict(read_json(path)) if path.exists() else None

    def write_plan(self, plan: Mapping[str, Any]) -> None:
        remove_stale(self.path, [PLAN])
        write_json(self.path / PLAN, plan)

    # -- leases ------------------------------------------------------------------------------------

    def lease(self) -> Path | None:
        """The lease that counts."""
        return max(self.path.glob(f"{LEASE}*"), key=_number, default=None)

    def write_lease(self, worker: str, after: Path | None) -> Path | None:
        """The worker's lease, following `after`; None if another worker was faster."""
        path = self.path / f"{LEASE}{0 if after is None else _number(after) + 1}"
        return path if write_once(path, {"worker": worker}) else None

    def remove_leases(self) -> None:
        for lease in self.path.glob(f"{LEASE}*"):
            lease.unlink(missing_ok=True)


def _number(lease: Path) -> int:
    return int(lease.name.removeprefix(LEASE))


def lease_owner(lease: Path | None) -> str | None:
    """The worker that wrote a lease; None if there is no lease, or it is corrupted."""
    try:
        return None if lease is None else str(read_json(lease)["worker"])
    except (UserError, KeyError, TypeError):
        return None


@dataclass(frozen=True)
class StudyFolder:
    path: Path

    @property
    def study_file(self) -> Path:
        return self.path / STUDY_FILE

    @property
    def cells(self) -> Path:
        return self.path / CELLS

    def cell(self, name: str) -> CellFolder:
        return CellFolder(self.cells / name)

    def heartbeat(self, worker: str) -> Path:
        return self.path / WORKERS / f"{worker}.json"

    def heartbeats(self) -> list[Path]:
        return list((self.path / WORKERS).glob("[!.]*.json"))

    def now(self) -> float:
        """The time on the clock of the folder's file system, which dates heartbeats.

        If nothing can be written, the time on this machine.
        """
        try:
            with tempfile.NamedTemporaryFile(dir=self.path / WORKERS, prefix=".clock.") as file:
                return os.stat(file.name).st_mtime
        except OSError:
            return time.time()
