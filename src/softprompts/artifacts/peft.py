"""Hugging Face PEFT adapters in and out: `adapter_config.json` and `adapter_model.safetensors`.

PEFT itself is not needed. All it knows of a prompt are vectors before the text. Its seq2seq
adapters hold twice the rows they use; the second half is ignored.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..backbone.families import peft_task_types
from ..backbone.load import BUNDLED_MODELS, model_path
from ..errors import UserError, setting
from ..files import read_json, write_json
from ..files.tensors import read_tensors, write_tensors
from ..prompt.prompt import Prompt

ADAPTER, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PICKLED_WEIGHTS = "adapter_model.bin"
KINDS = ("PROMPT_TUNING", "P_TUNING")
SEQ_2_SEQ = "SEQ_2_SEQ_LM"
"""PEFT's task type of encoder-decoder models, whose adapters hold the prompt twice."""

UNUSED_SIZES = {"num_layers": 1, "num_attention_heads": 1}
"""Prompts need neither, but PEFT fails without them where configs name them differently
(DistilBERT, MPT)."""


class Adapter(NamedTuple):
    vectors: Tensor
    """[P, H]."""
    kind: str
    """PEFT's name of the method."""
    base: str | None
    task_type: str | None


def read_adapter(folder: Path) -> Adapter:
    """The prompt of a prompt-tuning or P-tuning adapter, whose network PEFT has folded already."""
    config = _read_config(folder)
    task_type, base = config.get("task_type"), config.get("base_model_name_or_path")
    supported = list(dict.fromkeys(peft_task_types().values()))
    if task_type is not None and task_type not in supported:
        raise UserError(
            f"{folder} is an adapter for {task_type}, whose trained head cannot be imported; "
            f"only adapters for {', '.join(supported)} can."
        )
    if not isinstance(base, str | None):
        raise UserError(f"The base model that {folder / ADAPTER} names is invalid: {base!r}.")
    if not (folder / WEIGHTS).exists():
        if not (folder / PICKLED_WEIGHTS).exists():
            raise UserError(f"The weights of {folder} are missing; copy the folder again.")
        raise UserError(
            f"The weights of {folder} are pickled, which is unsafe to read; "
            "load them with PEFT, and save them as safetensors."
        )
    return Adapter(
        _read_vectors(folder, config.get("num_virtual_tokens"), task_type),
        config["peft_type"],
        _model_name(base),
        task_type,
    )


def _read_config(folder: Path) -> dict[str, Any]:
    if not (folder / ADAPTER).exists():
        raise UserError(
            f"{folder} holds no {ADAPTER}; name the folder that PEFT's save_pretrained wrote."
        )
    config = read_json(folder / ADAPTER)
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(
            f"{folder} is a PEFT adapter of type {kind}, which is not a soft prompt; "
            f"only {' and '.join(KINDS)} are."
        )
    return dict(config)


def _read_vectors(folder: Path, count: Any, task_type: str | None) -> Tensor:
    """The prompt vectors [P, H]."""
    tensors, _ = read_tensors(folder / WEIGHTS)
    rows = tensors.get("prompt_embeddings")
    if len(tensors) > 1 and rows is not None:
        extra = next(name for name in tensors if name != "prompt_embeddings")
        raise UserError(
            f"{folder} trains more than its prompt ({extra}); only a prompt alone can be imported."
        )
    copies = 2 if task_type in (None, SEQ_2_SEQ) else 1
    sizes = {count, count * copies} if isinstance(count, int) and count > 0 else set()
    if rows is None or rows.dim() != 2 or len(rows) not in sizes or not rows.is_floating_point():
        raise UserError(
            f"{folder / WEIGHTS} does not hold the {count} prompt vectors that {ADAPTER} "
            "describes; copy the folder again."
        )
    if not bool(torch.isfinite(rows).all()):
        raise UserError(f"{folder / WEIGHTS} holds numbers that are not finite; train it again.")
    return rows[:count].float()


def _model_name(base: str | None) -> str | None:
    """A bundled model by its name, of which `write_adapter` wrote the folder."""
    name = Path(base or "").name
    is_bundled = name in BUNDLED_MODELS and not Path(base or "").is_dir()
    return name if is_bundled or base == model_path(name) else base


def write_adapter(folder: Path, prompt: Prompt, family: str, base: str) -> str:
    """Write a folded prompt as an adapter that `PeftModel.from_pretrained` loads, with the same
    logits; returns its task type.

    A bundled model is named by its folder: PEFT would look for its name on the hub.
    """
    config, task_type = prompt.config, peft_task_types().get(family)
    if task_type is None:
        raise UserError(f"PEFT has no adapters for {family} models; the prompt cannot be exported.")
    if config.count > 1:
        raise UserError(
            f"PEFT cannot route an input among {config.count} prompts, so a mixture cannot be "
            "exported without texts to average its prompts over; restore the rows it was tuned "
            f"on, or tune with {setting('preset', 'prompt-tuning')}."
        )
    if config.place != "prefix":
        raise UserError(
            "PEFT puts a prompt before the text, and this one is elsewhere "
            f"({config.place}); it cannot be exported."
        )
    if prompt.head is not None:
        raise UserError(
            "PEFT cannot hold this prompt's linear head, so it cannot be exported; "
            "tune one that answers in words."
        )
    vectors = prompt.table.detach()[0].float()
    write_tensors(folder / WEIGHTS, {"prompt_embeddings": vectors})
    write_json(
        folder / ADAPTER,
        {
            "peft_type": "PROMPT_TUNING",
            "task_type": task_type,
            "base_model_name_or_path": model_path(base),
            "num_virtual_tokens": vectors.shape[0],
            "num_transformer_submodules": 1,  # for seq2seq, too: PEFT does not use the second half
            "token_dim": vectors.shape[1],
            **UNUSED_SIZES,
            "prompt_tuning_init": "RANDOM",
            "inference_mode": True,
        },
    )
    return task_type
