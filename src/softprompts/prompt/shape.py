"""shape: how do trained parameters become prompt vectors?

Prompt Tuning trains the vectors themselves. Residual Prompt Tuning (Razdaibiedina 2023) passes them
through a shallow network with a skip connection, P-tuning through an encoder. Every shape maps K
prompts to K prompts, [K, P, H] -> [K, P, H], and folds away after training.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..backbone import to_device
from ..config import Settings, option, shapes
from ..config.prompt import MAX_TOKENS

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "gelu": nn.functional.gelu,
}
Activation = Literal["relu", "tanh", "sigmoid", "gelu"]


class ShapeModule(nn.Module, ABC):
    """Parameters to prompts, [K, P, H] -> [K, P, H]."""

    @abstractmethod
    def forward(self, table: Tensor, rng: torch.Generator | None = None) -> Tensor: ...

    @abstractmethod
    def reproduce(self, vectors: Tensor) -> Tensor:
        """For transfer: prepare the shape so that step 0 gives exactly these vectors; returns the
        table."""


@dataclass(frozen=True)
class Shape(Settings):
    """Base of all shapes."""

    @abstractmethod
    def build(self, count: int, length: int, hidden: int, rng: torch.Generator) -> ShapeModule:
        """The network for K = `count` prompts of P = `length` tokens of width H = `hidden`."""


@shapes.register("direct")
@dataclass(frozen=True)
class Direct(Shape):
    """Prompt Tuning (Lester 2021): the table is the prompt."""

    def build(self, count: int, length: int, hidden: int, rng: torch.Generator) -> ShapeModule:
        return Identity()


class Identity(ShapeModule):
    def forward(self, table: Tensor, rng: torch.Generator | None = None) -> Tensor:
        return table

    def reproduce(self, vectors: Tensor) -> Tensor:
        return vectors


@shapes.register("residual")
@dataclass(frozen=True)
class Residual(Shape):
    """Phi(P) = P + LayerNorm(W_up act(W_down P)), token by token (Razdaibiedina 2023 §3).

    One network for all tokens, or one per token (`shared: false`). `depth` passes through the same
    layers that many times, as the official code's MLP2 does. LayerNorm stands last inside the
    branch, dropout before it; both follow the official code.
    """

    bottleneck: int = option(800, minimum=1, maximum=MAX_TOKENS)
    activation: Activation = "relu"
    depth: int = option(1, minimum=1, maximum=MAX_TOKENS)
    layer_norm: bool = True
    dropout: float = option(0.0, minimum=0, exclusiveMaximum=1)
    shared: bool = True
    skip: bool = True

    def build(self, count: int, length: int, hidden: int, rng: torch.Generator) -> ShapeModule:
        return ResidualNetwork(self, count, length, hidden, rng)


class ResidualNetwork(ShapeModule):
    def __init__(
        self, options: Residual, count: int, length: int, hidden: int, rng: torch.Generator
    ) -> None:
        super().__init__()
        copies = 1 if options.shared else count * length
        self.down = TokenLinear(copies, hidden, options.bottleneck, rng)
        self.up = TokenLinear(copies, options.bottleneck, hidden, rng)
        norm = options.layer_norm
        self.gain = nn.Parameter(torch.ones(copies, hidden)) if norm else None
        self.shift = nn.Parameter(torch.zeros(copies, hidden)) if norm else None
        self.activation, self.depth = ACTIVATIONS[options.activation], options.depth
        self.dropout = options.dropout
        self.anchor = None if options.skip else Anchor(count, length, hidden)

    def branch(self, tokens: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """[K*P, H] -> [K*P, H]: the network without its skip connection."""
        for _ in range(self.depth):
            tokens = self.up(self.activation(self.down(tokens)))
            tokens = _dropout(tokens, self.dropout, rng if self.training else None)
            if self.gain is not None and self.shift is not None:
                tokens = (
                    nn.functional.layer_norm(tokens, tokens.shape[-1:]) * self.gain + self.shift
                )
        return tokens

    def forward(self, table: Tensor, rng: torch.Generator | None = None) -> Tensor:
        branch = self.branch(table.flatten(0, 1), rng).view_as(table)
        return table + branch if self.anchor is None else self.anchor(branch)

    @torch.no_grad()
    def reproduce(self, vectors: Tensor) -> Tensor:
        """With a skip connection: zero the branch's last layer, so that Phi is the identity."""
        if self.anchor is not None:
            return self.anchor.tie(vectors, self.branch(vectors.flatten(0, 1)).view_as(vectors))
        last = [self.gain, self.shift] if self.gain is not None else [self.up.weight, self.up.bias]
        for parameter in last:
            assert parameter is not None
            parameter.zero_()
        return vectors


@shapes.register("encoder")
@dataclass(frozen=True)
class Encoder(Shape):
    """P-tuning (Liu 2021): an MLP of three layers, or a two-layer bidirectional LSTM and an MLP of
    two, reads the table."""

    network: Literal["mlp", "lstm"] = "mlp"
    width: int = option(128, minimum=1, maximum=MAX_TOKENS)
    dropout: float = option(0.0, minimum=0, exclusiveMaximum=1)

    def build(self, count: int, length: int, hidden: int, rng: torch.Generator) -> ShapeModule:
        return EncoderNetwork(self, count, length, hidden, rng)


class EncoderNetwork(ShapeModule):
    def __init__(
        self, options: Encoder, count: int, length: int, hidden: int, rng: torch.Generator
    ) -> None:
        super().__init__()
        network, width = options.network, options.width
        self.dropout = options.dropout
        with _seeded(rng):
            self.lstm = (
                nn.LSTM(hidden, width, num_layers=2, bidirectional=True, batch_first=True)
                if network == "lstm"
                else None
            )
            layers: list[nn.Module] = (
                [nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, hidden)]
                if network == "lstm"
                else [
                    nn.Linear(hidden, width),
                    nn.ReLU(),
                    nn.Linear(width, width),
                    nn.ReLU(),
                    nn.Linear(width, hidden),
                ]
            )
            self.mlp = nn.Sequential(*layers)
        self.anchor = Anchor(count, length, hidden)

    def encode(self, table: Tensor, rng: torch.Generator | None = None) -> Tensor:
        tokens = table if self.lstm is None else self.lstm(table)[0]
        encoded: Tensor = self.mlp(_dropout(tokens, self.dropout, rng if self.training else None))
        return encoded

    def forward(self, table: Tensor, rng: torch.Generator | None = None) -> Tensor:
        encoded: Tensor = self.anchor(self.encode(table, rng))
        return encoded

    @torch.no_grad()
    def reproduce(self, vectors: Tensor) -> Tensor:
        return self.anchor.tie(vectors, self.encode(vectors))


class Anchor(nn.Module):
    """Ties a network without a skip connection to a source: output + (anchor - origin).

    Both are zero unless it starts from a source. With `origin` the network's first output and
    `anchor` the source, step 0 gives the source, and training moves it from there.
    """

    anchor: Tensor
    origin: Tensor

    def __init__(self, count: int, length: int, hidden: int) -> None:
        super().__init__()
        self.register_buffer("anchor", torch.zeros(count, length, hidden))
        self.register_buffer("origin", torch.zeros(count, length, hidden))

    def forward(self, output: Tensor) -> Tensor:
        return self.anchor + (output - self.origin)

    def tie(self, vectors: Tensor, output: Tensor) -> Tensor:
        self.anchor.copy_(vectors)
        self.origin.copy_(output)
        return vectors


class TokenLinear(nn.Module):
    """An affine map shared by all N tokens (one copy), or one for each (N copies):
    [N, in] -> [N, out]. Initialised as nn.Linear."""

    def __init__(self, copies: int, inputs: int, outputs: int, rng: torch.Generator) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(
            torch.empty(copies, outputs, inputs).uniform_(-bound, bound, generator=rng)
        )
        self.bias = nn.Parameter(
            torch.empty(copies, outputs).uniform_(-bound, bound, generator=rng)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        if len(self.weight) == 1:
            return nn.functional.linear(tokens, self.weight[0], self.bias[0])
        return torch.einsum("ni,noi->no", tokens, self.weight) + self.bias


def _dropout(tensor: Tensor, rate: float, rng: torch.Generator | None) -> Tensor:
    """Dropout whose mask comes from the run's own generator; none without a generator."""
    if not rate or rng is None:
        return tensor
    keep = torch.rand(tensor.shape, generator=rng) >= rate
    return tensor * to_device(keep, tensor.device) / (1 - rate)


@contextmanager
def _seeded(rng: torch.Generator) -> Iterator[None]:
    """Torch's own initialisers draw from the global generator: seed it, and restore it after."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=rng)))
        yield
