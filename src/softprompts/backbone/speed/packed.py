"""T5 on packed rows: no pads, and no encoder keys and values for short targets.

The layers are transformers' own. This file adds the attention function that keeps packed rows apart
(registered under `ATTENTION`, called by the model's own attention modules), and the decoder's
cross-attention; `layout.py` packs rows. On a GPU, layers are compiled once for all sizes, and steps
of up to `MAX_RECORDED` numbers are recorded once per bucket of sizes and replayed (`graphs.py`).

Shape letters: N packed positions, L the longest row, G rows of a group, D numbers of a head, M
distances; the others as in `backbone.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ..batch import Losses, Text
from ..modules import replaced_attention, replaced_forwards
from . import cpu, kernels
from .layout import FEW_BUCKETS, MASKED, Layout, added, bucketed_layout, pack, round_up, unpack
from .row_layout import grouped_layout
from .step import DIVERGED, Packed

ATTENTION = "softprompts_packed"
MODEL_TYPES = frozenset({"t5", "mt5"})  # whose layers are known to fit
MAX_RECORDED = 2**27
"""Tokens times width of a step, up to which launching its kernels can take longer than they run."""


class PackedBias(NamedTuple):
    """What one pass's attention needs: the bias of each distance [heads, 2 M + 1], and the rows."""

    table: Tensor
    layout: Layout | None = None
    biases: Sequence[Tensor] = ()  # for padded groups of rows: bias and mask [G, heads, L, L]
    tiles: Tensor | None = None  # for our kernels
    cells: cpu.Cells | None = None  # for our attention on a CPU


class PackedT5(Packed):
    """A backbone's frozen T5, and the gradient of its losses with respect to prompts."""

    def __init__(self, model: Any, shifted: Callable[[Tensor], Tensor]) -> None:
        self.model, self.shifted = model, shifted
        self.encoder, self.decoder = model.get_encoder(), model.get_decoder()
        super().__init__()
        self.max_columns = 0  # of recorded steps

    @cached_property
    def table(self) -> Tensor:
        """The encoder's bias for each distance from -M to M, beyond which it is constant:
        [heads, 2 M + 1]."""
        attention = self.encoder.block[0].layer[0].SelfAttention
        most = attention.relative_attention_max_distance
        with torch.no_grad():
            bias = attention.compute_bias(most + 1, most + 1)[0]
        return torch.cat([bias[:, 1:, 0].flip(1), bias[:, 0]], dim=1).contiguous()

    def gradients(
        self,
        vectors: Tensor,
        text: Text,
        targets: Tensor,
        target_mask: Tensor,
        weight: Tensor,
        z: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Each row's summed negative log-likelihood [B], and the gradient of
        sum(weight * nll + z * squares) with respect to the vectors [B, P, H]."""
        length = vectors.shape[1]
        if self.recorded:
            self.reserve(text.mask.shape[1] + length)
            targets, target_mask, weight, z = self._bucketed(targets, target_mask, weight, z)
            layout = bucketed_layout(text, length, self.max_columns, len(targets))
        else:
            layout = grouped_layout(text, length)
        sane = (vectors.abs() < DIVERGED).all(2).all(1)
        vectors = torch.where(sane[:, None, None], vectors, 0)
        rows = layout.rows
        flat = torch.cat([vectors.to(text.embeds).flatten(0, 1), text.embeds.flatten(0, 1)])
        inputs = [
            flat[layout.source][None],
            targets[rows],
            target_mask[rows],
            weight[rows],
            z[rows],
        ]
        recorded = self.recorded and inputs[0].numel() <= MAX_RECORDED
        nll, gradient = (self._replay if recorded else self._run)(layout, *inputs)
        by_row = torch.empty_like(nll).index_copy_(0, rows, nll)[: len(vectors)]
        by_vector = gradient[0][layout.prompt_positions] * layout.prompt_mask.unsqueeze(-1)
        return torch.where(sane, by_row, torch.nan), by_vector.to(vectors.dtype)

    def _bucketed(self, targets: Tensor, target_mask: Tensor, *by_row: Tensor) -> list[Tensor]:
        """Adds rows and columns of zero weight, because steps are recorded for each number of them,
        and compilers treat 1 specially."""
        batch, columns = targets.shape
        more_rows = max(2, round_up(batch, FEW_BUCKETS)) - batch
        more_columns = max(2, round_up(columns, 2)) - columns
        return [
            *(
                nn.functional.pad(part, (0, more_columns, 0, more_rows))
                for part in (targets, target_mask)
            ),
            *(nn.functional.pad(part, (0, more_rows)) for part in by_row),
        ]

    def _run(
        self,
        layout: Layout,
        embeds: Tensor,
        targets: Tensor,
        target_mask: Tensor,
        weight: Tensor,
        z: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Losses, in the layout's order of rows, and the gradient of the embeddings [1, N, H]."""
        with torch.enable_grad(), self._packed_attention():
            embeds = embeds.detach().requires_grad_()
            states = self._decode(self.encode(embeds, layout)[0], layout, self.shifted(targets))
            if getattr(self.model.config, "scale_decoder_outputs", False):
                states = states * self.model.model_dim**-0.5
            losses = Losses.from_logits(self.model.lm_head(states), targets, target_mask)
            (gradient,) = torch.autograd.grad((losses.nll * weight + losses.z * z).sum(), embeds)
        return losses.nll.detach(), gradient

    def encode(self, embeds: Tensor, layout: Layout) -> Tensor:
        """[1, N, H] -> [1, N, H], every row as if alone."""
        bias = self._bias(layout, embeds)
        for block in self.encoder.block:
            embeds = self._layer(0, block, embeds, bias)
        return cast(Tensor, self.encoder.final_layer_norm(embeds))

    @contextmanager
    def _packed_attention(self) -> Iterator[None]:
        """Inside, the encoder's attention is ours; so are norms, unless layers are compiled."""
        implementations = [
            (self.encoder.config, ATTENTION),
            (self.decoder.config, "eager"),  # as fast as a fused one for a few tokens
        ]
        forwards = [] if self.compiled else self._norms
        with replaced_attention(implementations), replaced_forwards(forwards):
            yield

    @cached_property
    def _norms(self) -> list[tuple[Any, Callable[[Tensor], Tensor]]]:
        """The norms, and the faster functions that are called in their place."""
        norms = [part for part in self.model.modules() if hasattr(part, "variance_epsilon")]
        return [(norm, partial(rms_norm, norm)) for norm in norms]

    @cached_property
    def _layers(self) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
        """One layer of the encoder and one of the decoder, compiled for any number of tokens and
        rows."""
        return torch.compile(_encoder_layer), torch.compile(_decoder_layer)

    _extended: tuple[int, Tensor] | None = None
    """The largest distance so far, and the bias of every distance up to it."""

    def _bias(self, layout: Layout, embeds: Tensor) -> PackedBias:
        if self.recorded:
            if self.compiled:
                torch._dynamo.maybe_mark_dynamic(layout.tiles, 0)
            if self._extended is None or self._extended[0] != self.max_columns:
                table = kernels.extend_table(self.table, self.max_columns)
                self._extended = self.max_columns, table
            return PackedBias(self._extended[1], tiles=layout.tiles)
        on_cpu = embeds.device.type == "cpu"  # where attention in bf16 is slow
        table = self.table.float() if on_cpu else self.table.to(embeds.dtype)
        middle = table.shape[1] // 2
        biases = []
        for (_, width), mask in zip(layout.groups, layout.masks, strict=True):
            column = torch.arange(width, device=table.device)
            distance = (column[None] - column[:, None]).clamp(-middle, middle) + middle
            biases.append(table[:, distance] + added(mask, table.dtype)[:, None, None])
        ours = on_cpu and embeds.dtype == torch.float32
        cells = cpu.attention_cells(layout, len(table)) if ours else None
        return PackedBias(table, layout, biases, cells=cells)

    def _layer(self, which: int, block: nn.Module, states: Tensor, *rest: Any) -> Tensor:
        if self.compiled:
            torch._dynamo.maybe_mark_dynamic(states, (0, 1) if which else 1)
        layers = self._layers if self.compiled else (_encoder_layer, _decoder_layer)
        return layers[which](block, states, *rest)

    def _decode(self, states: Tensor, layout: Layout, ids: Tensor) -> Tensor:
        """The decoder's states for `ids` [B, n] after the encoder's `states` [N, H]: [B, n, H]."""
        groups = unpack(states, layout)
        hidden_columns = [added(mask, states.dtype) for mask in layout.masks]
        hidden, count = self.decoder.embed_tokens(ids), ids.shape[1]
        bias = self.decoder.block[0].layer[0].SelfAttention.compute_bias(count, count)
        later = torch.ones(count, count, dtype=torch.bool, device=ids.device).triu(1)
        bias = bias.masked_fill(later, MASKED)
        if self.compiled:
            for tensor in (*groups, *hidden_columns):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
            torch._dynamo.maybe_mark_dynamic(bias, (2, 3))
            # so that the first layer is compiled as the others are
            hidden.requires_grad_(torch.is_grad_enabled())
        for block in self.decoder.block:
            hidden = self._layer(1, block, hidden, bias, groups, hidden_columns)
        return cast(Tensor, self.decoder.final_layer_norm(hidden))

    def reserve(self, length: int) -> None:
        """Make recorded steps wide enough for rows of `length` tokens."""
        self.max_columns = max(self.max_columns, -(-length // 64) * 64)

    def _replay(self, layout: Layout, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """`_run` by replaying the step recorded for these sizes."""

        def step(*tensors: Tensor) -> tuple[Tensor, Tensor]:
            padded, inverse, mask, tiles = tensors[len(inputs) :]
            static = layout._replace(padded=padded, inverse=inverse, masks=[mask], tiles=tiles)
            return self._run(static, *tensors[: len(inputs)])

        nll, gradient = self.graphs(
            step, [*inputs, layout.padded, layout.inverse, *layout.masks, layout.tiles]
        )
        return nll, gradient


def _encoder_layer(
    block: Callable[..., tuple[Tensor, ...]], states: Tensor, bias: PackedBias
) -> Tensor:
    """One layer of the encoder; given a bias, it computes none of its own."""
    return block(states, None, bias.table, packed_bias=bias)[0]


def _decoder_layer(
    block: Any,
    hidden: Tensor,
    bias: Tensor,
    groups: Sequence[Tensor],
    hidden_columns: Sequence[Tensor],
) -> Tensor:
    """One layer of the decoder: its own self-attention and feed-forward part, our
    cross-attention."""
    hidden, _, _ = block.layer[0](hidden, position_bias=bias)
    cross = block.layer[1]
    queries = torch.split(cross.layer_norm(hidden), [len(states) for states in groups])
    attended = [
        cross_attention(cross.EncDecAttention, *group)
        for group in zip(queries, groups, hidden_columns, strict=True)
    ]
    across = torch.cat(attended) if len(attended) > 1 else attended[0]
    return block.layer[-1](hidden + across)  # type: ignore[no-any-return]


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    packed_bias: PackedBias,
    scaling: float,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The registered attention function: each packed row attends to itself alone.
    [1, heads, N, D] -> [1, N, heads, D]."""
    tiles, table = packed_bias.tiles, packed_bias.table
    if tiles is not None:
        return kernels.ragged_attention(query, key, value, (tiles, tiles), scaling, table), None
    assert packed_bias.layout is not None
    layout, biases = packed_bias.layout, packed_bias.biases
    packed = [part[0].transpose(0, 1) for part in (query, key, value)]
    if packed_bias.cells is not None:
        return cpu.attention(packed, packed_bias.cells, biases, scaling)[None], None
    unpacked = [unpack(part, layout) for part in packed]
    attended = []
    for *parts, bias in zip(*unpacked, biases, strict=True):
        queries, keys, values = (part.to(bias.dtype).transpose(1, 2) for part in parts)
        output = nn.functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=bias, scale=scaling
        )
        attended.append(output.to(query.dtype).transpose(1, 2))
    return pack(attended, layout)[None], None


AttentionInterface.register(ATTENTION, packed_attention)


def cross_attention(
    attention: Any, hidden: Tensor, states: Tensor, hidden_columns: Tensor
) -> Tensor:
    """The decoder's attention to the encoder: hidden [G, n, H], states [G, L, H], hidden_columns
    [G, L] (added to the scores) -> [G, n, H].

    For a few target tokens, no keys and values are computed: (q W_k) x equals q (W_k x), and the
    weighted sum of (W_v x) equals W_v of the weighted sum.
    """
    heads, size = attention.n_heads, attention.key_value_proj_dim
    batch, count, _ = hidden.shape
    query = attention.q(hidden).view(batch, count, heads, size)
    if count * 4 > size:
        key, value = (
            projection(states).view(batch, -1, heads, size).transpose(1, 2)
            for projection in (attention.k, attention.v)
        )
        attended = nn.functional.scaled_dot_product_attention(
            query.transpose(1, 2),
            key,
            value,
            attn_mask=hidden_columns[:, None, None],
            scale=attention.scaling,
        ).transpose(1, 2)
    else:
        to_key, to_value = (
            projection.weight.view(heads, size, -1) for projection in (attention.k, attention.v)
        )
        queries = torch.einsum("gnhd,hdx->gnhx", query * attention.scaling, to_key).flatten(1, 2)
        mixed: Tensor = _Mix.apply(queries, states, hidden_columns)  # type: ignore[no-untyped-call]
        attended = torch.einsum("gnhx,hdx->gnhd", mixed.view(batch, count, heads, -1), to_value)
    return attention.o(attended.reshape(batch, count, heads * size))  # type: ignore[no-any-return]


class _Mix(torch.autograd.Function):
    """softmax(queries states^T + hidden_columns) states: [G, Q, H] -> [G, Q, H].

    The states' gradient takes one matrix product instead of two and a sum.
    """

    @staticmethod
    def forward(ctx: Any, queries: Tensor, states: Tensor, hidden_columns: Tensor) -> Tensor:
        scores = queries @ states.transpose(1, 2) + hidden_columns[:, None]
        weights = scores.float().softmax(-1).to(states.dtype)
        ctx.save_for_backward(queries, states, weights)
        return weights @ states

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        queries, states, weights = ctx.saved_tensors
        by_weight, in_fp32 = (gradient[0] @ states.transpose(1, 2)).float(), weights.float()
        centred = by_weight - (in_fp32 * by_weight).sum(-1, keepdim=True)
        by_score = (in_fp32 * centred).to(states.dtype)
        left = torch.cat([by_score, weights], dim=1).transpose(1, 2)
        by_states = left @ torch.cat([queries, gradient[0]], dim=1)
        return by_score @ states, by_states, None


def rms_norm(norm: Any, states: Tensor) -> Tensor:
    """T5's norm in few passes over memory; its frozen weight needs no gradient."""
    return cast(Tensor, _RmsNorm.apply(states, norm.weight, norm.variance_epsilon))  # type: ignore[no-untyped-call]


class _RmsNorm(torch.autograd.Function):
    """x / rms(x) * weight, computed in float32."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        in_fp32 = states.float()
        square_sum: Tensor = torch.linalg.vecdot(in_fp32, in_fp32)
        scale = square_sum.div_(states.shape[-1]).add_(epsilon).rsqrt_().unsqueeze(-1)
        ctx.save_for_backward(states, scale, weight)
        return (in_fp32 * scale).to(weight.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        states, scale, weight = ctx.saved_tensors
        in_fp32, by_norm = states.float(), (gradient[0] * weight).float()
        along = torch.linalg.vecdot(by_norm, in_fp32).unsqueeze(-1) * scale**3 / states.shape[-1]
        by_states = by_norm.mul_(scale).addcmul_(in_fp32, along, value=-1)
        return by_states.to(states.dtype), None, None
