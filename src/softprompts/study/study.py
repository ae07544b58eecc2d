"""Study: read it, run it, see where it stands."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import yaml

from ..artifacts.file_names import STUDY_FILE
from ..artifacts.study_folder import StudyFolder
from ..errors import UserError, choices, setting
from ..files import make_folder, write_text
from .checks import check_data, check_models, check_runs, check_unchanged
from .config import StudyConfig, default_folder, read_study, study_errors, study_folder
from .plan import Cell, plan
from .processes import is_child, worker_processes
from .progress import StudyLines
from .ray_cluster import cluster, work_on_ray
from .reuse import check_reused, reuse_cells
from .state import StudyStatus, StudyWatcher, study_status
from .workers import rerun, work

Watch = Callable[[Sequence[Cell]], StudyWatcher]
"""Makes a watcher of a study with these cells."""


class Study:
    """Sources x targets x seeds, as a study file describes them, and the folder of their runs.

        study = Study.load("recipes/spot-smoke.yaml")
        study.run(output="runs/spot")
        study.status()

    A study resumes if interrupted, and several processes may run it in one folder.
    """

    def __init__(self, config: StudyConfig, folder: str | Path | None = None) -> None:
        self.config = config
        self.folder = StudyFolder(Path(folder or default_folder(config)))

    @classmethod
    @study_errors()
    def load(cls, path: str | Path) -> Self:
        """The study of a file, or of the folder that `run` wrote."""
        path = Path(path)
        return cls.open(path) if path.is_dir() else cls(read_study(path))

    @classmethod
    @study_errors()
    def open(cls, folder: str | Path) -> Self:
        """The study that `run` wrote to a folder."""
        return cls(read_study(StudyFolder(study_folder(folder)).study_file), folder)

    @study_errors()
    def cells(
        self,
        device: str | None = None,
        data_dir: str | None = None,
        models: Mapping[str, str] | None = None,
    ) -> list[Cell]:
        """All runs of the study, each after those it needs."""
        return plan(self.config, device, data_dir, models)

    def run(
        self,
        *,
        output: str | Path | None = None,
        cohort: int | None = None,
        workers: int = 1,
        only: Sequence[str] | None = None,
        device: str | None = None,
        data_dir: str | None = None,
        models: Mapping[str, str] | None = None,
        ray: str | None = None,
        reuse: Sequence[str | Path] = (),
        verbose: bool = True,
        watch: Watch | None = None,
    ) -> StudyStatus:
        """Run all cells without a result, or those of the stages in `only`.

        `workers` processes of this machine share the work, or the Ray cluster at the address `ray`.
        `models` are folders of backbones, by the names that the study has for them. Runs with the
        same settings that the studies in the folders `reuse` have finished are copied.
        """
        if any(os.environ.get(name, "1") != "1" for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE")):
            raise UserError(
                "Start a study without a multi-process launcher; "
                f"use {setting('workers')} or {setting('ray')}."
            )
        if ray is not None and workers > 1:
            raise UserError(
                "A Ray cluster has workers of its own; "
                f"use either {setting('ray')} or {setting('workers')}."
            )
        if output is not None:
            self.folder = StudyFolder(Path(output))
        folder, cells = self.folder, self.cells(device, data_dir, models)
        backbones = dict.fromkeys(cell.backbone for cell in cells)
        if unknown := set(models or {}) - set(backbones):
            raise UserError(
                f"The study has no backbone {min(unknown)}; {choices(min(unknown), backbones)}"
            )
        watch = watch or (StudyLines if verbose else lambda cells: StudyWatcher())
        with study_errors():
            others = [study_folder(path) for path in reuse]
            check_reused(others, folder.path)
            stages = self._check(cells, only, local=ray is None)
            size = cohort or self.config.cohort
            arguments = [str(folder.path), "--cohort", str(size), "--only", ",".join(stages)]
            for flag, value in (("--device", device), ("--data-dir", data_dir)):
                arguments += [flag, value] if value is not None else []
            for name, path in (models or {}).items():
                arguments += ["--model", f"{name}={path}"]
            with cluster(ray) as connected:
                make_folder(folder.path)
                text = yaml.safe_dump(self.config.plain(), sort_keys=False, allow_unicode=True)
                write_text(folder.study_file, text)
                for other in others:
                    chosen = [cell for cell in cells if cell.stage in stages]
                    reuse_cells(chosen, folder, StudyFolder(other))
                with worker_processes(arguments, workers), watch(cells) as watcher:
                    state = (
                        work(cells, folder, size, watcher, stages)
                        if connected is None
                        else work_on_ray(connected, cells, folder, size, watcher, stages)
                    )
            return study_status(cells, folder, state)

    @study_errors()
    def status(self) -> StudyStatus:
        """What is done, running and missing."""
        return study_status(self.cells(), self.folder)

    @study_errors()
    def rerun(
        self, cell: str, output: str | Path, data_dir: str | None = None
    ) -> list[dict[str, Any]]:
        """Run the cohort of a finished cell again, and compare scores with the recorded ones."""
        return rerun(self.folder, cell, Path(output), data_dir)

    def _check(self, cells: Sequence[Cell], only: Sequence[str] | None, local: bool) -> list[str]:
        """The stages to run, once all that can be checked is; nothing is written before that."""
        check_unchanged(cells, self.folder)
        stages = _stages(cells, self.folder, only)
        _check_folder(self.folder)
        if not is_child():  # otherwise the process that started this one has checked
            chosen = [cell for cell in cells if cell.stage in stages]
            check_models(chosen, self.folder, local)
            check_runs(chosen, self.folder, check_data(chosen, self.folder))
        return stages


def _stages(cells: Sequence[Cell], folder: StudyFolder, only: Sequence[str] | None) -> list[str]:
    """The stages to run; the cells that they start from must be done, or run, too."""
    stages = list(dict.fromkeys(cell.stage for cell in cells))
    if only is None:
        return stages
    if unknown := [stage for stage in only if stage not in stages]:
        raise UserError(f"The study has no stage {unknown[0]!r}; choose from {', '.join(stages)}.")
    stage_of = {cell.name: cell.stage for cell in cells}
    for name in (name for cell in cells if cell.stage in only for name in cell.needs):
        if stage_of[name] not in only and not folder.cell(name).is_done:
            raise UserError(
                f"{name} is not done, and other cells start from it; "
                f"add {stage_of[name]} to {setting('only')}."
            )
    return list(only)


def _check_folder(folder: StudyFolder) -> None:
    """The folder must be empty, or that of a study.

    Hidden files are being written: the study file of another worker, or of a killed one.
    """
    path = folder.path
    files = [file for file in path.iterdir() if file.name[0] != "."] if path.is_dir() else []
    try:
        if files:
            read_study(folder.study_file)
    except UserError:
        raise UserError(
            f"{path} holds files that do not belong to a study (it has no valid {STUDY_FILE}); "
            f"choose another {setting('output')}."
        ) from None
