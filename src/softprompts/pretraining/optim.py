"""Muon for the layers' matrices, AdamW for the rest, and the learning-rate schedules."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from .config import PretrainConfig

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of Jordan 2024: five iterations bring all singular values near 1."""


class Muon(torch.optim.Optimizer):
    """Momentum with orthogonalised updates (Jordan 2024), scaled as AdamW's (Liu 2025, §2.2).

    torch has one since 2.9, for one matrix at a time. Here all matrices of a shape go through
    Newton-Schulz together, which for small models is most of a step.
    """

    def __init__(
        self, params: Any, lr: float = 3e-3, momentum: float = 0.95, weight_decay: float = 0.02
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(tuple(parameter.shape), []).append(parameter)
            for shape, parameters in shapes.items():
                self._update(parameters, shape, group)

    def _update(
        self, parameters: list[Tensor], shape: tuple[int, ...], group: dict[str, Any]
    ) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["moment"] = torch.zeros_like(parameter)
        moments = [self.state[parameter]["moment"] for parameter in parameters]
        torch._foreach_lerp_(moments, gradients, 1 - group["momentum"])
        nesterov = torch.stack(torch._foreach_lerp(gradients, moments, group["momentum"]))
        update = orthogonal(nesterov).to(parameters[0].dtype).unbind()
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, update, alpha=-group["lr"] * 0.2 * math.sqrt(max(shape)))


def orthogonal(matrices: Tensor, iterations: int = 5) -> Tensor:
    """[N, A, B] in bf16, the singular values of each matrix near 1 (Newton-Schulz)."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def make_optimizers(
    parameters: Iterable[tuple[str, torch.nn.Parameter]], config: PretrainConfig
) -> list[torch.optim.Optimizer]:
    """Only the layers' matrices are decayed, not embeddings, head, norms and position biases."""
    matrices: list[torch.nn.Parameter] = []
    rest: list[torch.nn.Parameter] = []
    outside = ("shared", "embed_tokens", "lm_head", "relative_attention_bias")
    for name, parameter in parameters:
        in_layer = parameter.ndim == 2 and not any(part in name for part in outside)
        (matrices if in_layer else rest).append(parameter)
    groups = [{"params": rest, "weight_decay": 0.0}]
    if config.optimizer == "adamw":
        groups.append({"params": matrices, "weight_decay": config.weight_decay})
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.95), fused=rest[0].is_cuda)
    if config.optimizer == "adamw":
        return [adamw]
    return [adamw, Muon(matrices, lr=config.lr, weight_decay=config.weight_decay)]


def learning_rate(config: PretrainConfig, step: int) -> float:
    """The learning rate of step `step`, counted from 0."""
    steps = config.total_steps
    warmup = round(config.warmup * steps) if config.warmup < 1 else int(config.warmup)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    left = (steps - step) / max(1, steps - warmup)
    factor = {
        "constant": 1.0,
        "linear": left,
        "cosine": 0.5 * (1 + math.cos(math.pi * (1 - left))),
        "wsd": min(1.0, (steps - step) / (steps * config.decay)) if config.decay else 1.0,
        "rsqrt": math.sqrt(max(1, warmup) / max(1, step + 1, warmup)),
    }[config.schedule]
    return config.lr * factor
