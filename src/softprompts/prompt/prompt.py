"""A soft prompt is three independent choices: start x shape x route. The four papers are four
points in the space they span.

    Prompt Tuning (Lester 2021)            vocabulary  direct    single
    Residual Prompt Tuning (2023)          vocabulary  residual  single
    SMoP (Choi 2023)                       ...         direct    top1
    SPoT (Vu 2022)                         prompt      ...       ...

Shape letters: B batch, T text tokens, P prompt tokens, H hidden, K prompts in a mixture.
"""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..config import Choice, PromptConfig, heads, routes, shapes, starts
from ..errors import UserError, setting
from .head import LinearHead
from .route import RouteModule, SingleRoute
from .shape import ShapeModule
from .start import Material, Source


class Prompt(nn.Module):
    """Input embeddings [B, T, H] and their mask [B, T] in, prompt vectors [B, P, H] out.

    Parameters are held in units of the backbone's embedding scale: 16 for FLAN-T5, 1 for t5-tiny,
    1/8 for GPT-2. So a learning rate, a LayerNorm's gain and a router's logits mean the same on
    every backbone. The unit is a power of two, which makes it exact.
    """

    def __init__(
        self,
        table: Tensor,
        shape: ShapeModule,
        route: RouteModule,
        config: PromptConfig,
        unit: float = 1.0,
        head: LinearHead | None = None,
    ) -> None:
        super().__init__()
        self.table = nn.Parameter(table)  # [K, P, H]
        self.shape, self.route, self.head = shape, route, head
        self.config, self.unit = config, unit

    def forward(
        self,
        embeds: Tensor,
        mask: Tensor,
        rng: torch.Generator | None = None,
        noise: Tensor | None = None,
    ) -> Tensor:
        text = mean_embedding(embeds, mask) / self.unit if self.route.reads_text else mask
        vectors: Tensor = self.route(self.shape(self.table, rng), text, rng, noise)
        return vectors * self.unit

    @property
    def varies_by_row(self) -> bool:
        """Whether rows of one batch may get different vectors."""
        return not isinstance(self.route, SingleRoute)

    @property
    def reads_text(self) -> bool:
        """Whether its vectors depend on the text."""
        return self.route.reads_text and len(self.table) > 1

    @torch.no_grad()
    def router_probabilities(self, embeds: Tensor, mask: Tensor) -> Tensor:
        """The probability of each prompt in evaluation [B, K]; all of the first without a
        router."""
        if self.route.router is None:
            return torch.eye(len(self.table))[:1].expand(len(embeds), -1)
        logits: Tensor = self.route.router(mean_embedding(embeds, mask) / self.unit)
        return logits.softmax(-1)

    @torch.no_grad()
    def fold(self) -> "Prompt":
        """Plain vectors, plus any router, with the same outputs in evaluation: what is saved,
        shared and served."""
        training = self.training
        self.eval()
        vectors = self.route.fold(self.shape(self.table) * self.unit)
        self.train(training)
        config, router = dataclasses.replace(self.config, count=len(vectors)), self.route.router
        if len(vectors) == 1:
            config, router = dataclasses.replace(config, route=Choice("single")), None
        tensors = None if router is None else router.fold(self.unit)
        folded = folded_prompt(vectors, tensors, config, self.head_sizes())
        if self.head is not None and folded.head is not None:
            folded.head.load_state_dict(self.head.state_dict())
        return folded

    def head_sizes(self) -> tuple[int, int] | None:
        """Classes and features of the linear head, if there is one."""
        return None if self.head is None else (self.head.weight.shape[0], self.head.weight.shape[1])

    def source(self) -> Source:
        """The folded prompt as a source for a start."""
        folded = self.fold()
        return Source(folded.table.detach(), folded.router_tensors(), folded.config.route)

    def router_tensors(self) -> dict[str, Tensor]:
        """The tensors of a folded mixture's router, by name; empty without a router."""
        return {} if self.route.router is None else self.route.router.fold(1.0)

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Parameters by the choice they belong to; each choice has its own learning rate."""
        return {
            "table": [self.table],
            "shape": list(self.shape.parameters()),
            "route": list(self.route.parameters()),
            "head": list(self.head.parameters()) if self.head is not None else [],
        }


def mean_embedding(embeds: Tensor, mask: Tensor) -> Tensor:
    """The mean over a text's tokens, pads left out: [B, T, H] and [B, T] -> [B, H], in float32."""
    weight = mask.to(torch.float32).unsqueeze(-1)
    return (embeds.float() * weight).sum(1) / weight.sum(1).clamp(min=1)


def folded_prompt(
    vectors: Tensor,
    router: Mapping[str, Tensor] | None = None,
    like: PromptConfig | None = None,
    head: tuple[int, int] | None = None,
) -> Prompt:
    """A folded prompt from its vectors [K, P, H] and a mixture's router, with the route and place
    of the prompt `like`."""
    count, length, hidden = vectors.shape
    like = like or PromptConfig()
    config = PromptConfig(
        length,
        count,
        start=Choice("prompt", {"sources": []}),
        route=like.route,
        place=like.place,
        head=like.head,
        unit=1.0,
    )
    prompt = empty_prompt(config, hidden, head=head)
    prompt.table.data.copy_(vectors)
    if prompt.route.router is not None and router:
        prompt.route.router.unfold(router, 1.0)
    return prompt.eval()


def empty_prompt(
    config: PromptConfig,
    hidden: int,
    unit: float = 1.0,
    seed: int = 0,
    head: tuple[int, int] | None = None,
) -> Prompt:
    """A prompt whose table is not yet initialised.

    `unit` is the backbone's scale, used unless the config sets its own; `head` is the number of
    classes and features of a linear head.
    """
    shape_rng, route_rng, head_rng = (
        torch.Generator().manual_seed(number)
        for number in (3 * seed + 1, 3 * seed + 2, 2**31 + seed)
    )
    return Prompt(
        torch.zeros(config.count, config.length, hidden),
        shapes.make(config.shape).build(config.count, config.length, hidden, shape_rng),
        routes.make(config.route).build(config.count, hidden, route_rng),
        config,
        config.unit or unit,
        heads.make(config.head).build(*head, head_rng) if head else None,
    )


def build_prompt(config: PromptConfig, material: Material, seed: int, unit: float = 1.0) -> Prompt:
    """A prompt at step 0: the same seed gives the same prompt."""
    head = (material.classes or len(material.labels), material.features)
    prompt = empty_prompt(config, material.words.hidden, unit, seed, head)
    if config.length == 0:
        return prompt
    rng = torch.Generator().manual_seed(3 * seed)
    begin = starts.make(config.start).build(material, config.count, config.length, rng)
    table = begin.vectors.to(torch.float32) / prompt.unit
    if begin.source is not None:
        table = prompt.shape.reproduce(_route_like(begin.source, table, prompt))
    prompt.table.data.copy_(table)
    return prompt


def _route_like(source: Source, table: Tensor, prompt: Prompt) -> Tensor:
    """Prepare the route so that the table acts as the source did; returns the scaled table."""
    if len(source.vectors) == 1:
        return table * prompt.route.level(len(table))
    ours, theirs = prompt.config.route, source.route
    if not same_route(ours, theirs):
        raise UserError(
            f"The source is a mixture routed by {theirs.plain()} and cannot start one routed by "
            f"{ours.plain()}; use the same route, or pick one of its prompts with "
            f"{setting('prompt.start.index')}."
        )
    if source.router and prompt.route.router is not None:
        prompt.route.router.unfold(source.router, prompt.unit)
    return table


def same_route(one: Choice, other: Choice) -> bool:
    """Whether a mixture with one route can start a mixture with the other."""
    return (one.kind, one.options.get("k")) == (other.kind, other.options.get("k"))
