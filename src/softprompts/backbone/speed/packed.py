"""T5 without waste: rows laid end to end, so that no pad is computed; no keys and values of the encoder for a target of a few tokens.

The layers are transformers' own. What is ours: where rows stand (`layout.py`), the attention function that keeps them apart (registered
under `NAME`, called by the model's own attention), and the decoder's attention to the encoder. On a GPU layers are compiled once for all
sizes, and a step of up to `GRAPHED` numbers is recorded once for its bucket of sizes and replayed (`recorded.py`).

Shape letters: N tokens of all rows, L the longest row, G rows of a group, D of a head, M distances; the others as in `backbone.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from transformers import AttentionInterface

from ..rows import Losses, Text
from . import kernels
from .layout import FEW, Layout, gathered, lay, lay_wide, rounded, spread
from .recorded import Recorded

NAME = "softprompts_packed"
KINDS = frozenset({"t5", "mt5"})
"""The types of model whose layers are known to fit."""
LEAST = -1e30
"""What is added to a score that must not count; finite, so that nothing minus itself is no number."""
GRAPHED = 2**27
"""Tokens times width of a step, up to which launching its kernels, one by one, could take longer than running them."""
RUINED = 1e15
"""A prompt with larger numbers is beyond saving; in its neighbours' attention it would do harm."""


class Sight(NamedTuple):
    """What the attention of one pass needs: the bias of each distance [heads, 2 M + 1], and who sees whom."""

    table: Tensor
    layout: Layout | None = None
    biases: Sequence[Tensor] = ()
    """By groups of rows: bias and mask of each [G, heads, L, L]."""
    tiles: Tensor | None = None
    """By a kernel of ours."""


class Packed:
    """The frozen T5 of a backbone, and the gradient of its losses with respect to prompts."""

    def __init__(self, model: Any, start: Callable[[Tensor], Tensor]) -> None:
        self.model, self.shifted = model, start
        self.encoder, self.decoder = model.get_encoder(), model.get_decoder()
        self.recorded = Recorded()
        self.fast = False
        """Whether layers are compiled and steps recorded: on a GPU, when many steps are to come."""

    @staticmethod
    def fits(model: Any) -> bool:
        return model.config.model_type in KINDS

    @cached_property
    def table(self) -> Tensor:
        """The encoder's bias for each distance from -M to M, beyond which it stays the same: [heads, 2 M + 1]."""
        attention = self.encoder.block[0].layer[0].SelfAttention
        most = attention.relative_attention_max_distance
        with torch.no_grad():
            bias = attention.compute_bias(most + 1, most + 1)[0]
        return torch.cat([bias[:, 1:, 0].flip(1), bias[:, 0]], dim=1).contiguous()

    def gradients(
        self, vectors: Tensor, text: Text, targets: Tensor, kept: Tensor, weight: Tensor, z: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Each row's summed negative log-likelihood [B], and the gradient of sum(weight * nll + z * squares) by the vectors [B, P, H]."""
        if self.fast:
            self.expect(text.mask.shape[1] + vectors.shape[1])
            targets, kept, weight, z = self._few_shapes(targets, kept, weight, z)
        layout = (
            lay_wide(text, vectors.shape[1], self.longest, len(targets))
            if self.fast
            else lay(text, vectors.shape[1])
        )
        good = (vectors.abs() < RUINED).all(2).all(1)
        vectors = torch.where(good[:, None, None], vectors, 0)
        rows = layout.rows
        flat = torch.cat([vectors.to(text.embeds).flatten(0, 1), text.embeds.flatten(0, 1)])
        asked = [flat[layout.order][None], targets[rows], kept[rows], weight[rows], z[rows]]
        run = self._replayed if self.fast and asked[0].numel() <= GRAPHED else self._run
        nll, gradient = run(layout, *asked)
        found = torch.empty_like(nll).index_copy_(0, rows, nll)[: len(vectors)]
        by_vector = gradient[0][layout.back] * layout.own.unsqueeze(-1)
        return torch.where(good, found, torch.nan), by_vector.to(vectors.dtype)

    def _few_shapes(self, targets: Tensor, kept: Tensor, *by_row: Tensor) -> list[Tensor]:
        """Rows and columns that count for nothing are added: steps are recorded for each number of them, and compilers treat 1 apart."""
        batch, columns = targets.shape
        down, across = max(2, rounded(batch, FEW)) - batch, max(2, rounded(columns, 2)) - columns
        return [
            *(nn.functional.pad(part, (0, across, 0, down)) for part in (targets, kept)),
            *(nn.functional.pad(p, (0, down)) for p in by_row),
        ]

    def _run(
        self,
        layout: Layout,
        joined: Tensor,
        targets: Tensor,
        kept: Tensor,
        weight: Tensor,
        z: Tensor,
    ) -> tuple[Tensor, Tensor]:
        with torch.enable_grad(), self._apart():
            joined = joined.detach().requires_grad_()
            losses = self.losses(joined, layout, targets, kept)
            (gradient,) = torch.autograd.grad((losses.nll * weight + losses.z * z).sum(), joined)
        return losses.nll.detach(), gradient

    def losses(self, joined: Tensor, layout: Layout, targets: Tensor, kept: Tensor) -> Losses:
        """The losses of rows in the layout's order: joined [1, N, H], targets and kept [B, n]."""
        states = self._decode(self.encode(joined, layout)[0], layout, self.shifted(targets))
        if getattr(self.model.config, "scale_decoder_outputs", False):
            states = states * self.model.model_dim**-0.5
        return Losses.of(self.model.lm_head(states), targets, kept)

    def encode(self, joined: Tensor, layout: Layout) -> Tensor:
        """[1, N, H] -> [1, N, H], every row as if it were alone."""
        sight = self._sight(layout, joined)
        for block in self.encoder.block:
            joined = self._through(0, block, joined, sight)
        states: Tensor = self.encoder.final_layer_norm(joined)
        return states

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Inside, the encoder's attention is ours; so are its norms, where no compiler fuses them."""
        configs, norms = (
            (self.encoder.config, self.decoder.config),
            [] if self.fast else self._norms,
        )
        were = [config._attn_implementation for config in configs]
        configs[0]._attn_implementation, configs[1]._attn_implementation = (
            NAME,
            "eager",
        )  # for a few tokens a fused one is no faster
        for norm in norms:
            norm.forward = partial(normed, norm)
        try:
            yield
        finally:
            for config, was in zip(configs, were, strict=True):
                config._attn_implementation = was
            for norm in norms:
                del norm.forward

    @cached_property
    def _norms(self) -> list[Any]:
        return [module for module in self.model.modules() if hasattr(module, "variance_epsilon")]

    @cached_property
    def _layers(self) -> tuple[Any, Any]:
        """One layer of the encoder and one of the decoder; compiled, for any number of tokens and rows."""
        return torch.compile(_read), torch.compile(_write)

    def _wide(self, longest: int) -> Tensor:
        """The bias of every distance in a row of up to `longest`."""
        if self._widened is None or self._widened[0] != longest:
            self._widened = longest, kernels.widen(self.table, longest)
        return self._widened[1]

    _widened: tuple[int, Tensor] | None = None

    def _sight(self, layout: Layout, joined: Tensor) -> Sight:
        if self.fast:
            torch._dynamo.maybe_mark_dynamic(layout.tiles, 0)
            return Sight(self._wide(self.longest), tiles=layout.tiles)
        table = (
            self.table.float() if joined.device.type == "cpu" else self.table.to(joined.dtype)
        )  # a CPU's attention is slow in bf16
        middle = table.shape[1] // 2
        biases = []
        for (_, width), mask in zip(layout.groups, layout.masks, strict=True):
            places = torch.arange(width, device=table.device)
            distance = (places[None] - places[:, None]).clamp(-middle, middle) + middle
            hidden = torch.zeros(mask.shape, dtype=table.dtype, device=table.device).masked_fill_(
                ~mask, LEAST
            )
            biases.append(table[:, distance] + hidden[:, None, None])
        return Sight(table, layout, biases)

    def _through(self, which: int, block: nn.Module, states: Tensor, *rest: Any) -> Tensor:
        if self.fast:
            torch._dynamo.maybe_mark_dynamic(states, (0, 1) if which else 1)
        made: Tensor = (self._layers if self.fast else (_read, _write))[which](block, states, *rest)
        return made

    def _decode(self, states: Tensor, layout: Layout, ids: Tensor) -> Tensor:
        """What the decoder makes of `ids` [B, n] after the encoder's `states` [N, H]: [B, n, H]."""
        groups = spread(states, layout)
        shut = [
            torch.zeros(mask.shape, dtype=states.dtype, device=mask.device).masked_fill_(
                ~mask, LEAST
            )
            for mask in layout.masks
        ]
        if self.fast:
            for tensor in (*groups, *shut):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        hidden, count = self.decoder.embed_tokens(ids), ids.shape[1]
        bias = self.decoder.block[0].layer[0].SelfAttention.compute_bias(count, count)
        later = torch.ones(count, count, dtype=torch.bool, device=ids.device).triu(1)
        bias = bias.masked_fill(later, LEAST)
        if self.fast:
            torch._dynamo.maybe_mark_dynamic(bias, (2, 3))
            hidden.requires_grad_(
                torch.is_grad_enabled()
            )  # the first layer is compiled as the others are
        for block in self.decoder.block:
            hidden = self._through(1, block, hidden, bias, groups, shut)
        told: Tensor = self.decoder.final_layer_norm(hidden)
        return told

    def effort(self) -> dict[str, int]:
        """Layers that were compiled in this process, for however many sizes, and steps that were recorded."""
        return {"compiled": counters["stats"]["unique_graphs"], "recorded": self.recorded.made}

    def forget(self) -> None:
        """Recorded steps, and the memory they share."""
        self.recorded.forget()

    longest = 0
    """The columns that recorded steps have room for."""

    def expect(self, longest: int) -> None:
        """Make room for rows of so many tokens."""
        self.longest = max(self.longest, -(-longest // 64) * 64)

    def _replayed(self, layout: Layout, *asked: Tensor) -> tuple[Tensor, Tensor]:
        """The same by replaying a step that was recorded for these sizes."""
        given = [*asked, layout.padded, layout.inverse, *layout.masks, layout.tiles]
        return self.recorded(
            lambda *held: self._run(_told(layout, held[len(asked) :]), *held[: len(asked)]), given
        )


def _told(layout: Layout, held: Sequence[Tensor]) -> Layout:
    """A layout of one group with tensors that stay where they are."""
    padded, inverse, mask, tiles = held
    return layout._replace(padded=padded, inverse=inverse, masks=[mask], tiles=tiles)


def _read(block: nn.Module, states: Tensor, sight: Sight) -> Tensor:
    """One layer of the encoder; the bias is given, so that the layer makes none of its own."""
    made: Tensor = block(states, None, sight.table, sight=sight)[0]
    return made


def _write(
    block: Any, hidden: Tensor, bias: Tensor, groups: Sequence[Tensor], shut: Sequence[Tensor]
) -> Tensor:
    """One layer of the decoder: its own attention, ours to the encoder's states, its feed-forward part."""
    hidden, _, _ = block.layer[0](hidden, position_bias=bias)
    cross = block.layer[1]
    asked = torch.split(cross.layer_norm(hidden), [len(states) for states in groups])
    found = [
        attend_across(cross.EncDecAttention, *each)
        for each in zip(asked, groups, shut, strict=True)
    ]
    states: Tensor = block.layer[-1](hidden + (torch.cat(found) if len(found) > 1 else found[0]))
    return states


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sight: Sight,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The registered attention function: rows laid end to end see themselves alone. [1, heads, N, D] -> [1, N, heads, D]."""
    if sight.tiles is not None:
        return kernels.ragged_attention(query, key, value, sight.table, sight.tiles, scaling), None
    assert sight.layout is not None
    layout = sight.layout
    each = [spread(part[0].transpose(0, 1), layout) for part in (query, key, value)]
    seen = []
    for *parts, bias in zip(*each, sight.biases, strict=True):
        asked, keys, values = (part.to(bias.dtype).transpose(1, 2) for part in parts)
        found = nn.functional.scaled_dot_product_attention(
            asked, keys, values, attn_mask=bias, scale=scaling
        )
        seen.append(found.to(query.dtype).transpose(1, 2))
    return gathered(seen, layout)[None], None


AttentionInterface.register(NAME, attend)


def attend_across(attention: Any, hidden: Tensor, states: Tensor, shut: Tensor) -> Tensor:
    """The decoder's attention to the encoder's states: hidden [G, n, H], states [G, L, H], shut [G, L] (added) -> [G, n, H].

    For a few target tokens keys and values are not made: (q W_k) x is q (W_k x), and the weights' sum of (W_v x) is W_v of their sum.
    """
    heads, size = attention.n_heads, attention.key_value_proj_dim
    batch, count, _ = hidden.shape
    query = attention.q(hidden).view(batch, count, heads, size)
    if count * 4 > size:
        key, value = (
            part(states).view(batch, -1, heads, size).transpose(1, 2)
            for part in (attention.k, attention.v)
        )
        fused = nn.functional.scaled_dot_product_attention
        found = fused(
            query.transpose(1, 2),
            key,
            value,
            attn_mask=shut[:, None, None],
            scale=attention.scaling,
        ).transpose(1, 2)
    else:
        by_key, by_value = (
            part.weight.view(heads, size, -1) for part in (attention.k, attention.v)
        )
        asked = torch.einsum("gnhd,hdx->gnhx", query * attention.scaling, by_key).flatten(1, 2)
        mixed: Tensor = _Mix.apply(asked, states, shut)  # type: ignore[no-untyped-call]
        found = torch.einsum("gnhx,hdx->gnhd", mixed.view(batch, count, heads, -1), by_value)
    across: Tensor = attention.o(found.reshape(batch, count, heads * size))
    return across


class _Mix(torch.autograd.Function):
    """softmax(asked states^T + shut) states: [G, Q, H] -> [G, Q, H]; the states' gradient in one product instead of two and a sum."""

    @staticmethod
    def forward(ctx: Any, asked: Tensor, states: Tensor, shut: Tensor) -> Tensor:
        weights = (
            (asked @ states.transpose(1, 2) + shut[:, None]).float().softmax(-1).to(states.dtype)
        )
        ctx.save_for_backward(asked, states, weights)
        mixed: Tensor = weights @ states
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        asked, states, weights = ctx.saved_tensors
        by_weight, whole = (gradient[0] @ states.transpose(1, 2)).float(), weights.float()
        by_score = (whole * (by_weight - (whole * by_weight).sum(-1, keepdim=True))).to(
            states.dtype
        )
        by_states = torch.cat([by_score, weights], dim=1).transpose(1, 2) @ torch.cat(
            [asked, gradient[0]], dim=1
        )
        by_asked: Tensor = by_score @ states
        return by_asked, by_states, None


def normed(norm: Any, states: Tensor) -> Tensor:
    """T5's norm in few passes over memory; its frozen weight needs no gradient."""
    made: Tensor = _Norm.apply(states, norm.weight, norm.variance_epsilon)  # type: ignore[no-untyped-call]
    return made


class _Norm(torch.autograd.Function):
    """x / rms(x) * weight, computed in float32."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        whole = states.float()
        scale = (
            torch.linalg.vecdot(whole, whole)
            .div_(states.shape[-1])
            .add_(epsilon)
            .rsqrt_()
            .unsqueeze(-1)
        )
        ctx.save_for_backward(states, scale, weight)
        made: Tensor = (whole * scale).to(weight.dtype).mul_(weight)
        return made

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        states, scale, weight = ctx.saved_tensors
        whole, by_norm = states.float(), (gradient[0] * weight).float()
        along = torch.linalg.vecdot(by_norm, whole).unsqueeze(-1) * scale**3 / states.shape[-1]
        return by_norm.mul_(scale).addcmul_(whole, along, value=-1).to(states.dtype), None, None
