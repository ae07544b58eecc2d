"""What is looked at before a study writes anything: that it is the study that was begun, that its rows and models are there, and that
each of its cells could run."""

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from ..backbone import examine, load_backbone
from ..backbone.load import hollow_backbone, named_dtype, placed
from ..choice import difference
from ..errors import UserError
from ..files import read_json
from ..tasks import Task, TaskConfig
from ..tasks.sources import is_file
from ..tasks.task import data_folder, has_rows, sketch
from ..tasks.text import PREFIX_LM
from ..tuning import Run, RunConfig, TuningConfig
from .cells import PLAN, check_rows, is_begun, is_done, place, task_key
from .claims import claimed, clock
from .study import Cell

USUAL = {"config": json.loads(json.dumps(RunConfig().plain()))}
"""What a cell's settings are unless told."""
SETTINGS = {field.name for kind in (TaskConfig, TuningConfig) for field in dataclasses.fields(kind)} | {"dtype", "preset"} - {"data_dir"}
"""What are flags of `tune`, but in a study stand in the file."""


def check_unchanged(cells: Sequence[Cell], folder: Path) -> None:
    """A cell that was begun, or that somebody is at, must be what the study file still says."""
    found = []
    for cell in cells:
        path = place(folder, cell.name) / PLAN
        change = difference(read_json(path), json.loads(json.dumps(cell.plain())), USUAL) if path.exists() else None
        if change and (is_begun(folder, cell.name) or claimed(folder, cell.name, clock(folder))):
            told = "other sources or seeds to choose among" if change.startswith("starts ") else change.removeprefix("config.")
            found.append(f"{cell.name} was begun with {told}")
    if found:
        more = f" (and {len(found) - 1} more cells)" if len(found) > 1 else ""
        raise UserError(f"The study file has changed: {found[0]}{more}; change it back, or give another --output.")


def check_data(cells: Sequence[Cell], folder: Path) -> dict[str, Task]:
    """The tasks of what is left to run, by their settings. Own data is read, and must be what finished cells learned; named tasks' rows
    must be in the data folder or, where there is none, on the hub, and most are read when they run."""
    there = functools.cache(has_rows)  # the hub is asked once for each task
    found: dict[str, Task] = {}
    tasks = {str(cell.config.task): cell for cell in cells if not is_done(folder, cell.name)}
    for task, subject in ((cell.config.task, cell.target or cell.source) for cell in tasks.values()):
        for given in (given for given in (task.train, task.validation) if given is not None):
            if (task.task == PREFIX_LM or is_file(given)) and not Path(given).exists():
                raise UserError(f"The data {given} that the study names does not exist; mend its path.")
        home, named = data_folder(task), task.train is None and task.task != PREFIX_LM
        lacking = [name for name in str(task.task).split("+") if named and name != PREFIX_LM and not there(name, home)]
        if lacking and home is not None:
            raise UserError(f"{home} holds no rows of {lacking[0]}; get them, name another --data-dir, or leave the task out of the study.")
        if lacking:
            why = f"The hub does not give the rows of {lacking[0]} here"
            raise UserError(f"{why}; name a folder that holds them with --data-dir, or leave the task out of the study.")
        with words_of_a_study(f"The rows of {subject} cannot be used: "):
            found[str(task)] = sketch(task)
        if not named:
            check_rows([cell.name for cell in cells], folder, {task_key(task): found[str(task)]})
    return found


def check_models(cells: Sequence[Cell], folder: Path, here: bool = True) -> None:
    """A model that cannot be had, or not so, is told before anything runs; its weights are read when its first cell runs.

    Devices are looked for only where cells run `here`."""
    configs = [cell.config for cell in cells if not is_done(folder, cell.name)]
    for device, dtype in dict.fromkeys((config.device, config.dtype) for config in configs if here):
        placed(device, dtype)
    for model, trusted in dict.fromkeys((config.model, config.trust_remote_code) for config in configs):
        examine(model, trusted)


def check_runs(cells: Sequence[Cell], folder: Path, tasks: Mapping[str, Task]) -> None:
    """What a cell could not be tuned with is told before anything runs: each is begun once on a model without weights, and with one row."""
    hollow, known = functools.cache(hollow_backbone), {cell.name: cell for cell in cells}
    left: dict[str, Cell] = {}
    for cell in (cell for cell in cells if not is_done(folder, cell.name)):
        left.setdefault(str(dataclasses.replace(cell.config, seed=0)), cell)
    for cell in left.values():
        config = cell.config
        with words_of_a_study(f"{cell.name} cannot run: "):
            dtype = named_dtype(config.dtype, torch.device("cpu"))
            real = config.prompt.start.kind == "prompt"  # whose sources are of one model, which only its weights tell
            backbone = (
                load_backbone(config.model, dtype, "cpu", config.trust_remote_code)
                if real
                else hollow(config.model, dtype, config.trust_remote_code)
            )
            Run(config, tasks[str(config.task)].brief, backbone)
    for cell in cells:
        for source in (known[name] for name in cell.starts if name in known):
            if (why := _unlike(source.config, cell.config)) is not None:
                raise UserError(f"{cell.name} cannot start from {source.name}: {why}; give source and target settings that fit.")


def _unlike(source: RunConfig, target: RunConfig) -> str | None:
    """Why one run cannot start from another, by their settings."""
    if source.tuning.trains != target.tuning.trains:
        return "one tunes a prompt, and the other does not"
    if source.prompt.count not in (1, target.prompt.count):
        return f"{source.prompt.count} prompts cannot start {target.prompt.count}"
    return None


@contextmanager
def words_of_a_study(before: str = "") -> Iterator[None]:
    """Sentences about data that name a flag of `tune` name the entry of the study file instead."""
    try:
        yield
    except UserError as error:
        raise UserError(before + re.sub(r"(?<![\w-])--([a-z]+(?:[-.][a-z]+)*)", _entry, str(error))) from None


def _entry(flag: re.Match[str]) -> str:
    name = flag[1].replace("-", "_")
    if name == "skip_bad_rows":
        return "skip_bad_rows: true in its entry of the study file, or under settings"
    return name if name in SETTINGS or name.startswith("prompt.") else flag[0]
