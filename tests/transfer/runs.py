"""What tests of transfer share: short runs, and a model that is sensitive to its prompt."""

from pathlib import Path
from typing import Any

import torch

from softprompts.backbone import Backbone
from softprompts.config import RunConfig, run_config
from softprompts.files.tensors import read_tensors

from ..models import random_t5

SETTINGS: dict[str, Any] = {
    "preset": "prompt-tuning",
    "prompt": {"length": 3},
    "tuning": {
        "steps": 4,
        "batch_size": 4,
        "evaluate_every": 2,
        "checkpoint_every": 1,
        "max_length": 32,
        "scoring": "labels",
    },
}
FEW = {"shots": 3, "cap_validation": 30}
SOURCES = ("intent", "area", "register", "urgency")


def target(task: str = "helpdesk/urgency", **layer: Any) -> RunConfig:
    return run_config(SETTINGS, {"task": {"task": task, **FEW}}, layer)


def sensitive_model() -> Backbone:
    """With weights so large that prompts change its scores, unlike the usual tiny model."""
    return random_t5(initializer_factor=8.0)


def vectors(folder: Path, name: str = "prompt") -> torch.Tensor:
    return read_tensors(folder / f"{name}.safetensors")[0]["vectors"]
