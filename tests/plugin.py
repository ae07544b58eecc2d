"""A plugin: one start, shape, route, task, metric and model family from outside the package."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import softprompts
from softprompts.config.schema import option
from softprompts.prompt.route import ModuleRouter, Route, RouteModule, TopRoute
from softprompts.prompt.shape import Shape, ShapeModule
from softprompts.prompt.start import Begin, Material, Start


@softprompts.register_start("noisy-zeros")
@dataclass(frozen=True)
class NoisyZeros(Start):
    """Zeros with a little noise."""

    std: float = option(0.1, minimum=0)

    def build(self, material: Material, count: int, length: int, rng: torch.Generator) -> Begin:
        return Begin(self.std * torch.randn(count, length, material.words.hidden, generator=rng))


@softprompts.register_shape("scaled")
@dataclass(frozen=True)
class Scaled(Shape):
    """A learned factor for each prompt vector."""

    def build(self, count: int, length: int, hidden: int, rng: torch.Generator) -> ShapeModule:
        return ScaledModule(count, length)


class ScaledModule(ShapeModule):
    def __init__(self, count: int, length: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(count, length, 1))

    def forward(self, table: Tensor, rng: torch.Generator | None = None) -> Tensor:
        return table * self.factor

    def reproduce(self, vectors: Tensor) -> Tensor:
        return vectors


@softprompts.register_route("mlp")
@dataclass(frozen=True)
class MlpRoute(Route):
    """Every prompt by its probability, from a router with a hidden layer."""

    width: int = option(8, minimum=1)

    def build(self, count: int, hidden: int, rng: torch.Generator) -> RouteModule:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
            layers = nn.Sequential(
                nn.Linear(hidden, self.width), nn.Tanh(), nn.Linear(self.width, count)
            )
        return TopRoute(ModuleRouter(layers), k=0, noise=0.0)
