"""On the way to a device."""

import torch
from torch import Tensor


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on its way to `device`, without waiting for what the device is at."""
    return (
        tensor.pin_memory().to(device, non_blocking=True)
        if device.type == "cuda" and not tensor.is_cuda
        else tensor.to(device)
    )
