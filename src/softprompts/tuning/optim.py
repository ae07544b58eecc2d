"""Optimisers and schedules.

Adafactor is implemented here because no library reproduces T5X's with the prompt-tuning settings,
AdamW because no library steps for many runs at once.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..config import Settings, TuningConfig, optimizers, option


class Adafactor(torch.optim.Optimizer):
    """T5X's Adafactor with prompt tuning's settings: no parameter scaling, no momentum, update RMS
    clipped to 1, weight decay not multiplied by the learning rate.

    transformers' version factors every matrix and multiplies weight decay by the learning rate;
    torch's cannot switch parameter scaling off. The second moment is factored only where two sides
    reach `factor_from`, as T5X does whatever the prompt-tuning gin asks for: a prompt of 100 x 768
    is not, one of 150 x 768 is, a mixture's table never. `start_step` continues beta2 = 1 - t^-0.8
    from a checkpoint's step.
    """

    def __init__(
        self,
        params: Any,
        lr: float = 0.3,
        weight_decay: float = 1e-5,
        start_step: int = 0,
        decay: float = 0.8,
        clip: float = 1.0,
        factor_from: int = 128,
        epsilon: float = 1e-30,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "start_step": start_step,
            "decay": decay,
            "clip": clip,
        }
        super().__init__(params, defaults | {"factor_from": factor_from, "epsilon": epsilon})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad.float(), group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(float(group["start_step"]))
        state["step"] += 1
        # In float32 on purpose, as T5X: at step 1,100,000 rounding beta2 moves the mixing rate by
        # 0.1 %.
        beta2 = 1.0 - state["step"] ** -group["decay"]
        mixing = float(1.0 - beta2)
        squared = gradient.square() + group["epsilon"]
        update = _scaled(gradient, state, squared, float(beta2), mixing, group["factor_from"])
        update /= (update.square().mean().sqrt() / group["clip"]).clamp(min=1.0)
        parameter.mul_(1.0 - group["weight_decay"]).sub_(group["lr"] * update)


def _scaled(
    gradient: Tensor,
    state: dict[str, Any],
    squared: Tensor,
    beta2: float,
    mixing: float,
    factor_from: int,
) -> Tensor:
    """Update the second moment and divide the gradient by its root; one factor at a time, since
    both together can overflow."""
    sides = sorted(
        (side for side in range(squared.dim()) if squared.shape[side] > 1),
        key=lambda side: squared.shape[side],
    )
    if len(sides) != 2 or squared.shape[sides[0]] < factor_from:  # T5X factors only matrices
        return gradient * _average(state, "v", squared, beta2, mixing).rsqrt()
    rows, columns = sides
    row = _average(state, "v_row", squared.mean(columns, keepdim=True), beta2, mixing)
    column = _average(state, "v_col", squared.mean(rows, keepdim=True), beta2, mixing)
    return gradient * (row / row.mean(rows, keepdim=True)).rsqrt() * column.rsqrt()


def _average(
    state: dict[str, Any], name: str, value: Tensor, beta2: float, mixing: float
) -> Tensor:
    if name not in state:
        state[name] = torch.zeros_like(value)
    average: Tensor = state[name]
    return average.mul_(beta2).add_(value, alpha=mixing)


class AdamW(torch.optim.Optimizer):
    """torch's AdamW to the bit, whose steps `step_all` takes for many runs together."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        step_all([self])


@torch.no_grad()
def step_all(optimizers: Iterable[torch.optim.Optimizer]) -> None:
    """Take a step with each. All AdamWs step as one list of tensors, each with its own rates."""
    together: list[tuple[Tensor, dict[str, Any], dict[str, Any]]] = []
    for optimizer in optimizers:
        if not isinstance(optimizer, AdamW):
            optimizer.step()
            continue
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = optimizer.state[parameter]
                    if not state:
                        state |= {
                            "step": torch.zeros(()),
                            "exp_avg": torch.zeros_like(parameter),
                            "exp_avg_sq": torch.zeros_like(parameter),
                        }
                    together.append((parameter, state, group))
    kinds: dict[tuple[Any, ...], list[tuple[Tensor, dict[str, Any], dict[str, Any]]]] = {}
    for each in together:
        kinds.setdefault((each[2]["betas"], each[2]["eps"], each[0].device), []).append(each)
    for (betas, epsilon, _), alike in kinds.items():
        _adamw(alike, betas, epsilon)


def _adamw(
    alike: list[tuple[Tensor, dict[str, Any], dict[str, Any]]],
    betas: tuple[float, float],
    epsilon: float,
) -> None:
    parameters, states, groups = (list(part) for part in zip(*alike, strict=True))
    gradients = [parameter.grad for parameter in parameters]
    means, squares = (
        [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states],
    )
    for state in states:
        state["step"] += 1
    steps = [float(state["step"]) for state in states]
    torch._foreach_mul_(parameters, [1 - group["lr"] * group["weight_decay"] for group in groups])
    torch._foreach_lerp_(means, gradients, 1 - betas[0])
    torch._foreach_mul_(squares, betas[1])
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - betas[1])
    scale = torch._foreach_sqrt(squares)
    torch._foreach_div_(scale, [(1 - betas[1] ** step) ** 0.5 for step in steps])
    torch._foreach_add_(scale, epsilon)
    sizes = [
        -group["lr"] / (1 - betas[0] ** step) for group, step in zip(groups, steps, strict=True)
    ]
    torch._foreach_addcdiv_(parameters, means, scale, sizes)


Groups = list[dict[str, Any]]
"""Parameters with their learning rates."""


@dataclass(frozen=True)
class OptimizerKind(Settings):
    """Base of all optimisers; what they share (rates, weight decay) is in `TuningConfig`."""

    @abstractmethod
    def build(self, groups: Groups, config: TuningConfig) -> torch.optim.Optimizer: ...


@optimizers.register("adamw")
@dataclass(frozen=True)
class AdamWKind(OptimizerKind):
    """AdamW; weight decay is multiplied by the learning rate."""

    beta1: float = option(0.9, minimum=0, exclusiveMaximum=1)
    beta2: float = option(0.999, minimum=0, exclusiveMaximum=1)
    epsilon: float = option(1e-8, exclusiveMinimum=0)

    def build(self, groups: Groups, config: TuningConfig) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return AdamW(groups, betas=betas, eps=self.epsilon, weight_decay=config.weight_decay)


@optimizers.register("adafactor")
@dataclass(frozen=True)
class AdafactorKind(OptimizerKind):
    """Adafactor as T5X runs it for prompt tuning; weight decay is not multiplied by the learning
    rate."""

    decay: float = option(0.8, exclusiveMinimum=0)
    clip: float = option(1.0, exclusiveMinimum=0)
    factor_from: int = option(128, minimum=1)

    def build(self, groups: Groups, config: TuningConfig) -> torch.optim.Optimizer:
        return Adafactor(
            groups,
            weight_decay=config.weight_decay,
            start_step=config.start_step,
            decay=self.decay,
            clip=self.clip,
            factor_from=self.factor_from,
        )


def make_optimizer(
    parts: Mapping[str, Sequence[torch.nn.Parameter]], config: TuningConfig
) -> torch.optim.Optimizer:
    """One optimiser per run, one group per choice with its own learning rate (kept as `base_lr` for
    the schedule)."""
    specific = {"shape": config.shape_lr, "route": config.route_lr, "head": config.head_lr}
    rates = {name: specific.get(name) or config.lr for name in parts}
    groups = [
        {"params": list(params), "lr": rates[name], "base_lr": rates[name]}
        for name, params in parts.items()
        if params
    ]
    optimizer: torch.optim.Optimizer = optimizers.make(config.optimizer).build(groups, config)
    return optimizer


def learning_rate(config: TuningConfig, step: int, steps: int) -> float:
    """The fraction of the learning rate to use at step `step` (from 0) of `steps`."""
    warmup = round(config.warmup * steps) if config.warmup < 1 else int(config.warmup)
    if step < warmup:
        return (step + 1) / warmup
    left = (steps - step) / max(1, steps - warmup)
    if config.schedule == "linear":
        return left
    return 0.5 * (1 + math.cos(math.pi * (1 - left))) if config.schedule == "cosine" else 1.0
