"""Memory of the process."""

import sys
from pathlib import Path

import pytest
import torch

from softprompts.backbone import hardware


def resident() -> float:
    """The memory of this process in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


@pytest.mark.skipif(hardware._glibc() is None or sys.platform != "linux", reason="needs glibc")
def test_trimming_returns_freed_memory_that_lies_between_tensors_in_use() -> None:
    tensors = [torch.ones(2**14) for _ in range(6400)]  # 400 MiB
    del tensors[::-2]
    kept = tensors[::20]
    del tensors
    before = resident()
    hardware.trim_heap()
    assert before - resident() > 150
    assert all(float(tensor.sum()) == 2**14 for tensor in kept)


def test_trimming_without_glibc_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_glibc", lambda: None)
    hardware.trim_heap()
