"""Hugging Face PEFT adapters in and out: `adapter_config.json` and `adapter_model.safetensors`. PEFT itself is not needed.

PEFT knows one thing of all this: vectors in front of the text. Its seq2seq adapters hold twice the rows they use; the second half is dead.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import UserError
from ..files import read_json, write_json
from ..files.tensors import read_tensors, write_tensors
from ..prompt.prompt import Prompt

ADAPTER, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
KINDS = ("PROMPT_TUNING", "P_TUNING")
TASK_TYPES = {
    "encoder-decoder": "SEQ_2_SEQ_LM",
    "decoder-only": "CAUSAL_LM",
    "encoder-only": "FEATURE_EXTRACTION",
}


class Adapter(NamedTuple):
    """What an adapter says: vectors [P, H], PEFT's name for the method, the base model's name, and the family it is for, if it tells."""

    vectors: Tensor
    kind: str
    base: str | None
    family: str | None


def read_adapter(folder: Path) -> Adapter:
    """The prompt of a PEFT prompt-tuning or P-tuning adapter (whose network PEFT has folded away already)."""
    if not (folder / ADAPTER).exists():
        raise UserError(
            f"{folder} holds no {ADAPTER}; name the folder that PEFT's save_pretrained wrote."
        )
    config = read_json(folder / ADAPTER)
    kind = config.get("peft_type") if isinstance(config, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(
            f"{folder} is a PEFT adapter of type {kind}, which is no prompt in front of the text; only {' and '.join(KINDS)} are."
        )
    if not (folder / WEIGHTS).exists():
        pickled = (folder / "adapter_model.bin").exists()
        why = (
            "pickled, which we never read: load it with PEFT and save it again as safetensors"
            if pickled
            else "missing: take a whole copy"
        )
        raise UserError(f"The weights of {folder} are {why}.")
    family, base = _family(folder, config.get("task_type")), config.get("base_model_name_or_path")
    if not isinstance(base, str | None):
        raise UserError(f"{folder / ADAPTER} names no base model that can be read: {base!r}.")
    tensors, _ = read_tensors(folder / WEIGHTS)
    rows, count = tensors.get("prompt_embeddings"), config.get("num_virtual_tokens")
    if len(tensors) > 1 and rows is not None:
        extra = next(name for name in tensors if name != "prompt_embeddings")
        raise UserError(
            f"{folder} trains more than its prompt ({extra}); only a prompt by itself can be imported."
        )
    doubled = 2 if family in (None, "encoder-decoder") else 1
    sizes = {count, count * doubled} if isinstance(count, int) and count > 0 else set()
    if rows is None or rows.dim() != 2 or len(rows) not in sizes or not rows.is_floating_point():
        raise UserError(
            f"{folder / WEIGHTS} does not hold the {count} prompt vectors that {ADAPTER} tells of; take a whole copy."
        )
    if not bool(torch.isfinite(rows).all()):
        raise UserError(f"{folder / WEIGHTS} holds numbers that are not finite; train it again.")
    return Adapter(rows[:count].float(), kind, base, family)


def _family(folder: Path, task_type: Any) -> str | None:
    families = {name: family for family, name in TASK_TYPES.items()}
    if task_type is not None and (not isinstance(task_type, str) or task_type not in families):
        raise UserError(
            f"{folder} is an adapter for {task_type}, whose trained head cannot be taken along; only {', '.join(families)} can."
        )
    return families[task_type] if task_type is not None else None


def write_adapter(folder: Path, prompt: Prompt, family: str, base: str) -> None:
    """A folded prompt as an adapter that `PeftModel.from_pretrained` loads, with the same logits; a sentence for what PEFT cannot say."""
    config = prompt.config
    if config.count > 1:
        raise UserError(
            f"PEFT has no way to route an input among {config.count} prompts, so a mixture cannot be exported; take --preset prompt-tuning."
        )
    if config.place != "prefix":
        raise UserError(
            f"PEFT puts a prompt before the text, and this one stands elsewhere ({config.place}); it cannot be exported."
        )
    if prompt.head is not None:
        raise UserError(
            "PEFT has no place for this prompt's linear head, so it cannot be exported; tune one that answers in words."
        )
    vectors = prompt.table.detach()[0].float()
    write_tensors(folder / WEIGHTS, {"prompt_embeddings": vectors})
    told = {
        "peft_type": "PROMPT_TUNING",
        "task_type": TASK_TYPES[family],
        "base_model_name_or_path": base,
        "num_virtual_tokens": vectors.shape[0],
        "num_transformer_submodules": 1,  # also for seq2seq, where PEFT would write the rows twice and use them once
        "token_dim": vectors.shape[1],
        "prompt_tuning_init": "RANDOM",
        "inference_mode": True,
    }
    write_json(folder / ADAPTER, told)
