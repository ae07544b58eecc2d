"""A cell on disk: what it was planned as, the run in its folder, and its one result."""

import dataclasses
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..artifacts.embedding import read_embedding
from ..artifacts.prompt_file import TENSORS
from ..artifacts.run_folder import CONFIG, MODEL, OURS
from ..backbone.hardware import machine
from ..config.run import read_yaml
from ..errors import UserError
from ..files import read_json, sweep, write_json
from ..files.tensors import read_tensors
from ..library.search import SIMILARITIES
from ..tasks import TaskConfig
from ..transfer.strategies import multi_task, shares, start_from
from ..tuning import RunConfig, RunFailedError, run_config
from ..tuning.api import Tuned
from ..tuning.checkpoint import CHECKPOINT
from .plan import Cell

CELLS, PLAN, RESULT = "cells", "cell.json", "result.json"

Chosen = list[dict[str, Any]]
"""Which source prompts a cell starts from, nearest first: cell, similarity, and weight in an average."""


def place(folder: Path, name: str) -> Path:
    return folder / CELLS / name


def is_done(folder: Path, name: str) -> bool:
    return (place(folder, name) / RESULT).exists()


def read_result(folder: Path, name: str) -> dict[str, Any] | None:
    path = place(folder, name) / RESULT
    return read_json(path) if path.exists() else None


def is_begun(folder: Path, name: str) -> bool:
    """Whether something was learned or told in it: a cell that was only claimed may still become another."""
    return is_done(folder, name) or (place(folder, name) / CHECKPOINT).exists()


def check_model(
    cells: Iterable[Cell], folder: Path, model: str, fingerprint: str | None = None
) -> None:
    """All that is done on the frozen model of this name was done on the same one: the one of now, where its fingerprint is told."""
    first = "it is now"
    for cell in cells:
        told = (
            read_result(folder, cell.name)
            if cell.config.model == model and not cell.whole_model
            else None
        )
        if told is None or told.get("fingerprint") is None:
            continue
        if told["fingerprint"] != (fingerprint or told["fingerprint"]):
            raise UserError(
                f"{cell.name} was done on another {model} than {first}, so their scores and prompts cannot be compared; "
                "give another --output, or remove the cells of one of the two models."
            )
        if fingerprint is None:
            fingerprint, first = told["fingerprint"], cell.name


def task_key(task: TaskConfig | Mapping[str, Any]) -> str:
    """What a task is, wherever its rows lie."""
    given = dataclasses.asdict(task) if isinstance(task, TaskConfig) else task
    return json.dumps(
        {name: value for name, value in given.items() if name != "data_dir"}, sort_keys=True
    )


def check_rows(
    names: Iterable[str], folder: Path, digests: Mapping[str, Mapping[str, str]]
) -> None:
    """All that is done of these tasks, by their keys, was done with the rows that they have now."""
    for name in names if digests else ():
        told = read_result(folder, name) or {}
        now = digests.get(task_key(told["config"]["task"])) if told.get("data") else None
        if now is not None and now != told["data"]:
            raise UserError(
                f"The rows of {told['target'] or told['source']} have changed since {name} was run, so their scores cannot be compared; "
                "put the old rows back, or run the study anew with another --output."
            )


def open_cell(cell: Cell, config: RunConfig, folder: Path) -> None:
    """Its folder, with what it is planned as; a run without a checkpoint, or from another place (the study was moved), is begun anew."""
    own = place(folder, cell.name)
    sweep(own, [PLAN])
    if not (own / CHECKPOINT).exists() or _moved(own / CONFIG, config):
        shutil.rmtree(own / MODEL, ignore_errors=True)
        for name in OURS:
            (own / name).unlink(missing_ok=True)
    write_json(own / PLAN, cell.plain())


def _moved(old: Path, config: RunConfig) -> bool:
    """Whether a config that was saved names other places than the one of now."""
    if not old.exists():
        return False
    told = run_config(read_yaml(old))
    return (told.model, told.device, told.task, told.prompt.start) != (
        config.model,
        config.device,
        config.task,
        config.prompt.start,
    )


def settle(cell: Cell, cells: Mapping[str, Cell], folder: Path) -> tuple[RunConfig, Chosen]:
    """The config of a cell's run, when the cells it needs are done: where it starts, and for a mixture which tasks it learns."""
    config = cell.config
    if not cell.starts:
        return config, []
    if cell.like is None:
        start = place(folder, cell.starts[0])
        chosen: Chosen = [{"cell": cell.starts[0]}]
        return (
            dataclasses.replace(config, model=str(start / MODEL))
            if cell.whole_model
            else start_from(config, [start])
        ), chosen
    assert cell.k is not None
    top = _ranked(cell, folder)[: cell.k]
    if cell.stage == "mixture-source":
        chosen = [{"cell": name, "similarity": similarity} for name, similarity in top]
        return multi_task(
            config,
            [task for name, _ in top for task in str(cells[name].config.task.task).split("+")],
        ), chosen
    weights = shares([similarity for _, similarity in top])
    chosen = [
        {"cell": name, "similarity": s, "weight": w}
        for (name, s), w in zip(top, weights, strict=True)
    ]
    return start_from(config, [place(folder, name) for name, _ in top], weights), chosen


def saved_config(folder: Path, name: str, data_dir: str | None = None) -> RunConfig:
    """The config that a finished cell was run with; what it started from is where the study's folder is now, and its rows may be too."""
    elsewhere = {"task": {"data_dir": data_dir}} if data_dir is not None else {}
    config, told = (
        run_config(read_yaml(place(folder, name) / CONFIG), elsewhere),
        read_result(folder, name) or {},
    )
    starts = [place(folder, chosen["cell"]) for chosen in told.get("chosen", [])]
    if (
        not starts or told["stage"] == "mixture-source"
    ):  # which takes the tasks of what it chose, not the prompts
        return config
    if config.tuning.trains == "model":
        return dataclasses.replace(config, model=str(starts[0] / MODEL))
    return start_from(config, starts, config.prompt.start.options.get("weights"))


def _ranked(cell: Cell, folder: Path) -> list[tuple[str, float]]:
    """The prompts a cell chooses among, nearest first; a name decides between equals. A run that failed left none."""
    assert cell.like is not None
    assert cell.similarity is not None
    near, own = SIMILARITIES[cell.similarity], embedding(place(folder, cell.like))
    there = [
        name for name in cell.starts if (read_result(folder, name) or {}).get("score") is not None
    ]
    found = [(name, round(near(own, embedding(place(folder, name))), 6)) for name in there]
    return sorted(found, key=lambda entry: (-entry[1], entry[0]))


def embedding(run: Path) -> Tensor:
    """A run's task embedding, all tokens of all its prompts in one row [K * P, H]; without one, its prompt."""
    vectors = read_embedding(run)
    return (read_tensors(run / TENSORS)[0]["vectors"] if vectors is None else vectors).flatten(
        0, -2
    )


def record(
    cell: Cell, chosen: Chosen, outcome: Tuned | RunFailedError, **how: Any
) -> dict[str, Any]:
    """What a cell came to: score, majority class, rows, its share of the cohort's seconds, what it ran on, its config, and `how`."""
    own = {
        name: getattr(cell, name)
        for name in ("stage", "backbone", "variant", "source", "target", "seed", "k", "similarity")
    }
    found: dict[str, Any] = {
        "cell": cell.name,
        **own,
        "chosen": chosen,
        **how,
        "finished": round(time.time(), 3),
    }
    if isinstance(outcome, RunFailedError):
        return {**found, "score": None, "failed": str(outcome), "config": cell.plain()["config"]}
    card, cost = outcome.card, outcome.cost
    metric = card["task"]["metrics"][0]
    return {
        **found,
        "score": card["metrics"][metric],
        "metric": metric,
        "metrics": card["metrics"],
        "majority": card["majority"][metric],
        "data": card["task"]["digests"],
        "rows": card["task"]["rows"]["validation"],
        "best_step": card["best_step"],
        "steps": card["steps"],
        "seconds": None if cost is None else round(cost["seconds"] / cost["runs"], 3),
        "cohort": None if cost is None else cost["runs"],
        "failed": card["stopped"] if card["failed"] else None,
        "fingerprint": card["backbone"]["fingerprint"],
        "parameters": sum(parameter.numel() for parameter in outcome.backbone.model.parameters()),
        "machine": machine(outcome.backbone.device, outcome.backbone.dtype),
        "config": card["config"],
    }


def commit(folder: Path, told: Mapping[str, Any]) -> bool:
    """Write a cell's result unless there is one: whoever comes second changes nothing. No run goes on from its checkpoint then."""
    path = place(folder, told["cell"]) / RESULT
    first = write_once(path, told)
    path.with_name(CHECKPOINT).unlink(missing_ok=True)
    return first


def write_once(path: Path, value: Any) -> bool:
    """Write a JSON file that is not there yet, whole; False where somebody else wrote one, which stays."""
    beside = path.with_name(f".once.{uuid.uuid4().hex}.json")
    write_json(beside, value)
    try:
        os.link(beside, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise UserError(
            f"{path} cannot be made ({error.strerror}); a study's folder must be where files can have two names."
        ) from None
    finally:
        beside.unlink(missing_ok=True)
    return True
