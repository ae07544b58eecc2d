"""What is looked at before a study writes anything: that it is the study that was begun, that its rows and models are there, and that
each of its cells could run."""

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from ..artifacts.prompt_file import CARD
from ..backbone import examine, load_backbone
from ..backbone.load import hollow_backbone, named_dtype, placed
from ..config.choice import difference
from ..errors import UserError
from ..files import read_json
from ..files.tensors import read_note
from ..prompt.route import WITHOUT_ROUTER
from ..tasks import Task, TaskConfig
from ..tasks.sources import is_file
from ..tasks.task import data_folder, has_rows, sketch
from ..tasks.text import PREFIX_LM
from ..transfer.strategies import ill_shaped
from ..tuning import Run, RunConfig, TuningConfig
from ..tuning.checkpoint import CHECKPOINT
from .cells import PLAN, check_rows, is_begun, is_done, place, task_key
from .leases import claimed, clock
from .plan import Cell

USUAL = {"config": json.loads(json.dumps(RunConfig().plain()))}
"""What a cell's settings are unless told."""
SETTINGS = {
    "dtype",
    "preset",
    *(field.name for kind in (TaskConfig, TuningConfig) for field in dataclasses.fields(kind)),
} - {"data_dir"}
"""What are flags of `tune`, but in a study stand in the file."""


def check_unchanged(cells: Sequence[Cell], folder: Path) -> None:
    """A cell that was begun, or that somebody is at, must be what the study file still says."""
    found = []
    for cell in cells:
        path = place(folder, cell.name) / PLAN
        change = (
            difference(read_json(path), json.loads(json.dumps(cell.plain())), USUAL)
            if path.exists()
            else None
        )
        if change and (is_begun(folder, cell.name) or claimed(folder, cell.name, clock(folder))):
            told = (
                "other sources or seeds to choose among"
                if change.startswith("starts ")
                else change.removeprefix("config.")
            )
            found.append(f"{cell.name} was begun with {told}")
    if found:
        more = f" (and {len(found) - 1} more cells)" if len(found) > 1 else ""
        raise UserError(
            f"The study file has changed: {found[0]}{more}; change it back, or give another --output."
        )


def check_data(cells: Sequence[Cell], folder: Path) -> dict[str, Task]:
    """The tasks of what is left to run, by their settings. Own data is read, and must be what finished cells learned; named tasks' rows
    must be in the data folder or, where there is none, on the hub, and most are read when they run."""
    there = functools.cache(has_rows)  # the hub is asked once for each task
    found, own = dict[str, Task](), dict[str, dict[str, str]]()
    tasks = {str(cell.config.task): cell for cell in cells if not is_done(folder, cell.name)}
    for task, subject in (
        (cell.config.task, cell.target or cell.source) for cell in tasks.values()
    ):
        for given in (given for given in (task.train, task.validation) if given is not None):
            if (task.task == PREFIX_LM or is_file(given)) and not Path(given).exists():
                raise UserError(
                    f"The data {given} that the study names does not exist; mend its path."
                )
        home, named = data_folder(task), task.train is None and task.task != PREFIX_LM
        lacking = [
            name
            for name in str(task.task).split("+")
            if named and name != PREFIX_LM and not there(name, home)
        ]
        if lacking and home is not None:
            raise UserError(
                f"{home} holds no rows of {lacking[0]}; get them, name another --data-dir, or leave the task out of the study."
            )
        if lacking:
            why = f"The hub does not give the rows of {lacking[0]} here"
            raise UserError(
                f"{why}; name a folder that holds them with --data-dir, or leave the task out of the study."
            )
        with words_of_a_study(f"The rows of {subject} cannot be used: "):
            read = sketch(task)
        found[str(task)] = read.brief
        if not named:
            own[task_key(task)] = read.digests
            _check_begun(
                [cell.name for cell in cells if str(cell.config.task) == str(task)],
                folder,
                str(subject),
                read.digest,
            )
    check_rows([cell.name for cell in cells], folder, own)
    return found


def _check_begun(names: Sequence[str], folder: Path, subject: str, digest: str) -> None:
    """What goes on from a checkpoint goes on with the rows that it has seen."""
    for name in names:
        path = place(folder, name) / CHECKPOINT
        if is_done(folder, name) or not path.exists():
            continue
        try:
            seen = read_note(path).get("origin", {}).get("data")
        except UserError as error:
            raise UserError(f"{error} Or begin the cell anew: remove {path.parent}.") from None
        if seen != digest:
            mend = "put the old rows back, or give another --output"
            raise UserError(f"The rows of {subject} have changed since {name} was begun; {mend}.")


def check_models(cells: Sequence[Cell], folder: Path, here: bool = True) -> None:
    """A model that cannot be had, or not so, is told before anything runs; its weights are read when its first cell runs.

    Devices are looked for only where cells run `here`."""
    configs = [cell.config for cell in cells if not is_done(folder, cell.name)]
    for device, dtype in dict.fromkeys((config.device, config.dtype) for config in configs if here):
        placed(device, dtype)
    for model, trusted in dict.fromkeys(
        (config.model, config.trust_remote_code) for config in configs
    ):
        examine(model, trusted)


def check_runs(cells: Sequence[Cell], folder: Path, tasks: Mapping[str, Task]) -> None:
    """What a cell could not be tuned with is told before anything runs: every kind of cell is begun once, with one row, on a model without
    weights. Only a start from prompts that are there needs the weights, which tell whose these are."""
    hollow, real = functools.cache(hollow_backbone), functools.lru_cache(1)(load_backbone)
    begun, forms = dict[str, Mapping[str, Any]](), dict[str, Mapping[str, Any]]()
    """What the prompts will be, by kinds of cells and by their names."""
    for cell in cells:
        if is_done(folder, cell.name):
            card = place(folder, cell.name) / CARD
            forms[cell.name] = read_json(card)["prompt"] if card.exists() else {}
            continue
        config = cell.config
        kind = str(dataclasses.replace(config, seed=0))
        with words_of_a_study(f"{cell.name} cannot run: "):
            if kind not in begun:
                dtype, trusted = (
                    named_dtype(config.dtype, torch.device("cpu")),
                    config.trust_remote_code,
                )
                fetched = config.prompt.start.kind == "prompt"
                model = (
                    real(config.model, dtype, "cpu", trusted)
                    if fetched
                    else hollow(config.model, dtype, trusted)
                )
                begun[kind] = _folded(Run(config, tasks[str(config.task)], model))
        forms[cell.name] = begun[kind]
        for source in (
            cell.starts if cell.stage != "mixture-source" else ()
        ):  # which takes tasks, not prompts
            if (why := _unlike(forms.get(source, {}), config)) is not None:
                raise UserError(
                    f"{cell.name} cannot start from {source}: {why}; give source and target settings that fit."
                )


def _folded(run: Run) -> dict[str, Any]:
    """What the card of a run's prompt will say of it."""
    prompt = run.config.prompt
    return {
        "length": prompt.length,
        "count": 1 if prompt.route.kind in WITHOUT_ROUTER else prompt.count,
        "route": prompt.route.plain(),
    }


def _unlike(source: Mapping[str, Any], target: RunConfig) -> str | None:
    """Why a run cannot start from another's prompt, or model; None where nothing is known of it, because it failed or is not run now."""
    if not source:
        return None
    if (source["length"] == 0) != (target.prompt.length == 0):
        return "one has a prompt, and the other has none"
    return ill_shaped(source, target, "best")


@contextmanager
def words_of_a_study(before: str = "") -> Iterator[None]:
    """Sentences about data that name a flag of `tune` name the entry of the study file instead."""
    try:
        yield
    except UserError as error:
        raise UserError(
            before + re.sub(r"(?<![\w-])--([a-z]+(?:[-.][a-z]+)*)", _entry, str(error))
        ) from None


def _entry(flag: re.Match[str]) -> str:
    name = flag[1].replace("-", "_")
    if name == "skip_bad_rows":
        return "skip_bad_rows: true in its entry of the study file, or under settings"
    return name if name in SETTINGS or name.startswith("prompt.") else flag[0]
