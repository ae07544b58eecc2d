"""A folded prompt as named tensors: vectors, and what its route and its head were trained to."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..config import PLUGIN_HINT
from ..errors import UserError
from ..files.tensors import read_tensors
from ..prompt.prompt import Prompt, folded_prompt
from .card import Card


def prompt_tensors(folded: Prompt) -> dict[str, Tensor]:
    """What a folded prompt is saved as."""
    head = {} if folded.head is None else folded.head.state_dict()
    return {
        "vectors": folded.table.data,
        **_router_tensors(folded),
        **{f"head.{name}": tensor for name, tensor in head.items()},
    }


def prompt_of(tensors: Mapping[str, Tensor], card: Card, path: Path) -> Prompt:
    """The folded prompt of `prompt_tensors`; `path` is the file that the tensors are from."""
    try:
        config = card.prompt.config()
    except UserError as error:
        raise UserError(
            f"The prompt {path.parent} cannot be read ({error.message.rstrip('.')}); "
            f"{PLUGIN_HINT}; if it is of another version, tune it again."
        ) from None
    vectors, hidden = tensors.get("vectors"), card.backbone.hidden
    mismatch = UserError(f"{path} does not match its card; copy the folder again.")
    if (
        vectors is None
        or vectors.dim() != 3
        or tuple(vectors.shape[:2]) != (config.count, config.length)
        or hidden not in (None, vectors.shape[2])
        or not vectors.is_floating_point()
    ):
        raise mismatch
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise UserError(
            f"{path} holds numbers that are not finite; tune it again with a lower learning rate."
        )
    weight, router = tensors.get("head.weight"), _router(tensors)
    try:
        sizes = None if weight is None else (weight.shape[0], weight.shape[1])
        prompt = folded_prompt(vectors, router, config, sizes)
        if weight is not None and prompt.head is not None:
            prompt.head.load_state_dict({"weight": weight, "bias": tensors["head.bias"]})
    except (KeyError, IndexError, RuntimeError):
        raise mismatch from None
    expected = {name: tensor.shape for name, tensor in prompt.router_tensors().items()}
    if (config.head.kind == "linear") != (weight is not None) or expected != {
        name: tensor.shape for name, tensor in router.items()
    }:
        raise mismatch
    return prompt


def _router_tensors(folded: Prompt) -> dict[str, Tensor]:
    """The router of a folded mixture; a linear one is a single tensor."""
    tensors = folded.router_tensors()
    if tensors.keys() == {"weight"}:
        return {"router": tensors["weight"]}
    return {f"router.{name}": tensor for name, tensor in tensors.items()}


def _router(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `_router_tensors`."""
    if "router" in tensors:
        return {"weight": tensors["router"]}
    return {
        name.removeprefix("router."): tensor
        for name, tensor in tensors.items()
        if name.startswith("router.")
    }


def read_vectors(path: Path) -> Tensor:
    """The vectors [K, P, H] of a prompt or of a task embedding, if they can be compared."""
    vectors = read_tensors(path)[0].get("vectors")
    if (
        vectors is None
        or vectors.dim() != 3
        or vectors.numel() == 0
        or not vectors.is_floating_point()
        or not bool(torch.isfinite(vectors).all())
    ):
        raise UserError(f"{path} holds no valid prompt vectors; copy the folder again.")
    return vectors
