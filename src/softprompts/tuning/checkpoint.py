"""A run's training state in one file, written whole or not at all: unfolded prompt, optimiser, best prompt, task embedding, random
state, history."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import UserError
from ..files.tensors import read_tensors, write_tensors

if TYPE_CHECKING:
    from .run import Run

CHECKPOINT = "checkpoint.safetensors"
PLACE = ("step", "history", "pending", "first", "stopped")
"""What besides tensors says where a run is."""


def save_checkpoint(run: "Run", folder: Path) -> None:
    tensors: dict[str, Tensor] = {"rng": run.rng.get_state()}
    tensors |= {f"state/{name}": value for name, value in run.state().items()}
    tensors |= {f"best/{name}": value for name, value in (run.best or {}).items()}
    if run.embedding is not None:
        tensors["embedding"] = run.embedding[1]
    for index, state in run.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{name}": value for name, value in state.items()}
    note = {
        "config": run.config.plain(),
        "origin": run.origin,
        **{name: getattr(run, name) for name in PLACE},
    }
    write_tensors(folder / CHECKPOINT, tensors, note)


def load_checkpoint(run: "Run", folder: Path) -> None:
    """Put `run`, freshly made from the same config, where the checkpoint left off."""
    try:
        tensors, note = read_tensors(folder / CHECKPOINT)
    except UserError as error:
        raise UserError(
            f"{error} Or start that run anew: remove {folder}, or give --overwrite for all."
        ) from None
    if change := run.config.changed(note.get("config") if isinstance(note, dict) else None):
        raise UserError(
            f"{folder} holds a run with other settings ({change}); choose another --output, or start it anew with --overwrite."
        )
    changed = [
        what for what, digest in run.origin.items() if note.get("origin", {}).get(what) != digest
    ]
    if changed:
        raise UserError(
            f"The {changed[0]} of the run in {folder} has changed since; choose another --output, or --overwrite it."
        )
    try:
        run.load_state(_under(tensors, "state/"))
        run.best = _under(tensors, "best/") or None
        run.embedding = (
            (run.config.tuning.embed_at, tensors["embedding"]) if "embedding" in tensors else None
        )
        run.rng.set_state(tensors["rng"])
        _load_optimizer(run.optimizer, _under(tensors, "optimizer/"))
        for name in PLACE:
            setattr(run, name, note[name])
        told = ("state/", "best/", "embedding")
        if not all(
            bool(value.isfinite().all()) for name, value in tensors.items() if name.startswith(told)
        ):
            raise ValueError("it holds numbers that are none")
        scores = [entry[run.metric] for entry in run.history]
        embedded = run.config.prompt.length > 0 and run.step >= run.config.tuning.embed_at
        missing = (
            (scores and run.best is None)
            or embedded != (run.embedding is not None)
            or not run.optimizer.state_dict()["state"]
        )
        if not 0 < run.step <= run.steps or missing:
            raise ValueError("parts of it are missing")
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError, AttributeError) as error:
        wrong = f"{folder / CHECKPOINT} is damaged or of another version ({error})"
        raise UserError(
            f"{wrong}; start that run anew: remove {folder}, or give --overwrite for all."
        ) from None


def _under(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
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
    optimizer.load_state_dict(
        {"state": state, "param_groups": optimizer.state_dict()["param_groups"]}
    )
