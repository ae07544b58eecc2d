"""The environment of a run: its device, and the versions that results may depend on."""

import ctypes
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

from ..version import __version__

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name()


def versions() -> dict[str, str]:
    return {
        "softprompts": __version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def environment(device: torch.device, dtype: str) -> dict[str, str]:
    """What a result records of the environment it was made in."""
    return {"device": device_name(device), "dtype": dtype, **versions()}


def peak_memory(device: torch.device) -> float | None:
    """Peak memory in GiB: allocated on all GPUs, or by the process; None if not counted."""
    if device.type == "cuda":
        gpus = range(torch.cuda.device_count())
        return sum(torch.cuda.max_memory_allocated(gpu) for gpu in gpus) / 2**30
    if resource is None:
        return None
    per_gib = 2**30 if sys.platform == "darwin" else 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / per_gib


def trim_heap() -> None:
    """Return what the process has freed to the system. glibc keeps the pages between tensors that
    are still in use: gigabytes, after many batches of different sizes."""
    if (library := _glibc()) is not None:
        library.malloc_trim(0)


@cache
def _glibc() -> Any:
    """The C library, if it can trim its heap; None elsewhere than on Linux with glibc."""
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:
        return None
    return library if hasattr(library, "malloc_trim") else None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor() or "CPU",
    )
