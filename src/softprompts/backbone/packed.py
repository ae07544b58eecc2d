"""T5 without waste: rows laid end to end, so that no pad is computed; no keys and values of the encoder for a target of a few tokens.

The layers are transformers' own. What is ours: where rows stand, the attention function that keeps them apart (registered under `NAME`,
called by the model's own attention), and the decoder's attention to the encoder. On a GPU layers are compiled once for all sizes, and a
step of up to `GRAPHED` numbers is recorded once for its bucket of sizes and replayed.

Shape letters: N tokens of all rows, L the longest row, G rows of a group, D of a head, M distances; the others as in `backbone.py`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from ..devices import sent
from . import kernels
from .backbone import Losses, Text

NAME = "softprompts_packed"
KINDS = frozenset({"t5", "mt5"})
"""The types of model whose layers are known to fit."""
LEAST = -1e30
"""What is added to a score that must not count; finite, so that nothing minus itself is no number."""
WASTE = 1.15
"""The most that padding may add to a group of rows in the CPU's attention."""
GRAPHED = 2**27
"""Tokens times width of a step, up to which launching its kernels, one by one, could take longer than running them."""
GRAPHS = 64
"""Recorded steps that are kept; they share their memory."""
SMALL = 2**25
"""Tokens times width, up to which a step costs less than recording one of another size."""
FEW, MANY = 8, 16
"""Sizes between a number and its double that steps are recorded for, up to `SMALL` and beyond."""
RUINED = 1e15
"""A prompt with larger numbers is beyond saving; in its neighbours' attention it would do harm."""


class Layout(NamedTuple):
    """Where the rows of a batch stand when they are laid end to end."""

    order: Tensor
    """What stands at each place, counted through all prompts' vectors and then all texts' tokens: [N]."""
    back: Tensor
    """The place of each prompt vector: [B, P]; its row's first where it is not the row's own."""
    own: Tensor
    """Which prompt vectors are a row's own: [B, P]."""
    rows: Tensor
    """The batch's rows in their order, longest first where groups are made: [B]."""
    padded: Tensor
    """The place of each column of each group's rows, one group after another; beyond its end a row repeats its last token."""
    inverse: Tensor
    """The other way round: [N]."""
    groups: list[tuple[int, int]]
    """Rows and columns of each group."""
    masks: list[Tensor]
    """Which columns are a row's own: [G, L] each."""
    tiles: Tensor
    """The parts of rows that the GPU's attention works on: see `kernels.tiles`."""


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
        self.graphs: OrderedDict[tuple[int, ...], _Graph] = OrderedDict()
        self.held = _Held()
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

    def gradients(self, vectors: Tensor, text: Text, targets: Tensor, kept: Tensor, weight: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Each row's summed negative log-likelihood [B], and the gradient of sum(weight * nll + z * squares) by the vectors [B, P, H]."""
        if self.fast:
            self.expect(text.mask.shape[1] + vectors.shape[1])
            targets, kept, weight, z = self._few_shapes(targets, kept, weight, z)
        layout = lay_wide(text, vectors.shape[1], self.longest, len(targets)) if self.fast else lay(text, vectors.shape[1])
        good = (vectors.abs() < RUINED).all(2).all(1)
        vectors = torch.where(good[:, None, None], vectors, 0)
        rows = layout.rows
        flat = torch.cat([vectors.to(text.embeds).flatten(0, 1), text.embeds.flatten(0, 1)])
        asked = [flat[layout.order][None], targets[rows], kept[rows], weight[rows], z[rows]]
        run = self._recorded if self.fast and asked[0].numel() <= GRAPHED else self._run
        nll, gradient = run(layout, *asked)
        found = torch.empty_like(nll).index_copy_(0, rows, nll)[: len(vectors)]
        by_vector = gradient[0][layout.back] * layout.own.unsqueeze(-1)
        return torch.where(good, found, torch.nan), by_vector.to(vectors.dtype)

    def _few_shapes(self, targets: Tensor, kept: Tensor, *by_row: Tensor) -> list[Tensor]:
        """Rows and columns that count for nothing are added, because a step is recorded for each number of them."""
        batch, columns = targets.shape
        down, across = rounded(batch, FEW) - batch, rounded(columns, 2) - columns
        return [
            *(nn.functional.pad(part, (0, across, 0, down)) for part in (targets, kept)),
            *(nn.functional.pad(p, (0, down)) for p in by_row),
        ]

    def _run(self, layout: Layout, joined: Tensor, targets: Tensor, kept: Tensor, weight: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
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
        configs, norms = (self.encoder.config, self.decoder.config), [] if self.fast else self._norms
        were = [config._attn_implementation for config in configs]
        configs[0]._attn_implementation, configs[1]._attn_implementation = NAME, "eager"  # for a few tokens a fused one is no faster
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
        table = self.table.float() if joined.device.type == "cpu" else self.table.to(joined.dtype)  # a CPU's attention is slow in bf16
        middle = table.shape[1] // 2
        biases = []
        for (_, width), mask in zip(layout.groups, layout.masks, strict=True):
            places = torch.arange(width, device=table.device)
            distance = (places[None] - places[:, None]).clamp(-middle, middle) + middle
            hidden = torch.zeros(mask.shape, dtype=table.dtype, device=table.device).masked_fill_(~mask, LEAST)
            biases.append(table[:, distance] + hidden[:, None, None])
        return Sight(table, layout, biases)

    def _through(self, which: int, block: nn.Module, states: Tensor, *rest: Any) -> Tensor:
        if self.fast:
            torch._dynamo.maybe_mark_dynamic(states, 1 - which)
        made: Tensor = (self._layers if self.fast else (_read, _write))[which](block, states, *rest)
        return made

    def _decode(self, states: Tensor, layout: Layout, ids: Tensor) -> Tensor:
        """What the decoder makes of `ids` [B, n] after the encoder's `states` [N, H]: [B, n, H]."""
        groups = spread(states, layout)
        shut = [torch.zeros(mask.shape, dtype=states.dtype, device=mask.device).masked_fill_(~mask, LEAST) for mask in layout.masks]
        if self.fast:
            for tensor in (*groups, *shut):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        hidden, count = self.decoder.embed_tokens(ids), ids.shape[1]
        bias = self.decoder.block[0].layer[0].SelfAttention.compute_bias(count, count)
        later = torch.ones(count, count, dtype=torch.bool, device=ids.device).triu(1)
        bias = bias.masked_fill(later, LEAST)
        for block in self.decoder.block:
            hidden = self._through(1, block, hidden, bias, groups, shut)
        told: Tensor = self.decoder.final_layer_norm(hidden)
        return told

    def forget(self) -> None:
        """Recorded steps, and the memory they share."""
        self.graphs.clear()
        self.held.kept.clear()

    longest = 0
    """The columns that recorded steps have room for."""

    def expect(self, longest: int) -> None:
        """Make room for rows of so many tokens."""
        self.longest = max(self.longest, -(-longest // 64) * 64)

    def _recorded(self, layout: Layout, *asked: Tensor) -> tuple[Tensor, Tensor]:
        """The same by replaying a step that was recorded for these sizes."""
        given = [*asked, layout.padded, layout.inverse, *layout.masks, layout.tiles]
        key = tuple(size for tensor in given for size in tensor.shape)
        if key not in self.graphs:
            pool = next(iter(self.graphs.values())).graph.pool() if self.graphs else None
            self.graphs[key] = _Graph(
                lambda *held: self._run(_told(layout, held[len(asked) :]), *held[: len(asked)]), given, self.held, pool
            )
        self.graphs.move_to_end(key)
        if len(self.graphs) > GRAPHS:
            self.graphs.popitem(last=False)
        return self.graphs[key](given)


def _told(layout: Layout, held: Sequence[Tensor]) -> Layout:
    """A layout of one group with tensors that stay where they are."""
    padded, inverse, mask, tiles = held
    return layout._replace(padded=padded, inverse=inverse, masks=[mask], tiles=tiles)


class _Held:
    """Memory that recorded steps share, because one is replayed at a time: what they are given and what they made."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, int], Tensor] = {}

    @cached_property
    def beside(self) -> Any:
        """The stream that steps are recorded in."""
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def like(self, what: str, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Room for such tensors; where more is needed than there is, twice as much is taken."""
        return [self._room((what, place), tensor)[: tensor.numel()].view(tensor.shape) for place, tensor in enumerate(tensors)]

    def _room(self, key: tuple[str, int], tensor: Tensor) -> Tensor:
        if key not in self.kept or len(self.kept[key]) < tensor.numel():
            self.kept[key] = tensor.new_empty(1 << (tensor.numel() - 1).bit_length())
        return self.kept[key]


class _Graph:
    """A step that was recorded once; to replay it, what it reads is copied in and what it made is copied out."""

    def __init__(self, step: Callable[..., tuple[Tensor, Tensor]], given: Sequence[Tensor], room: _Held, pool: Any) -> None:
        self.held = room.like("given", given)
        torch._foreach_copy_(self.held, list(given))
        beside = room.beside  # one for all, because cuBLAS keeps memory for every stream
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(2 if pool is None else 1):
                made = step(*self.held)
        torch.cuda.current_stream().wait_stream(beside)
        self.made = room.like("made", made)
        del made
        torch.cuda.empty_cache()  # what the steps before took; the recorded one has memory of its own
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, pool=pool, stream=beside):
            torch._foreach_copy_(self.made, list(step(*self.held)))

    def __call__(self, given: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        torch._foreach_copy_(self.held, list(given))
        self.graph.replay()
        nll, gradient = (tensor.clone() for tensor in self.made)
        return nll, gradient


def lay(text: Text, length: int) -> Layout:
    """The layout of a batch with `length` prompt vectors a row."""
    assert text.sizes is not None
    device, (batch, width) = text.mask.device, text.mask.shape
    sizes = text.sizes.numpy().astype(np.int64)
    given = np.full(batch, length) if text.given is None else text.given.numpy()
    at = np.zeros(batch, np.int64) if text.at is None else text.at.cpu().numpy()
    total = sizes + given
    rows = np.argsort(-total, kind="stable")
    ends = total[rows].cumsum()
    starts, count = ends - total[rows], int(ends[-1])
    document = np.repeat(np.arange(batch), total[rows])
    place = np.arange(count) - starts[document]
    row = rows[document]
    inside = place - at[row]
    from_text = batch * length + row * width + np.where(inside < 0, place, place - given[row])
    order = np.where((inside >= 0) & (inside < given[row]), row * length + inside, from_text)

    first = np.empty(batch, np.int64)
    first[rows] = starts
    own = np.arange(length) < given[:, None]
    back = np.where(own, (first + at)[:, None] + np.arange(length), first[:, None])

    groups = group(total[rows])
    padded, inverse, masks, begin, base = [], [], [], 0, 0
    for many, columns in groups:
        own_rows, across = slice(begin, begin + many), np.arange(columns)
        masks.append(across < total[rows][own_rows, None])
        padded.append((starts[own_rows, None] + np.minimum(across, total[rows][own_rows, None] - 1)).reshape(-1))
        inside_group = (document >= begin) & (document < begin + many)
        inverse.append(base + (document[inside_group] - begin) * columns + place[inside_group])
        begin, base = begin + many, base + many * columns
    tensors = [rows, order, back, own, np.concatenate(padded), np.concatenate(inverse), np.zeros((0, 3), np.int32), *masks]
    moved = [sent(torch.from_numpy(np.ascontiguousarray(array)), device) for array in tensors]
    rows_, order_, back_, own_, padded_, inverse_, tiles_, *masks_ = moved
    return Layout(order_, back_, own_, rows_, padded_, inverse_, groups, masks_, tiles_)


def lay_wide(text: Text, length: int, room: int, rows: int | None = None) -> Layout:
    """The same of one group with `room` columns, in a bucket's number of places; worked out on the device, from the lengths alone.

    To the batch's rows come empty ones, up to `rows`.
    """
    assert text.sizes is not None
    device, (batch, width) = text.mask.device, text.mask.shape
    given = torch.full((batch,), length) if text.given is None else text.given
    lengths = text.sizes + given
    count = int(lengths.sum())
    places = bucket(count, FEW if count * text.embeds.shape[2] <= SMALL else MANY)
    at = torch.zeros(batch, dtype=torch.long) if text.at is None else text.at.cpu()
    told = nn.functional.pad(torch.stack([lengths, given, at]), (0, 0 if rows is None else rows - batch))
    tiles = kernels.tiles(told[0].numpy(), kernels.TILE, kernels.room(places, told.shape[1]))
    total, given, at = sent(told, device)

    ends = total.cumsum(0)
    starts, at_place = ends - total, torch.arange(places, device=device)
    used = at_place < count
    row = torch.searchsorted(ends, at_place, right=True).clamp_(max=len(total) - 1)
    place = at_place - starts[row]
    inside, ours = place - at[row], given[row]
    from_text = batch * length + row * width + torch.where(inside < 0, place, place - ours)
    order = torch.where((inside >= 0) & (inside < ours), row * length + inside, from_text)

    own = torch.arange(length, device=device) < given[:batch, None]
    back = torch.where(own, (starts + at)[:batch, None] + torch.arange(length, device=device), starts[:batch, None])
    across = torch.arange(room, device=device)
    padded = (starts[:, None] + torch.minimum(across, total[:, None] - 1)).view(-1)
    mask = across < total[:, None]
    moved, every = sent(torch.from_numpy(tiles), device), torch.arange(len(total), device=device)
    return Layout(order * used, back, own, every, padded, (row * room + place) * used, [(len(total), room)], [mask], moved)


def rounded(number: int, many: int) -> int:
    """Up to one of at most `many` sizes (2, 4, 8, ...) between a number and its double."""
    step = 1 << max(0, number.bit_length() - many.bit_length())
    return -(-number // step) * step


def bucket(tokens: int, many: int) -> int:
    """The number of places for so many tokens: whole tiles."""
    return -(-rounded(tokens, many) // kernels.TILE) * kernels.TILE


def group(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Rows, longest first, in groups that padding makes little larger: the number and the columns of each."""
    groups: list[tuple[int, int]] = []
    begin = 0
    tokens = 0
    for row, length in enumerate(lengths):
        if row > begin and (row + 1 - begin) * lengths[begin] > WASTE * (tokens + length):
            groups.append((row - begin, int(lengths[begin])))
            begin, tokens = row, 0
        tokens += int(length)
    return [*groups, (len(lengths) - begin, int(lengths[begin]))]


def _read(block: nn.Module, states: Tensor, sight: Sight) -> Tensor:
    """One layer of the encoder; the bias is given, so that the layer makes none of its own."""
    made: Tensor = block(states, None, sight.table, sight=sight)[0]
    return made


def _write(block: Any, hidden: Tensor, bias: Tensor, groups: Sequence[Tensor], shut: Sequence[Tensor]) -> Tensor:
    """One layer of the decoder: its own attention, ours to the encoder's states, its feed-forward part."""
    hidden, _, _ = block.layer[0](hidden, position_bias=bias)
    cross = block.layer[1]
    asked = torch.split(cross.layer_norm(hidden), [len(states) for states in groups])
    found = [attend_across(cross.EncDecAttention, *each) for each in zip(asked, groups, shut, strict=True)]
    states: Tensor = block.layer[-1](hidden + (torch.cat(found) if len(found) > 1 else found[0]))
    return states


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, sight: Sight, scaling: float, **kwargs: Any
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
        found = nn.functional.scaled_dot_product_attention(asked, keys, values, attn_mask=bias, scale=scaling)
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
        key, value = (part(states).view(batch, -1, heads, size).transpose(1, 2) for part in (attention.k, attention.v))
        fused = nn.functional.scaled_dot_product_attention
        found = fused(query.transpose(1, 2), key, value, attn_mask=shut[:, None, None], scale=attention.scaling).transpose(1, 2)
    else:
        by_key, by_value = (part.weight.view(heads, size, -1) for part in (attention.k, attention.v))
        asked = torch.einsum("gnhd,hdx->gnhx", query * attention.scaling, by_key).flatten(1, 2)
        mixed: Tensor = _Mix.apply(asked, states, shut)  # type: ignore[no-untyped-call]
        found = torch.einsum("gnhx,hdx->gnhd", mixed.view(batch, count, heads, -1), by_value)
    across: Tensor = attention.o(found.reshape(batch, count, heads * size))
    return across


class _Mix(torch.autograd.Function):
    """softmax(asked states^T + shut) states: [G, Q, H] -> [G, Q, H]; the states' gradient in one product instead of two and a sum."""

    @staticmethod
    def forward(ctx: Any, asked: Tensor, states: Tensor, shut: Tensor) -> Tensor:
        weights = (asked @ states.transpose(1, 2) + shut[:, None]).float().softmax(-1).to(states.dtype)
        ctx.save_for_backward(asked, states, weights)
        mixed: Tensor = weights @ states
        return mixed

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        asked, states, weights = ctx.saved_tensors
        by_weight, whole = (gradient[0] @ states.transpose(1, 2)).float(), weights.float()
        by_score = (whole * (by_weight - (whole * by_weight).sum(-1, keepdim=True))).to(states.dtype)
        by_states = torch.cat([by_score, weights], dim=1).transpose(1, 2) @ torch.cat([asked, gradient[0]], dim=1)
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
        scale = torch.linalg.vecdot(whole, whole).div_(states.shape[-1]).add_(epsilon).rsqrt_().unsqueeze(-1)
        ctx.save_for_backward(states, scale, weight)
        made: Tensor = (whole * scale).to(weight.dtype).mul_(weight)
        return made

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        states, scale, weight = ctx.saved_tensors
        whole, by_norm = states.float(), (gradient[0] * weight).float()
        along = torch.linalg.vecdot(by_norm, whole).unsqueeze(-1) * scale**3 / states.shape[-1]
        return by_norm.mul_(scale).addcmul_(whole, along, value=-1).to(states.dtype), None, None


class _Spread(torch.autograd.Function):
    """From places to columns: [N, ...] -> [G * L, ...]. Columns beyond a row's end are seen by nobody, so they give nothing back."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, padded: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        return states[padded]

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None, None]:
        (inverse,) = ctx.saved_tensors
        return gradient[0][inverse], None, None


class _Gather(torch.autograd.Function):
    """From columns to places."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.columns = len(states)
        return states[inverse]

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        (inverse,) = ctx.saved_tensors
        return gradient[0].new_zeros(ctx.columns, *gradient[0].shape[1:]).index_copy_(0, inverse, gradient[0]), None


def spread(states: Tensor, layout: Layout) -> list[Tensor]:
    """Rows laid end to end as rows of columns, group by group: [N, ...] -> [G, L, ...] each."""
    columns: Tensor = _Spread.apply(states, layout.padded, layout.inverse)  # type: ignore[no-untyped-call]
    parts = torch.split(columns, [rows * width for rows, width in layout.groups])
    return [part.view(*shape, *part.shape[1:]) for part, shape in zip(parts, layout.groups, strict=True)]


def gathered(groups: Sequence[Tensor], layout: Layout) -> Tensor:
    """The other way round: [G, L, ...] each -> [N, ...]."""
    columns = torch.cat([part.flatten(0, 1) for part in groups]) if len(groups) > 1 else groups[0].flatten(0, 1)
    places: Tensor = _Gather.apply(columns, layout.inverse)  # type: ignore[no-untyped-call]
    return places
