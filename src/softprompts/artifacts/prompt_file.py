"""Prompts on disk: `prompt.safetensors` holds the folded vectors (and a mixture's router), `prompt.json` the card. Never pickle."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..config.choice import from_mapping
from ..errors import UserError
from ..files import read_json, write_json
from ..files.tensors import read_tensors, write_tensors
from ..prompt.prompt import Prompt, PromptConfig, plain, router_of

if TYPE_CHECKING:
    from ..backbone import Backbone

TENSORS, CARD = "prompt.safetensors", "prompt.json"


def save_prompt(folder: Path, prompt: Prompt, card: dict[str, Any]) -> None:
    """Fold and write; the card goes last, so that a folder with a card holds a whole prompt."""
    folded = prompt.fold()
    tensors = {"vectors": folded.table.data}
    if folded.config.count > 1:
        tensors["router"] = router_of(folded.route).weight.data
    if folded.head is not None:
        tensors |= {"head.weight": folded.head.weight.data, "head.bias": folded.head.bias.data}
    write_tensors(folder / TENSORS, tensors)
    config = folded.config
    form = {
        "length": config.length,
        "count": config.count,
        "route": config.route.plain(),
        "place": config.place,
        "head": config.head.plain(),
    }
    write_json(folder / CARD, {"prompt": form, **card})


def load_prompt(
    folder: Path | str, backbone: "Backbone | None" = None
) -> tuple[Prompt, dict[str, Any]]:
    """A saved prompt and its card. With a `backbone`, a prompt of another one is refused."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(
            f"There is no prompt at {folder}: it is no folder; name one that `softprompts tune` wrote, or a library's prompt by its "
            f"folder, such as library/{folder.name}."
        )
    if not (folder / CARD).exists():
        raise UserError(
            f"{folder} holds no {CARD}: either it is no prompt, or its run has not finished (run the same command again)."
        )
    card = read_json(folder / CARD)
    tensors, _ = read_tensors(folder / TENSORS)
    prompt = _checked(folder, card, tensors)
    if backbone is not None:
        check_backbone(folder, card, backbone)
    return prompt, card


def check_backbone(folder: Path | str, card: dict[str, Any], backbone: "Backbone") -> None:
    """A prompt means something only to the backbone it was tuned on."""
    made_for = card.get("backbone", {})
    if made_for.get("fingerprint") == backbone.fingerprint:
        return
    name = made_for.get("name", "an unknown backbone")
    if name == backbone.name:
        raise UserError(
            f"The prompt {folder} was tuned on another version of {name} and means nothing to this one; "
            "name that version's folder with --model, map the prompt with "
            f"`softprompts prompts recycle {folder} --from-model OLD --model {name} --output NEW`, or tune anew."
        )
    raise UserError(
        f"The prompt {folder} was tuned on {name} and means nothing to another model; load that one with --model, or tune anew."
    )


def _checked(folder: Path, card: Any, tensors: dict[str, torch.Tensor]) -> Prompt:
    try:
        form, vectors = dict(card["prompt"]), tensors["vectors"]
        config = from_mapping(
            PromptConfig,
            {**form, "length": int(form["length"]), "count": int(form["count"])},
            "prompt",
        )
    except (KeyError, TypeError, ValueError, UserError):
        raise UserError(f"{folder} is not a prompt this version can read; tune it again.") from None
    router, weight, bias = (tensors.get(name) for name in ("router", "head.weight", "head.bias"))
    told = card.get("backbone", {})
    fits = (
        vectors.dim() == 3
        and vectors.shape[2] == told.get("hidden", vectors.shape[2])
        and tuple(vectors.shape[:2]) == (config.count, config.length)
        and all(t.is_floating_point() for t in tensors.values())
        and (config.count > 1) == (router is not None)
        and (router is None or router.shape == (config.count, vectors.shape[2]))
        and (config.head.kind == "linear") == (weight is not None) == (bias is not None)
        and (
            weight is None or bias is None or (weight.dim() == 2 and bias.shape == weight.shape[:1])
        )
    )
    if not fits:
        raise UserError(
            f"{folder / TENSORS} does not fit its card; take a whole copy of the folder."
        )
    if any(not bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise UserError(
            f"{folder / TENSORS} holds numbers that are not finite; tune it again with a lower learning rate."
        )
    prompt = plain(
        vectors, router, config, None if weight is None else (weight.shape[0], weight.shape[1])
    )
    if prompt.head is not None and weight is not None and bias is not None:
        prompt.head.weight.data.copy_(weight)
        prompt.head.bias.data.copy_(bias)
    return prompt
