r"""Kinds that benchmarks/grids/routers.yaml tries beside the default mixture: a plugin.

    python benchmarks/defaults.py benchmarks/grids/routers.yaml \
        --plugin benchmarks/router_kinds.py ...
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import softprompts
from softprompts.config import TuningConfig, option
from softprompts.prompt.route import (
    LinearRouter,
    ModuleRouter,
    Route,
    RouteModule,
    TopRoute,
    blend,
)
from softprompts.prompt.shape import Shape, ShapeModule
from softprompts.prompt.start import Begin, Material, SampledVocabulary, Start
from softprompts.tuning.optim import AdamW, Groups, OptimizerKind


@softprompts.register_route("soft-zero")
@dataclass(frozen=True)
class SoftZero(Route):
    """Like soft, but the router starts at zero: every input gets the mean of all prompts, until
    training sets them apart. `penalty` times KL(weights || uniform) is added to the loss."""

    penalty: float = option(0.0, minimum=0)

    def build(self, count: int, hidden: int, rng: torch.Generator) -> RouteModule:
        router = LinearRouter(count, hidden, rng)
        nn.init.zeros_(router.weight)
        return PenalisedRoute(router, self.penalty)


class PenalisedRoute(TopRoute):
    def __init__(self, router: LinearRouter, penalty: float) -> None:
        super().__init__(router, k=0, noise=0.0)
        self.penalty = penalty

    def forward(
        self,
        prompts: Tensor,
        text: Tensor,
        rng: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        weights = self.router(text).softmax(-1)
        if self.training and self.penalty:
            slope = self.penalty / len(weights) * weights.detach().clamp(min=1e-9).log()
            weights = AddGradient.apply(weights, slope)  # type: ignore[no-untyped-call]
        return blend(weights, prompts)


class AddGradient(torch.autograd.Function):
    """The identity, which adds a constant to the gradient."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, extra: Tensor) -> Tensor:
        ctx.save_for_backward(extra)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient + ctx.saved_tensors[0], None


@softprompts.register_route("soft-normalised")
@dataclass(frozen=True)
class SoftNormalised(Route):
    """Like soft, but the router reads the text's mean embedding at mean 0 and variance 1."""

    def build(self, count: int, hidden: int, rng: torch.Generator) -> RouteModule:
        linear = nn.Linear(hidden, count, bias=False)
        nn.init.orthogonal_(linear.weight, gain=hidden**-0.5, generator=rng)
        norm = nn.LayerNorm(hidden, elementwise_affine=False)
        return TopRoute(ModuleRouter(nn.Sequential(norm, linear)), k=0, noise=0.0)


@softprompts.register_route("soft-mlp")
@dataclass(frozen=True)
class SoftMlp(Route):
    """Like soft, with a router that has a hidden layer."""

    width: int = option(32, minimum=1)

    def build(self, count: int, hidden: int, rng: torch.Generator) -> RouteModule:
        first, last = nn.Linear(hidden, self.width), nn.Linear(self.width, count)
        for layer in (first, last):
            nn.init.orthogonal_(layer.weight, generator=rng)
            nn.init.zeros_(layer.bias)
        return TopRoute(ModuleRouter(nn.Sequential(first, nn.Tanh(), last)), k=0, noise=0.0)


@softprompts.register_shape("gated")
@dataclass(frozen=True)
class Gated(Shape):
    """Every prompt is the first one plus a gate times their difference; the gates start at zero, so
    that all prompts start equal."""

    def build(self, count: int, length: int, hidden: int, rng: torch.Generator) -> ShapeModule:
        return GatedModule(count)


class GatedModule(ShapeModule):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.gates = nn.Parameter(torch.zeros(count, 1, 1))

    def forward(self, table: Tensor, rng: torch.Generator | None = None) -> Tensor:
        return table[:1] + self.gates * (table - table[:1])

    def reproduce(self, vectors: Tensor) -> Tensor:
        nn.init.ones_(self.gates)
        return vectors


@softprompts.register_start("equal")
@dataclass(frozen=True)
class Equal(Start):
    """All prompts start as copies of one, sampled from the vocabulary."""

    def build(self, material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        one = SampledVocabulary().build(material, 1, length, rng).vectors
        return Begin(one.expand(count, -1, -1).clone())


@softprompts.register_optimizer("averaged")
@dataclass(frozen=True)
class AveragedKind(OptimizerKind):
    """AdamW; after the last step, parameters get their mean over the last `share` of the steps."""

    share: float = option(0.25, exclusiveMinimum=0, maximum=1)

    def build(self, groups: Groups, config: TuningConfig) -> torch.optim.Optimizer:
        return Averaged(groups, config, round(config.steps * (1 - self.share)))


class Averaged(torch.optim.Optimizer):
    def __init__(self, groups: Groups, config: TuningConfig, begin: int) -> None:
        super().__init__(groups, {})
        self.inner = AdamW(groups, weight_decay=config.weight_decay)
        self.param_groups = self.inner.param_groups
        self.count, self.begin, self.end = 0, begin, config.steps

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()
        self.count += 1
        if self.count <= self.begin:
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                total = state.setdefault("total", torch.zeros_like(parameter))
                total += parameter
                if self.count == self.end:
                    parameter.copy_(total / (self.end - self.begin))
