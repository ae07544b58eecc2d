"""A soft prompt is three independent choices: start x shape x route. The four papers are four points in the space they span.

    Prompt Tuning (Lester 2021)            vocabulary  direct    single
    Residual Prompt Tuning (2023)          vocabulary  residual  single
    SMoP (Choi 2023)                       ...         direct    top1
    SPoT (Vu 2022)                         prompt      ...       ...

Shape letters: B batch, T text tokens, P prompt tokens, H hidden, K prompts in a mixture.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..config.choice import Choice, checked, pick
from ..errors import UserError
from .head import HEADS, Linear
from .route import ROUTES, Route, Router
from .shape import MOST, SHAPES, Shape
from .start import STARTS, Material, Source

TABLES: dict[str, Mapping[str, Callable[..., Any]]] = {
    "start": STARTS,
    "shape": SHAPES,
    "route": ROUTES,
    "head": HEADS,
}


@dataclass(frozen=True)
class PromptConfig:
    """What a prompt is before it is trained."""

    length: int = 20
    """Prompt tokens P; of each prompt, where there are several."""

    count: int = 1
    """Prompts K of a mixture; 1 is a single prompt."""

    start: Choice = field(default_factory=lambda: Choice("vocabulary"))
    """Where its numbers come from: uniform, normal, vocabulary, labels, text, prompt."""

    shape: Choice = field(default_factory=lambda: Choice("direct"))
    """How parameters become vectors: direct, residual, encoder."""

    route: Choice = field(default_factory=lambda: Choice("single"))
    """Which prompt an input gets: single, top1, top2, soft, gumbel, stochastic."""

    place: Literal["prefix", "after-bos", "suffix"] = "prefix"
    """Where it stands: before the text (prefix), after the token that opens it (after-bos), after its last word (suffix)."""

    head: Choice = field(default_factory=lambda: Choice("auto"))
    """How an encoder-only model tells labels: words, linear, or auto (words where it has them)."""

    unit: float | None = None
    """The scale that prompt, network and router are trained at; none: the backbone's own (see `Prompt`). The papers' is 1."""

    def __post_init__(self) -> None:
        for what, table in TABLES.items():
            object.__setattr__(self, what, checked(what, table, getattr(self, what)))
        if self.length < 0 or self.count < 1:
            raise UserError(
                f"A prompt of length {self.length} and count {self.count} cannot be; take a length of 1 or more, a count of 1 or more."
            )
        if self.count * self.length > MOST:
            raise UserError(
                f"{self.count * self.length:,} prompt tokens are more than a model can read; take at most {MOST:,}."
            )
        if self.count > 1 and self.route.kind == "single":
            raise UserError(
                f"{self.count} prompts need a route that chooses among them; set --prompt.route to soft, top1, top2, gumbel or stochastic."
            )
        if self.unit is not None and not 1e-6 < self.unit < 1e6:
            raise UserError(
                f"The unit of a prompt is {self.unit}; it must lie between a millionth and a million."
            )


class Prompt(nn.Module):
    """Input embeddings [B, T, H] and their mask [B, T] in, prompt vectors [B, P, H] out.

    Parameters are held in units of the backbone's embedding scale: 16 for FLAN-T5, 1 for t5-tiny, 1/8 for GPT-2. So a learning rate, a
    LayerNorm's gain and a router's logits mean the same on every backbone. The unit is a power of two, which makes it exact.
    """

    def __init__(
        self,
        table: Tensor,
        shape: Shape,
        route: Route,
        config: PromptConfig,
        unit: float = 1.0,
        head: Linear | None = None,
    ) -> None:
        super().__init__()
        self.table = nn.Parameter(table)  # [K, P, H]
        self.shape = shape
        self.route = route
        self.head = head
        self.config = config
        self.unit = unit

    def forward(
        self,
        embeds: Tensor,
        mask: Tensor,
        rng: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        text = (
            mask if self.route.router is None else mean_embedding(embeds, mask) / self.unit
        )  # only a router reads it
        vectors: Tensor = self.route(self.shape(self.table, rng), text, rng, noise)
        return vectors * self.unit

    @torch.no_grad()
    def chosen(self, embeds: Tensor, mask: Tensor) -> Tensor:
        """The prompt each row is sent to in evaluation [B]."""
        if self.route.router is None:
            return torch.zeros(len(embeds), dtype=torch.long)
        logits: Tensor = self.route.router(mean_embedding(embeds, mask) / self.unit)
        return logits.argmax(-1)

    @torch.no_grad()
    def fold(self) -> "Prompt":
        """Plain vectors, and a router where there is one, with the same outputs in evaluation: what is saved, shared and served."""
        was, _ = self.training, self.eval()
        vectors, router = self.route.fold(self.shape(self.table) * self.unit)
        self.train(was)
        config = dataclasses.replace(
            self.config,
            count=len(vectors),
            route=Choice("single") if router is None else self.config.route,
        )
        folded = plain(
            vectors, None if router is None else router / self.unit, config, self.head_sizes()
        )
        if self.head is not None and folded.head is not None:
            folded.head.load_state_dict(self.head.state_dict())
        return folded

    def head_sizes(self) -> tuple[int, int] | None:
        """Classes and features of the linear head, where there is one."""
        return None if self.head is None else (self.head.weight.shape[0], self.head.weight.shape[1])

    def source(self) -> Source:
        """The folded prompt as a start can take it."""
        folded = self.fold()
        router = router_of(folded.route).weight.detach() if folded.config.count > 1 else None
        return Source(folded.table.detach(), router, folded.config.route)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by the choice they belong to, for their own learning rates."""
        return {
            "table": [self.table],
            "shape": list(self.shape.parameters()),
            "route": list(self.route.parameters()),
            "head": list(self.head.parameters()) if self.head is not None else [],
        }


def mean_embedding(embeds: Tensor, mask: Tensor) -> Tensor:
    """The mean over a text's own positions, pads left out: [B, T, H] and [B, T] -> [B, H], in float32."""
    weight = mask.to(torch.float32).unsqueeze(-1)
    return (embeds.float() * weight).sum(1) / weight.sum(1).clamp(min=1)


def plain(
    vectors: Tensor,
    router: Tensor | None = None,
    like: PromptConfig | None = None,
    head: tuple[int, int] | None = None,
) -> Prompt:
    """A folded prompt from its vectors [K, P, H] and a mixture's router [K, H], routed and placed `like` another."""
    count, length, hidden = vectors.shape
    like = like or PromptConfig()
    start = Choice("prompt", {"sources": []})
    config = PromptConfig(
        length, count, start, Choice("direct"), like.route, like.place, like.head, unit=1.0
    )
    prompt = blank(config, hidden, head=head)
    prompt.table.data.copy_(vectors)
    if router is not None:
        router_of(prompt.route).weight.data.copy_(router)
    return prompt.eval()


def blank(
    config: PromptConfig,
    hidden: int,
    unit: float = 1.0,
    seed: int = 0,
    head: tuple[int, int] | None = None,
) -> Prompt:
    """A prompt whose table is still to be filled. `unit` is the backbone's scale, used unless the config sets its own; `head` is the
    number of classes and features of a linear head."""
    shape_rng, route_rng = (torch.Generator().manual_seed(3 * seed + part) for part in (1, 2))
    shape = pick("shape", SHAPES, config.shape)(config.count, config.length, hidden, shape_rng)
    route = pick("route", ROUTES, config.route)(config.count, hidden, route_rng)
    answers = (
        pick("head", HEADS, config.head)(*head, torch.Generator().manual_seed(2**31 + seed))
        if config.head.kind == "linear" and head
        else None
    )
    return Prompt(
        torch.zeros(config.count, config.length, hidden),
        shape,
        route,
        config,
        config.unit or unit,
        answers,
    )


def build(config: PromptConfig, material: Material, seed: int, unit: float = 1.0) -> Prompt:
    """A prompt at step 0: the same seed gives the same prompt."""
    prompt = blank(
        config,
        material.words.hidden,
        unit,
        seed,
        (material.classes or len(material.labels), material.features),
    )
    start = pick("start", STARTS, config.start)()
    if config.length == 0:
        return prompt
    begin = start(material, config.count, config.length, torch.Generator().manual_seed(3 * seed))
    table = begin.vectors.to(torch.float32) / prompt.unit
    if begin.source is not None:
        table = prompt.shape.reproduce(_routed_as(begin.source, table, prompt))
    prompt.table.data.copy_(table)
    return prompt


def _routed_as(source: Source, table: Tensor, prompt: Prompt) -> Tensor:
    """Ready the route so that `table` acts as the source did; the table itself may need a factor."""
    if len(source.vectors) == 1:
        return table * prompt.route.level()
    ours, theirs = prompt.config.route, source.route
    if (ours.kind, ours.options.get("k")) != (theirs.kind, theirs.options.get("k")):
        raise UserError(
            f"The source is a mixture routed by {theirs.plain()} and cannot start one routed by {ours.plain()}; "
            f"give it the same route, or pick one of its prompts with --prompt.start.index."
        )
    if source.router is not None:
        router_of(prompt.route).weight.data.copy_(source.router * prompt.unit)
    return table


def router_of(route: Route) -> Router:
    """The router of a route that has one."""
    assert route.router is not None
    return route.router
