"""Task embeddings on disk: a prompt after a fixed number of steps stands for its task (Vu 2022, SPoT §3.1)."""

from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserError
from ..files import read_tensors, write_tensors

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
    if not path.exists():
        return None
    vectors = read_tensors(path)[0].get("vectors")
    if vectors is None or vectors.dim() != 3 or not vectors.is_floating_point() or not bool(torch.isfinite(vectors).all()):
        raise UserError(f"{path} holds no task embedding that can be read; take a whole copy of the folder, or remove the file.")
    return vectors
