"""route: which prompt does this input get, when there are several?

SMoP (Choi 2023) sends every input to one of K short prompts: a linear router without bias reads the
mean of the text's input embeddings. A route takes the K prompts [K, P, H] and the text's mean
embedding [B, H] and gives each row its own prompt [B, P, H]. Rows never see each other (the
official code sums the routed prompts over the batch). Noise exists in training only, comes from the
run's generator, and can be passed in.

`level` is for transfer; `fold` and `unfold` are for saving and loading.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..backbone import to_device
from ..config import Settings, option, routes

# -- routers: logits of K prompts from a text's mean embedding -------------------------------------


class Router(nn.Module, ABC):
    """Logits of K prompts: [B, H] -> [B, K]."""

    @abstractmethod
    def scale(self, factor: float) -> None:
        """Multiply all logits by a factor, in place."""

    @abstractmethod
    def fold(self, unit: float) -> dict[str, Tensor]:
        """Tensors of a router that reads `text` as this one reads `text / unit`."""

    @abstractmethod
    def unfold(self, tensors: Mapping[str, Tensor], unit: float) -> None:
        """Become a router that reads `text / unit` as the folded one reads `text`."""


class LinearRouter(Router):
    """Linear, without bias, orthogonal at first (official code)."""

    def __init__(self, count: int, hidden: int, rng: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(count, hidden), generator=rng))

    def forward(self, text: Tensor) -> Tensor:
        return text @ self.weight.T

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        self.weight.mul_(factor)

    def fold(self, unit: float) -> dict[str, Tensor]:
        return {"weight": self.weight.detach() / unit}

    @torch.no_grad()
    def unfold(self, tensors: Mapping[str, Tensor], unit: float) -> None:
        self.weight.copy_(tensors["weight"] * unit)


class ModuleRouter(Router):
    """Any module [B, H] -> [B, K] as a router, such as an MLP."""

    unit: Tensor
    gain: Tensor

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.register_buffer("unit", torch.ones(()))
        self.register_buffer("gain", torch.ones(()))

    def forward(self, text: Tensor) -> Tensor:
        logits: Tensor = self.module(text / self.unit)
        return logits * self.gain

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        self.gain.mul_(factor)

    def fold(self, unit: float) -> dict[str, Tensor]:
        return {**self.state_dict(), "unit": self.unit * unit}

    def unfold(self, tensors: Mapping[str, Tensor], unit: float) -> None:
        self.load_state_dict({**tensors, "unit": tensors["unit"] / unit})


# -- routes ----------------------------------------------------------------------------------------


class RouteModule(nn.Module, ABC):
    """K prompts [K, P, H] and each text's mean embedding [B, H] in, each row's prompt [B, P, H]
    out."""

    router: Router | None
    """Reads the text; None if the route does not depend on the text."""

    def __init__(self, router: Router | None = None) -> None:
        super().__init__()
        self.router = router

    @property
    def reads_text(self) -> bool:
        return self.router is not None

    @abstractmethod
    def forward(
        self,
        prompts: Tensor,
        text: Tensor,
        rng: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor: ...

    def level(self, count: int) -> float:
        """Prepare the route so that K equal prompts act as one at step 0; returns the factor to
        multiply them by."""
        return 1.0

    def fold(self, prompts: Tensor) -> Tensor:
        """The prompts that evaluation needs."""
        return prompts


@dataclass(frozen=True)
class Route(Settings):
    """Base of all routes."""

    folds_to_one: ClassVar[bool] = False
    """Whether a single prompt is left after training."""

    @abstractmethod
    def build(self, count: int, hidden: int, rng: torch.Generator) -> RouteModule:
        """The route among K = `count` prompts."""


@routes.register("single")
@dataclass(frozen=True)
class Single(Route):
    """One prompt for every input: Prompt Tuning."""

    folds_to_one: ClassVar[bool] = True

    def build(self, count: int, hidden: int, rng: torch.Generator) -> RouteModule:
        return SingleRoute()


class SingleRoute(RouteModule):
    def forward(
        self,
        prompts: Tensor,
        text: Tensor,
        rng: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        return prompts[0].expand(len(text), -1, -1)


@routes.register("top1")
@dataclass(frozen=True)
class Top(Route):
    """The k best prompts (0: all), each times its probability, not re-normalised: sum of p_j P_j
    (Choi 2023, eq. 3 and 4; Table 3's top-2).

    In training the logits are perturbed to logits * (1 + noise * N(0, 1)), the scale of the noise
    held constant (eq. 5); `noise: 0` is the paper's "without perturbation", which is here without
    the official code's dropout on the logits too.
    """

    k: int = option(1, minimum=0)
    noise: float = option(1.0, minimum=0)

    def build(self, count: int, hidden: int, rng: torch.Generator) -> RouteModule:
        return TopRoute(LinearRouter(count, hidden, rng), self.k, self.noise)


@routes.register("top2")
@dataclass(frozen=True)
class Top2(Top):
    """The two best prompts."""

    k: int = option(2, minimum=0)


@routes.register("soft")
@dataclass(frozen=True)
class Soft(Top):
    """All prompts, without noise."""

    k: int = option(0, minimum=0)
    noise: float = option(0.0, minimum=0)


class TopRoute(RouteModule):
    router: Router

    def __init__(self, router: Router, k: int, noise: float) -> None:
        super().__init__(router)
        self.k, self.noise = k, noise

    def forward(
        self,
        prompts: Tensor,
        text: Tensor,
        rng: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        logits = self.router(text)
        if self.training and self.noise:
            drawn = _draw(noise, lambda: torch.randn(logits.shape, generator=rng), logits)
            logits = logits + self.noise * drawn * logits.detach()
        weights = logits.softmax(-1)
        if 0 < self.k < len(prompts):
            best = logits.topk(self.k, dim=-1).indices  # [B, k]
            weights = weights * torch.zeros_like(weights).scatter(-1, best, 1.0)
        return blend(weights, prompts)

    def level(self, count: int) -> float:
        """All K: probabilities sum to 1, so equal prompts act as one under any router, and their
        gradients differ by it.

        The k best: the router is scaled down so far that every probability is exactly 1/K, while
        its largest logits still send different inputs to different prompts.
        """
        if not 0 < self.k < count:
            return 1.0
        self.router.scale(1e-12)
        return count / self.k


@routes.register("gumbel")
@dataclass(frozen=True)
class Gumbel(Route):
    """One prompt at weight 1: in training drawn by Gumbel noise on the logits, straight-through; in
    evaluation the most probable (Choi 2023, Table 3).

    The official code adds the noise to probabilities, and in evaluation too; we follow Jang 2017.
    """

    temperature: float = option(1.0, exclusiveMinimum=0)

    def build(self, count: int, hidden: int, rng: torch.Generator) -> RouteModule:
        return GumbelRoute(LinearRouter(count, hidden, rng), self.temperature)


class GumbelRoute(RouteModule):
    router: Router

    def __init__(self, router: Router, temperature: float) -> None:
        super().__init__(router)
        self.temperature = temperature

    def forward(
        self,
        prompts: Tensor,
        text: Tensor,
        rng: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        logits = self.router(text)
        if self.training:
            logits = logits + _draw(
                noise, lambda: -torch.empty(logits.shape).exponential_(generator=rng).log(), logits
            )
        soft = (logits / self.temperature).softmax(-1)
        hard = nn.functional.one_hot(logits.argmax(-1), len(prompts)).to(soft.dtype)
        return blend(hard + (soft - soft.detach()), prompts)


@routes.register("stochastic")
@dataclass(frozen=True)
class Stochastic(Route):
    """A random prompt for each input in training, the mean of all in evaluation (AdaMix, Wang 2022;
    Choi 2023, Table 3)."""

    folds_to_one: ClassVar[bool] = True

    def build(self, count: int, hidden: int, rng: torch.Generator) -> RouteModule:
        return StochasticRoute()


class StochasticRoute(RouteModule):
    def forward(
        self,
        prompts: Tensor,
        text: Tensor,
        rng: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        if not self.training:
            return self.fold(prompts)[0].expand(len(text), -1, -1)
        if noise is None:
            noise = torch.randint(len(prompts), (len(text),), generator=rng)
        drawn = nn.functional.one_hot(to_device(noise, prompts.device), len(prompts))
        return blend(drawn.to(prompts.dtype), prompts)

    def fold(self, prompts: Tensor) -> Tensor:
        return prompts.mean(0, keepdim=True)


def blend(weights: Tensor, prompts: Tensor) -> Tensor:
    """[B, K] and [K, P, H] -> [B, P, H].

    A product, not a look-up: the gradient of a look-up is summed in no fixed order.
    """
    return torch.einsum("bk,kph->bph", weights, prompts)


def _draw(given: Tensor | None, sample: Callable[[], Tensor], like: Tensor) -> Tensor:
    """Noise that was passed in, or fresh noise; drawn on the CPU, so that a seed means the same on
    every device."""
    return to_device(sample() if given is None else given, like.device).to(like.dtype)
