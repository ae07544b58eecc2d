"""Safetensors files with a JSON note in their header."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..errors import UserError
from .atomic import check_readable, write_atomically


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], note: Mapping[str, Any] | None = None
) -> None:
    """Write tensors, and `note` as JSON in the header, to one safetensors file."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": "pt"} | ({"note": json.dumps(note)} if note is not None else {})
    write_atomically(path, lambda temporary: save_file(tensors, temporary, metadata=header))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the note of a file that `write_tensors` wrote."""
    with _open(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, _note(file)  # noqa: SIM118


def read_note(path: Path) -> dict[str, Any]:
    """The note of a file, without reading its tensors."""
    with _open(path) as file:
        return _note(file)


def _note(file: Any) -> dict[str, Any]:
    return dict(json.loads((file.metadata() or {}).get("note", "{}")))


def check_tensors(path: Path) -> None:
    """Check that a safetensors file exists and is complete, without reading its tensors."""
    with _open(path):
        pass


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        check_readable(path)  # safetensors reports every file it cannot open as missing
        raise UserError(
            f"{path} is corrupted or not a safetensors file ({error}); copy it again."
        ) from None
