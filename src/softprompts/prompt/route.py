"""route: which prompt does this input get, when there are several?

SMoP (Choi 2023) sends every input to one of K short prompts: a linear router without bias reads the mean of the text's input embeddings.
A route takes the K prompts [K, P, H] and the text's mean embedding [B, H] and gives each row its own prompt [B, P, H]. Rows never
see each other (the official code sums the routed prompts over the batch). Noise exists in training only, comes from the run's
generator, and can be passed in.

`level` serves transfer, `fold` what is saved.
"""

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..backbone.device import sent
from ..errors import UserError


class Route(nn.Module, ABC):
    """K prompts [K, P, H] and each text's mean embedding [B, H] in, each row's prompt [B, P, H] out."""

    router: "Router | None"

    @abstractmethod
    def forward(
        self,
        prompts: Tensor,
        text: Tensor,
        rng: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor: ...

    @abstractmethod
    def level(self) -> float:
        """Ready the route so that, at step 0, K equal prompts act as one; the factor their vectors need for that."""

    def fold(self, prompts: Tensor) -> tuple[Tensor, Tensor | None]:
        """The prompts and the router's weight that evaluation needs; over one prompt a softmax is 1 and needs no router."""
        return prompts, None if self.router is None or len(prompts) == 1 else self.router.weight


class Single(Route):
    """One prompt for every input: Prompt Tuning."""

    def __init__(self, count: int, hidden: int, rng: torch.Generator) -> None:
        super().__init__()
        self.router = None

    def forward(
        self,
        prompts: Tensor,
        text: Tensor,
        rng: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        return prompts[0].expand(len(text), -1, -1)

    def level(self) -> float:
        return 1.0


class Top(Route):
    """The k best prompts (0: all), each times its probability, not re-normalised: sum of p_j P_j (Choi 2023, eq. 3 and 4; Table 3's top-2).

    In training the logits are perturbed to logits * (1 + noise * N(0, 1)), the scale of the noise held constant (eq. 5); `noise: 0` is
    the paper's "without perturbation", which is here without the official code's dropout on the logits too.
    """

    router: "Router"

    def __init__(
        self, count: int, hidden: int, rng: torch.Generator, *, k: int = 1, noise: float = 1.0
    ) -> None:
        super().__init__()
        if k < 0 or noise < 0:
            raise UserError(
                f"A route's k and noise must not be negative, but they are {k} and {noise}."
            )
        self.router, self.k, self.noise = Router(count, hidden, rng), min(k or count, count), noise

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
        if self.k < len(prompts):
            best = logits.topk(self.k, dim=-1).indices  # [B, k]
            weights = weights * torch.zeros_like(weights).scatter(-1, best, 1.0)
        return blend(weights, prompts)

    @torch.no_grad()
    def level(self) -> float:
        """All K: probabilities sum to 1, so equal prompts act as one under any router, and their gradients differ by it.

        The k best: a router so faint that every probability is exactly 1/K, while its largest logits still tell inputs and prompts apart.
        """
        count = len(self.router.weight)
        if self.k < count:
            self.router.weight.mul_(1e-12)
        return count / self.k


class Gumbel(Route):
    """One prompt at weight 1: in training drawn by Gumbel noise on the logits, straight-through; in evaluation the likeliest (Table 3).

    The official code adds the noise to probabilities, and in evaluation too; we follow Jang 2017.
    """

    router: "Router"

    def __init__(
        self, count: int, hidden: int, rng: torch.Generator, *, temperature: float = 1.0
    ) -> None:
        super().__init__()
        if temperature <= 0:
            raise UserError(f"A temperature must be positive, but it is {temperature}.")
        self.router, self.temperature = Router(count, hidden, rng), temperature

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

    def level(self) -> float:
        return 1.0


class Stochastic(Route):
    """A random prompt for each input in training, the mean of all in evaluation (AdaMix, Wang 2022; Choi 2023, Table 3)."""

    def __init__(self, count: int, hidden: int, rng: torch.Generator) -> None:
        super().__init__()
        self.router = None

    def forward(
        self,
        prompts: Tensor,
        text: Tensor,
        rng: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        if not self.training:
            return prompts.mean(0).expand(len(text), -1, -1)
        drawn = (
            noise if noise is not None else torch.randint(len(prompts), (len(text),), generator=rng)
        )
        return blend(
            nn.functional.one_hot(sent(drawn, prompts.device), len(prompts)).to(prompts.dtype),
            prompts,
        )

    def level(self) -> float:
        return 1.0

    def fold(self, prompts: Tensor) -> tuple[Tensor, Tensor | None]:
        return prompts.mean(0, keepdim=True), None


class Router(nn.Module):
    """Logits of K prompts: [B, H] -> [B, K], linear, without bias, orthogonal at first (official code)."""

    def __init__(self, count: int, hidden: int, rng: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.orthogonal_(torch.empty(count, hidden), generator=rng))

    def forward(self, text: Tensor) -> Tensor:
        return text @ self.weight.T


WITHOUT_ROUTER = ("single", "stochastic")
"""Routes that fold to one prompt."""
ROUTES: dict[str, Callable[..., Route]] = {
    "single": Single,
    "top1": Top,
    "top2": functools.partial(Top, k=2),
    "soft": functools.partial(Top, k=0, noise=0.0),
    "gumbel": Gumbel,
    "stochastic": Stochastic,
}


def blend(weights: Tensor, prompts: Tensor) -> Tensor:
    """[B, K] and [K, P, H] -> [B, P, H]. A product, not a look-up: the gradient of a look-up is summed in no fixed order."""
    return torch.einsum("bk,kph->bph", weights, prompts)


def _draw(given: Tensor | None, sample: Callable[[], Tensor], like: Tensor) -> Tensor:
    """Noise that was passed in, or fresh noise; drawn on the CPU, so that a seed means the same on every device."""
    return sent(sample() if given is None else given, like.device).to(like.dtype)
