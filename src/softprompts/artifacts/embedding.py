"""Task embeddings on disk: a prompt after a fixed number of steps stands for its task (Vu 2022, SPoT §3.1)."""

import os
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserError
from ..files.tensors import read_tensors, write_tensors

EMBEDDING = "embedding.safetensors"


def write_embedding(folder: Path, vectors: Tensor | None) -> None:
    """The folded vectors [K, P, H] beside the final prompt; with None, no other prompt's stay there."""
    if vectors is None:
        (folder / EMBEDDING).unlink(missing_ok=True)
    else:
        write_tensors(folder / EMBEDDING, {"vectors": vectors})


def read_embedding(folder: Path) -> Tensor | None:
    """The task embedding [K, P, H] of a folder that has one."""
    path = folder / EMBEDDING
    return read_vectors(path) if os.path.exists(path) else None


def read_vectors(path: Path) -> Tensor:
    """The vectors [K, P, H] of a prompt's or an embedding's file."""
    vectors = read_tensors(path)[0].get("vectors")
    fits = (
        vectors is not None
        and vectors.dim() == 3
        and vectors.is_floating_point()
        and vectors.numel() > 0
    )
    if vectors is None or not fits or not bool(torch.isfinite(vectors).all()):
        raise UserError(
            f"{path} holds no prompt vectors that can be compared; take a whole copy of the folder."
        )
    return vectors
