"""The state of a run in one file: unfolded prompt, optimiser, best prompt, task embedding, random
state, history. A checkpoint is complete or absent."""

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..artifacts.run_folder import RunFolder
from ..config import DATA_PATHS
from ..errors import UserError, setting
from .optim import learning_rate
from .prepare import count_steps

if TYPE_CHECKING:
    from .run import Run

PROGRESS = ("step", "history", "pending", "first", "stopped")
"""The attributes of a run, besides tensors, that say how far it is."""

LENGTH = ("steps", "epochs")
"""The settings that say how long a run is."""


def save_checkpoint(run: "Run", folder: RunFolder) -> None:
    tensors: dict[str, Tensor] = {"rng": run.rng.get_state()}
    tensors |= {f"state/{name}": value for name, value in run.state().items()}
    tensors |= {f"best/{name}": value for name, value in (run.best or {}).items()}
    if run.embedding is not None:
        tensors["embedding"] = run.embedding[1]
    for index, state in run.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{name}": value for name, value in state.items()}
    progress = {name: getattr(run, name) for name in (*PROGRESS, "losses")}
    folder.write_checkpoint(
        tensors, {"config": run.config.plain(), "origin": run.origin, **progress}
    )


def load_checkpoint(run: "Run", folder: RunFolder) -> None:
    """Put `run`, just created from the same config but perhaps with more steps, where the
    checkpoint left off."""
    restart = (
        f"To start that run again, remove {folder.path}, "
        f"or restart all runs with {setting('overwrite')}"
    )
    try:
        tensors, note = folder.read_checkpoint()
    except UserError as error:
        raise UserError(f"{error.message} {restart}.") from None
    _check_origin(run, note, folder)
    try:
        _restore(run, tensors, note)
        _check_complete(run, tensors)
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{folder.checkpoint} is corrupted or from another version ({error}). {restart}."
        ) from None


def _check_origin(run: "Run", note: dict[str, Any], folder: RunFolder) -> None:
    elsewhere = (
        f"choose another {setting('output')}, or start the run again with {setting('overwrite')}"
    )
    if change := run.config.changed(_settings(run, note)):
        raise UserError(f"{folder.path} holds a run with other settings ({change}); {elsewhere}.")
    for what, digest in run.origin.items():
        if note.get("origin", {}).get(what) != digest:
            raise UserError(
                f"The {what} of the run in {folder.path} has changed since; {elsewhere}."
            )


def _settings(run: "Run", note: dict[str, Any]) -> Any:
    """The checkpoint's settings, but with the run's own where they may differ: the path of its
    data, whose content `origin` identifies, and its steps, if there are more."""
    saved = note.get("config")
    if not isinstance(saved, dict):
        return saved
    task, tuning = dict(saved.get("task") or {}), dict(saved.get("tuning") or {})
    task |= {name: getattr(run.config.task, name) for name in DATA_PATHS}
    if run.steps > steps_before(run, note):
        tuning |= {name: getattr(run.config.tuning, name) for name in LENGTH}
    return {**saved, "task": task, "tuning": tuning}


def steps_before(run: "Run", note: dict[str, Any]) -> int:
    """The number of steps that the run of a checkpoint was planned for."""
    tuning = note["config"].get("tuning") or {}
    length = {name: tuning[name] for name in LENGTH if name in tuning}
    return count_steps(dataclasses.replace(run.config.tuning, **length), run.batches.per_epoch)


def longer_schedule(run: "Run", note: dict[str, Any]) -> str | None:
    """What more steps mean for a decaying schedule; None if nothing changes."""
    tuning, before = run.config.tuning, steps_before(run, note)
    if tuning.schedule == "constant" or run.finished or run.steps == before:
        return None
    share = learning_rate(tuning, run.step, run.steps)
    return (
        f"the {tuning.schedule} schedule now spans {run.steps:,} steps instead of {before:,}, "
        f"so training continues at {share:.0%} of the learning rate"
    )


def _restore(run: "Run", tensors: dict[str, Tensor], note: dict[str, Any]) -> None:
    run.load_state(below(tensors, "state/"))
    run.best = below(tensors, "best/") or None
    if "embedding" in tensors:
        run.embedding = (run.config.tuning.embed_at, tensors["embedding"])
    run.rng.set_state(tensors["rng"])
    load_optimizer(run.optimizer, below(tensors, "optimizer/"))
    for name in PROGRESS:
        setattr(run, name, note[name])
    run.losses = [(step, loss) for step, loss in note.get("losses", [])]  # older ones lack it


def _check_complete(run: "Run", tensors: dict[str, Tensor]) -> None:
    prompts = [
        tensor
        for name, tensor in tensors.items()
        if name.startswith(("state/", "best/", "embedding"))
    ]
    if not all(bool(tensor.isfinite().all()) for tensor in prompts):
        raise ValueError("it holds numbers that are not finite")
    scores = [entry[run.metric] for entry in run.history]
    embedded = run.config.prompt.length > 0 and run.step >= run.config.tuning.embed_at
    if (
        not 0 < run.step <= run.steps
        or (scores and run.best is None)
        or embedded != (run.embedding is not None)
        or not run.optimizer.state_dict()["state"]
    ):
        raise ValueError("parts are missing")


def below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load a state whose tensors are named `INDEX/NAME`."""
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
