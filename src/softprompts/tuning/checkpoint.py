"""The state of a run in one file: unfolded prompt, optimiser, best prompt, task embedding, random
state, history. A checkpoint is complete or absent."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..artifacts.run_folder import RunFolder
from ..errors import UserError, setting

if TYPE_CHECKING:
    from .run import Run

PROGRESS = ("step", "history", "pending", "first", "stopped")
"""The attributes of a run, besides tensors, that say how far it is."""


def save_checkpoint(run: "Run", folder: RunFolder) -> None:
    tensors: dict[str, Tensor] = {"rng": run.rng.get_state()}
    tensors |= {f"state/{name}": value for name, value in run.state().items()}
    tensors |= {f"best/{name}": value for name, value in (run.best or {}).items()}
    if run.embedding is not None:
        tensors["embedding"] = run.embedding[1]
    for index, state in run.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{name}": value for name, value in state.items()}
    progress = {name: getattr(run, name) for name in PROGRESS}
    note = {"config": run.config.plain(), "origin": run.origin, **progress, "losses": run.losses}
    folder.write_checkpoint(tensors, note)


def load_checkpoint(run: "Run", folder: RunFolder) -> None:
    """Put `run`, just created from the same config, where the checkpoint left off."""
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
            f"{folder.checkpoint} is corrupted or of another version ({error}). {restart}."
        ) from None


def _check_origin(run: "Run", note: dict[str, Any], folder: RunFolder) -> None:
    """Check that the checkpoint has the same settings, data and backbone."""
    elsewhere = (
        f"choose another {setting('output')}, or start the run again with {setting('overwrite')}"
    )
    if change := run.config.changed(note.get("config")):
        raise UserError(f"{folder.path} holds a run with other settings ({change}); {elsewhere}.")
    origin = note.get("origin", {})
    changed = [what for what, digest in run.origin.items() if origin.get(what) != digest]
    if changed:
        raise UserError(
            f"The {changed[0]} of the run in {folder.path} has changed since; {elsewhere}."
        )


def _restore(run: "Run", tensors: dict[str, Tensor], note: dict[str, Any]) -> None:
    run.load_state(_below(tensors, "state/"))
    run.best = _below(tensors, "best/") or None
    if "embedding" in tensors:
        run.embedding = (run.config.tuning.embed_at, tensors["embedding"])
    run.rng.set_state(tensors["rng"])
    _load_optimizer(run.optimizer, _below(tensors, "optimizer/"))
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


def _below(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _load_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = tensor
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
