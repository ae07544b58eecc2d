"""Safetensors files, each with a JSON note in its header."""

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
    """Tensors, and a JSON `note` in the file's header, as one safetensors file."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": "pt"} | ({"note": json.dumps(note)} if note is not None else {})

    def write(place: Path) -> None:
        try:
            save_file(plain, place, metadata=header)
        except SafetensorError as error:  # how it tells of a full disk
            raise OSError(str(error)) from None

    write_atomically(path, write)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the note of a file that `write_tensors` wrote."""
    with _opened(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}, _note(file)  # noqa: SIM118 (not a dict)


def read_note(path: Path) -> dict[str, Any]:
    """The note alone."""
    with _opened(path) as file:
        return _note(file)


def _note(file: Any) -> dict[str, Any]:
    return dict(json.loads((file.metadata() or {}).get("note", "{}")))


def check_tensors(path: Path) -> None:
    """Whether a safetensors file is there and whole; its numbers are not read."""
    with _opened(path):
        pass


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        check_readable(path)  # safetensors says of every file it cannot open that there is none
        raise UserError(
            f"{path} is damaged or no safetensors file ({error}); take a whole copy of it."
        ) from None
