"""A plugin: one start, shape, route, task, metric and model family from outside the package."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

import softprompts
from softprompts.backbone import Causal
from softprompts.config import option
from softprompts.prompt.route import ModuleRouter, Route, RouteModule, TopRoute
from softprompts.prompt.shape import Shape, ShapeModule
from softprompts.prompt.start import Begin, Material, Start
from softprompts.tasks import Example
from softprompts.tasks.sources import Row


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


def load_parity(split: str) -> list[dict[str, Any]]:
    sizes = {"train": 24, "validation": 8}
    return [{"number": n, "parity": ("even", "odd")[n % 2]} for n in range(sizes.get(split, 0))]


@softprompts.register_task(
    "plugin/odd-or-even",
    rows=load_parity,
    labels=("even", "odd"),
    columns=("number",),
    metrics=("first-letter", "accuracy"),
)
def parity(row: Row, split: str) -> Iterator[Example]:
    yield Example(f"number: {row.values['number']}", row.values["parity"])


@softprompts.register_metric("first-letter")
def first_letter(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    """Percentage of answers whose first letter is right."""
    pairs = zip(examples, predictions, strict=True)
    return 100 * sum(e.target[0] == p[:1] for e, p in pairs) / len(examples)


class ToyConfig(transformers.GPT2Config):
    model_type = "toy-lm"


class ToyForCausalLM(transformers.GPT2LMHeadModel):
    config_class = ToyConfig


if "toy-lm" not in transformers.models.auto.configuration_auto.CONFIG_MAPPING:
    transformers.AutoConfig.register("toy-lm", ToyConfig)
    transformers.AutoModelForCausalLM.register(ToyConfig, ToyForCausalLM)


@softprompts.register_family("toy")
class Toy(Causal):
    """A family for a model type that the package does not know."""

    model_types = frozenset({"toy-lm"})
