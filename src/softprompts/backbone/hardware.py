"""What runs ran on: the device, and the versions that a number may depend on."""

import platform
from pathlib import Path

import torch
import transformers

from .. import __version__


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu()


def versions() -> dict[str, str]:
    return {
        "softprompts": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def machine(device: torch.device, dtype: str) -> dict[str, str]:
    """What a run's result tells of where it ran."""
    return {"device": device_name(device), "dtype": dtype, **versions()}


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor() or "CPU",
    )
