"""A study on a Ray cluster whose machines share its folder."""

import logging
import math
import os
import socket
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..artifacts.study_folder import StudyFolder
from ..errors import UserError, setting
from ..tasks import DATA_VARIABLE
from .leases import Leases
from .plan import Cell
from .state import StudyState, StudyWatcher, next_cohort
from .workers import POLL, LeaseLostError, run_cohort

MAX_CRASHES = 20
"""Workers that may die, one after another, without a cell being finished."""


@contextmanager
def cluster(
    address: str | None, extra: str = "study", log_to_driver: bool = False
) -> Iterator[Any]:
    """Ray, connected to the cluster at an address; None without an address.

    The address `local` starts a cluster of this machine. `extra`: of the package, with Ray.
    """
    ray = _connect(address, extra, log_to_driver) if address is not None else None
    try:
        yield ray
    finally:
        if ray is not None:
            ray.shutdown()


def work_on_ray(
    ray: Any,
    cells: Sequence[Cell],
    folder: StudyFolder,
    cohort: int,
    watcher: StudyWatcher | None = None,
    stages: Collection[str] | None = None,
) -> StudyState:
    """Run cells until none is left: a cohort on each GPU, or on each CPU if there are none.

    The cells of a cohort whose machine died are run again. Results are in the folder, so none is
    lost or counted twice.
    """
    if not _slots(ray)[0]:
        raise UserError("The Ray cluster has no CPU and no whole GPU; add a machine to it.")
    watcher = watcher or StudyWatcher()
    by_name = {cell.name: cell for cell in cells}
    state, crashes = StudyState(), 0
    pending: dict[Any, list[str]] = {}
    context = (Path.cwd(), os.environ.get(DATA_VARIABLE), folder, by_name)
    with Leases(folder) as leases:
        while remaining := state.update(cells, folder).remaining(cells, stages):
            watcher.on_update(state)
            busy = {name for names in pending.values() for name in names}
            ready = [
                cell
                for cell in state.ready(remaining)
                if cell.name not in busy and leases.is_free(cell.name)
            ]
            slots, resources = _slots(ray)
            while ready and (free := slots - len(pending)) > 0:
                chosen = next_cohort(ready, min(cohort, math.ceil(len(ready) / free)))
                ready = [cell for cell in ready if cell not in chosen]
                job = ray.remote(_cohort_on_ray).options(max_retries=0, **resources)
                names = [cell.name for cell in chosen]
                pending[job.remote(*context, names)] = names
            if not pending:
                time.sleep(POLL)
                continue
            finished, _ = ray.wait(list(pending), timeout=POLL)
            before = len(state.done)
            for job in finished:
                del pending[job]
                crashes += _crashed(ray, job)
            crashes = 0 if len(state.update(cells, folder).done) > before else crashes
            if crashes > MAX_CRASHES:
                raise UserError(
                    f"{crashes} workers of the Ray cluster died without finishing a cell; "
                    "check their logs and memory."
                )
    watcher.on_update(state)
    return state


def _cohort_on_ray(
    working_folder: Path,
    data_dir: str | None,
    folder: StudyFolder,
    cells: Mapping[str, Cell],
    names: Sequence[str],
) -> None:
    """On a machine of the cluster: run those of the cells that can be leased.

    In the working folder of the command, and with its data.
    """
    os.chdir(working_folder)
    if data_dir is not None:
        os.environ[DATA_VARIABLE] = data_dir
    with Leases(folder) as leases:
        cohort = [cells[name] for name in names if leases.acquire(name)]
        if cohort:
            run_cohort(leases, cohort, cells)


def _connect(address: str, extra: str, log_to_driver: bool) -> Any:
    try:
        import ray
    except ImportError:
        raise UserError(
            f"Ray is not installed; install softprompts[{extra}], or leave {setting('ray')} out."
        ) from None
    try:
        _check_listening(address)
        ray.init(
            address=address,
            log_to_driver=log_to_driver,
            logging_level=logging.ERROR,
            configure_logging=False,
            **({"include_dashboard": False} if address == "local" else {}),
        )
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"There is no Ray cluster at {address!r} ({reason}); start one with `ray start --head`."
        ) from None
    return ray


def _check_listening(address: str) -> None:
    """Raise at once if nothing listens at HOST:PORT; Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _slots(ray: Any) -> tuple[int, dict[str, float]]:
    """How many cohorts the cluster can run at once, and the resources of each."""
    resources = ray.cluster_resources()
    if resources.get("GPU", 0) >= 1:
        return int(resources["GPU"]), {"num_gpus": 1, "num_cpus": 1}
    return int(resources.get("CPU", 0)), {"num_cpus": 1}


def _crashed(ray: Any, job: Any) -> bool:
    """Whether the machine or process of a job died; a user's error is raised here."""
    try:
        ray.get(job)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, LeaseLostError):
            return False
        if isinstance(error.cause, UserError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError:
        return True
    return False
