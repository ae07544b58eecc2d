"""Prompts as `tune` writes them, without tuning."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

FINGERPRINT = "f" * 32


def make_prompt(
    folder: Path,
    vectors: Tensor,
    fingerprint: str = FINGERPRINT,
    embedding: Tensor | None = None,
    **card: Any,
) -> Path:
    """A folder with a prompt [K, P, H], its card, and optionally a task embedding."""
    count, length, hidden = vectors.shape
    route = {"kind": "soft"} if count > 1 else {"kind": "single"}
    content = {
        "prompt": {
            "length": length,
            "count": count,
            "route": route,
            "place": "prefix",
            "head": {"kind": "words"},
        },
        "method": "prompt-tuning",
        "backbone": {
            "name": "toy",
            "fingerprint": fingerprint,
            "family": "encoder-decoder",
            "dtype": "fp32",
            "hidden": hidden,
        },
        "task": {"name": folder.name, "metrics": ["accuracy"]},
        "metrics": {"accuracy": 61.5},
        "majority": {"accuracy": 50.0},
        "best_step": 7,
        "config": {"prompt": {"start": {"kind": "vocabulary"}}},
    }
    if embedding is not None:
        content["embedding"] = {"step": 5}
    folder.mkdir(parents=True)
    router = {"router": torch.zeros(count, hidden)} if count > 1 else {}
    (folder / "prompt.safetensors").write_bytes(save({"vectors": vectors, **router}))
    if embedding is not None:
        (folder / "embedding.safetensors").write_bytes(save({"vectors": embedding}))
    (folder / "prompt.json").write_text(json.dumps(content | card))
    return folder
