"""Checks before a study writes anything.

It must be the study that was started in its folder, its rows and models must be available, and each
of its cells must be able to run.
"""

import dataclasses
import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..artifacts.card import PromptCard
from ..artifacts.study_folder import StudyFolder
from ..backbone import inspect_model, load_backbone
from ..backbone.load import meta_backbone, resolve_device, resolve_dtype
from ..config import RunConfig, difference
from ..errors import UserError, setting
from ..tasks import PREFIX_LM, Task, has_rows, is_file, preview_task
from ..transfer.sources import folded_card, start_mismatch
from ..tuning import Run
from .cells import check_rows, task_key
from .config import check_available, study_errors
from .leases import lease_holder
from .plan import Cell

DEFAULTS = {"config": json.loads(json.dumps(RunConfig().plain()))}
"""Values of settings that the plan of an older version lacks."""


def check_unchanged(cells: Sequence[Cell], folder: StudyFolder) -> None:
    """Check that cells that have begun, or that workers are running, match the study file."""
    changes = {}
    for cell in cells:
        run = folder.cell(cell.name)
        old, plan = run.plan(), json.loads(json.dumps(cell.plain()))
        change = None if old is None else difference(old, plan, DEFAULTS)
        if change is not None and (
            run.is_done or run.has_checkpoint or lease_holder(folder, cell.name, folder.now())
        ):
            changes[cell.name] = change
    if changes:
        name, change = next(iter(changes.items()))
        if change.startswith(setting("starts")):
            change = "it had other sources or seeds to choose among"
        more = f" (and {len(changes) - 1} more cells)" if len(changes) > 1 else ""
        raise UserError(
            f"The study file has changed since {name} was started: "
            f"{change}{more}; "
            f"undo the change, or choose another {setting('output')}."
        )


# -- data ------------------------------------------------------------------------------------------


def check_data(cells: Sequence[Cell], folder: StudyFolder) -> dict[str, Task]:
    """The tasks of the cells without a result, by their settings.

    Your own data is read, and must be what finished cells used. Named tasks' rows must be in the
    data folder or, without one, on the Hub; most are read when they run.
    """
    available = functools.cache(has_rows)  # asks the Hub once per task
    tasks, digests = dict[str, Task](), dict[str, dict[str, str]]()
    pending = [cell for cell in cells if not folder.cell(cell.name).is_done]
    for key, cell in {str(cell.config.task): cell for cell in pending}.items():
        task, subject = cell.config.task, str(cell.target or cell.source)
        for path in filter(None, (task.train, task.validation)):
            if (task.task == PREFIX_LM or is_file(path)) and not Path(path).exists():
                raise UserError(
                    f"The data {path} in the study file does not exist; correct its path."
                )
        named = task.train is None and task.task != PREFIX_LM
        if named:
            check_available(task, available)
        with study_errors(f"The rows of {subject} cannot be used: "):
            preview = preview_task(task)
        tasks[key] = preview.truncated
        if not named:
            digests[task_key(task)] = preview.digests
            names = [other.name for other in cells if str(other.config.task) == key]
            _check_checkpoints(names, folder, subject, preview.digest)
    check_rows([cell.name for cell in cells], folder, digests)
    return tasks


def _check_checkpoints(
    names: Sequence[str], folder: StudyFolder, subject: str, digest: str
) -> None:
    for name in names:
        cell = folder.cell(name)
        if cell.is_done or not cell.has_checkpoint:
            continue
        try:
            origin = cell.read_checkpoint_note().get("origin", {})
        except UserError as error:
            raise UserError(
                f"{error.message} To start the cell over, remove {cell.path}."
            ) from None
        if origin.get("data") != digest:
            raise UserError(
                f"The rows of {subject} have changed since {name} was started; "
                f"restore the old rows, or choose another {setting('output')}."
            )


# -- models and runs -------------------------------------------------------------------------------


def check_models(cells: Sequence[Cell], folder: StudyFolder, local: bool = True) -> None:
    """Check that all models can be loaded; their weights are read when the first cell runs.

    Devices are checked only where cells run on this machine (`local`).
    """
    configs = [cell.config for cell in cells if not folder.cell(cell.name).is_done]
    for device, dtype in dict.fromkeys((c.device, c.dtype) for c in configs if local):
        resolve_dtype(dtype, resolve_device(device))
    for model, trusted in dict.fromkeys((c.model, c.trust_remote_code) for c in configs):
        inspect_model(model, trusted)


def check_runs(cells: Sequence[Cell], folder: StudyFolder, tasks: Mapping[str, Task]) -> None:
    """Check that every cell can run.

    Each kind of cell is set up once, with one row, on a model without weights. Only a start from
    existing prompts needs the weights, for their fingerprint.
    """
    on_meta, loaded = functools.cache(meta_backbone), functools.lru_cache(1)(load_backbone)
    checked: set[str] = set()
    prompts: dict[str, PromptCard | None] = {}
    for cell in cells:
        config, run = cell.config, folder.cell(cell.name)
        if run.is_done:
            prompts[cell.name] = run.card().prompt if run.has_prompt else None
            continue
        kind = str(dataclasses.replace(config, seed=0))
        if kind not in checked:
            checked.add(kind)
            dtype = resolve_dtype(config.dtype, torch.device("cpu"))
            with study_errors(f"{cell.name} cannot run: "):
                if config.prompt.start.kind == "prompt":
                    backbone = loaded(config.model, dtype, "cpu", config.trust_remote_code)
                else:
                    backbone = on_meta(config.model, dtype, config.trust_remote_code)
                Run(config, tasks[str(config.task)], backbone)
        prompts[cell.name] = folded_card(config.prompt)
        _check_sources(cell, prompts)


def _check_sources(cell: Cell, prompts: Mapping[str, PromptCard | None]) -> None:
    """Check that a cell can start from its sources; nothing is known of failed ones."""
    if cell.stage == "mixture-source":  # which takes tasks, not prompts
        return
    for name in cell.starts:
        source, averaged = prompts.get(name), cell.stage == "average"
        if source and (mismatch := start_mismatch(source, cell.config.prompt, averaged)):
            raise UserError(
                f"{cell.name} cannot start from {name}: {mismatch}; "
                "give sources and targets settings that fit."
            )
