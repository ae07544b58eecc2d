"""Decoder-only and encoder-only models on packed rows: no pads, prompts read once where they come
first, and logits only where they are needed.

The model is transformers' own and is called as usual, on one long row; only its attention function
(`row_attention.py`) knows about the rows in it. On a GPU, steps are recorded once per bucket of
sizes and replayed (`graphs.py`), and layers are compiled, once for all sizes, if many steps follow.

Shape letters: N packed positions, U prompts, n target tokens, C classes; the others as in
`backbone.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..batch import Losses, Text, to_device
from ..modules import (
    only_columns,
    replaced_attention,
    replaced_forwards,
    transformer_layers,
)
from .layout import round_up
from .row_attention import ATTENTION
from .row_layout import Rows, TextBefore, after_text, row_layout
from .step import DIVERGED, Packed

MAX_RECORDED = 2**38
"""Tokens of a step times weights of a layer, up to which launching a layer's kernels can take
longer than they run."""
TEXT_FIRST = 0.5
"""Reading the text before prompts first pays off if it has this many times all other tokens."""
CAUSAL_TYPES = frozenset(
    {
        *("gpt2", "opt", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text"),
        *("phi", "phi3", "smollm3", "olmo", "olmo2", "starcoder2", "granite", "cohere"),
        *("gpt_neox",),
    }
)
"""Decoder-only model types that are known to fit: a test compares each with the plain model."""
COMPOSITE_TYPES = frozenset({"gemma3"})
"""Those that have a vision tower beside their text model, whose layers fit; Gemma 3 from 4B on."""
MASKED_TYPES = frozenset(
    {"bert", "roberta", "xlm-roberta", "camembert", "electra", "modernbert", "distilbert"}
)
"""Encoder-only ones. Not DeBERTa, whose attention has relative positions of its own."""


class Head(NamedTuple):
    """A trained classifier on the last hidden states, instead of the model's own output layer."""

    parameters: list[nn.Parameter]
    logits: Callable[[Tensor, Sequence[Tensor]], Tensor]
    """From features [B, F] and the parameters' values to logits [B, C]."""
    pool: str
    kind: object
    """Steps with heads of another kind are recorded separately."""


class Batch(NamedTuple):
    """The tensors of a step.

    embeds [1, N, H] and positions [1, N]; predicting: the positions whose logits predict the
    targets [B, n]; targets and target_mask [B, n]; weight and z [B]; row_of [N], see `RowLayout`
    """

    embeds: Tensor
    positions: Tensor
    predicting: Tensor
    targets: Tensor
    target_mask: Tensor
    weight: Tensor
    z: Tensor
    row_of: Tensor


class PackedRows(Packed):
    """A backbone's frozen model, and the gradient of its losses with respect to prompts."""

    def __init__(self, model: Any, causal: bool, first_position: int = 0) -> None:
        super().__init__()
        self.model, self.causal, self.first_position = model, causal, first_position

    def gradients(
        self,
        vectors: Tensor,
        text: Text,
        targets: Tensor,
        target_mask: Tensor,
        weight: Tensor,
        z: Tensor,
        target_lengths: Sequence[int] | None = None,
        columns: Tensor | None = None,
        head: Head | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Each row's summed negative log-likelihood [B], and the gradient of
        sum(weight * nll + z * squares) with respect to the vectors [U, P, H].

        Targets with lengths follow the text: each token is predicted by the one before it. Without
        lengths, they are predicted by the rows' `columns` [B, n]. A head's parameters accumulate
        their gradients.
        """
        assert text.lengths is not None
        tokens = vectors.shape[0] * vectors.shape[1] + int(text.lengths.sum())  # but for targets
        recorded = self.recorded and self._layer_size * tokens <= MAX_RECORDED
        if recorded and target_lengths is not None:
            more = max(2, round_up(targets.shape[1], 2)) - targets.shape[1]
            targets, target_mask = (
                nn.functional.pad(part, (0, more)) for part in (targets, target_mask)
            )
        before = None
        if self.causal and self._text_first(vectors, text):
            before, text = self._read_text(text)
        layout = row_layout(
            text,
            (vectors.shape[0], vectors.shape[1]),
            self.causal,
            target_lengths,
            targets.shape[1],
            tiled=vectors.device.type == "cuda",
            buckets=recorded,
        )
        if before is not None:
            layout = after_text(layout, before)
        sane = (vectors.abs() < DIVERGED).all(2).all(1)
        parts = [torch.where(sane[:, None, None], vectors, 0).to(text.embeds), text.embeds]
        if target_lengths is not None:
            parts.append(self.model.get_input_embeddings()(targets))
        flat = torch.cat([part.flatten(0, 1) for part in parts])
        batch = Batch(
            flat[layout.source][None],
            (layout.positions + self.first_position)[None],
            layout.target_positions if columns is None else layout.starts[:, None] + columns,
            targets,
            target_mask,
            weight,
            z,
            layout.row_of,
        )
        run = self._replay if recorded else self._run
        nll, gradient, *by_head = run(layout.rows, batch, head)
        for parameter, part in zip(head.parameters if head else [], by_head, strict=True):
            parameter.grad = part if parameter.grad is None else parameter.grad + part
        by_vector = gradient[0][layout.prompt_positions] * layout.prompt_mask.unsqueeze(-1)
        if text.prompt_of is not None:
            sane = sane[to_device(text.prompt_of, sane.device)]
        return torch.where(sane, nll, torch.nan), by_vector.to(vectors.dtype)

    def _text_first(self, vectors: Tensor, text: Text) -> bool:
        """Whether to read the text before the prompts first, because it takes no gradient.

        On a CPU; on a GPU, one recorded pass takes less time than two that are not. Each row must
        have text before its prompt, and a prompt, whose last vector predicts the target.
        """
        if text.insert_at is None or vectors.device.type != "cpu" or not vectors.shape[1]:
            return False
        assert text.lengths is not None
        lengths = text.prompt_lengths
        prompts = vectors.shape[1] * len(text.mask) if lengths is None else int(lengths.sum())
        read, rest = int(text.insert_at.sum()), int((text.lengths - text.insert_at).sum())
        every = int(text.insert_at.min()) > 0 and (lengths is None or int(lengths.min()) > 0)
        return every and read >= TEXT_FIRST * (prompts + rest)

    @torch.no_grad()
    def _read_text(self, text: Text) -> tuple[TextBefore, Text]:
        """The keys and values of the text before each row's prompt, and the text after it."""
        assert text.insert_at is not None
        assert text.lengths is not None
        lengths = text.insert_at
        first, rest = int(lengths.max()), text.lengths - lengths
        opening = Text(text.embeds[:, :first], text.mask[:, :first], lengths=lengths)
        layout = row_layout(opening, (len(lengths), 0), causal=True)
        keys: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        with self._packed_attention():
            inputs = {
                "inputs_embeds": opening.embeds.flatten(0, 1)[layout.source][None],
                "position_ids": layout.positions[None],
                "packed_rows": layout.rows._replace(keeps=keys),
                "use_cache": False,
            }
            self._word_logits(inputs, layout.starts[:1])
        column = torch.arange(int(rest.max()))
        columns = (lengths[:, None] + column).clamp(max=text.mask.shape[1] - 1)
        return TextBefore(lengths, layout.starts, keys), Text(
            text.embeds.gather(1, columns[:, :, None].expand(-1, -1, text.embeds.shape[2])),
            (column < rest[:, None]).to(text.mask),
            prompt_lengths=text.prompt_lengths,
            lengths=rest,
        )

    def _run(
        self,
        rows: Rows,
        batch: Batch,
        head: Head | None,
        values: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, ...]:
        """The loss of each row, and the gradients of the embeddings and of the head's values."""
        with torch.enable_grad(), self._packed_attention():
            embeds = batch.embeds.detach().requires_grad_()
            trained = [
                value.detach().requires_grad_()
                for value in (values if values is not None else head.parameters if head else ())
            ]
            inputs = {
                "inputs_embeds": embeds,
                "position_ids": batch.positions,
                "packed_rows": rows,
                **self._options(embeds),
            }
            if head is None:
                logits = self._word_logits(inputs, batch.predicting)
            else:
                states = self.model.base_model(**inputs).last_hidden_state[0].float()
                logits = head.logits(_pooled(states, batch, head.pool), trained).unsqueeze(1)
            losses = Losses.from_logits(
                logits.view(*batch.targets.shape, -1), batch.targets, batch.target_mask
            )
            total = (losses.nll * batch.weight + losses.z * batch.z).sum()
            gradients = torch.autograd.grad(total, [embeds, *trained])
        return losses.nll.detach(), *gradients

    def _word_logits(self, inputs: dict[str, Any], predicting: Tensor) -> Tensor:
        """At the predicting positions alone: [1, B * n, V]."""
        with only_columns(self.model.base_model, predicting.view(1, -1)) as select:
            return select(self.model(**inputs).logits)

    def _options(self, embeds: Tensor) -> dict[str, Any]:
        options: dict[str, Any] = {"use_cache": False} if self.causal else {}
        if getattr(self.model.config, "type_vocab_size", 0):  # its buffer is as long as one row
            options["token_type_ids"] = torch.zeros(
                embeds.shape[:2], dtype=torch.long, device=embeds.device
            )
        return options

    @cached_property
    def _layer_size(self) -> int:
        """The number of weights of a layer."""
        return sum(weight.numel() for weight in transformer_layers(self.model)[-1].parameters())

    @cached_property
    def _configs(self) -> list[Any]:
        """The distinct configs of the model's modules."""
        with_config = [module for module in self.model.modules() if hasattr(module, "config")]
        return list({id(module.config): module.config for module in with_config}.values())

    @cached_property
    def _layers(self) -> list[tuple[Any, Callable[..., Any]]]:
        """The model's layers, and what is called in their place if they are compiled."""
        compiled = torch.compile(_call)
        return [
            (layer, partial(_call_compiled, compiled, layer))
            for layer in transformer_layers(self.model)
        ]

    @contextmanager
    def _packed_attention(self) -> Iterator[None]:
        """Inside, the model's attention is ours, and its layers are compiled if they are to be."""
        forwards = [
            (
                layer,
                # a layer that keeps no activations, as `recompute_activations` makes them
                partial(checkpoint, forward, use_reentrant=False, preserve_rng_state=False)
                if "forward" in vars(layer)
                else forward,
            )
            for layer, forward in (self._layers if self.compiled else [])
        ]
        implementations = [(config, ATTENTION) for config in self._configs]
        with replaced_attention(implementations), replaced_forwards(forwards):
            yield

    def _replay(self, rows: Rows, batch: Batch, head: Head | None) -> tuple[Tensor, ...]:
        """`_run` by replaying the step recorded for these sizes."""
        assert rows.tiles is not None
        values = [parameter.detach() for parameter in head.parameters] if head else []
        size = len(batch) + len(values)

        def step(*tensors: Tensor) -> tuple[Tensor, ...]:
            by_query, by_key, *users = tensors[size:]
            static = rows._replace(tiles=(by_query, by_key), users=users[0] if users else None)
            inputs, weights = Batch(*tensors[: len(batch)]), tensors[len(batch) : size]
            return self._run(static, inputs, head, weights)

        inputs = [*batch, *values, *rows.tiles, *([] if rows.users is None else [rows.users])]
        return self.graphs(step, inputs, head and head.kind)


def _pooled(states: Tensor, batch: Batch, pool: str) -> Tensor:
    """The features that a head reads: [N, H] -> [B, H]."""
    if pool == "first":
        return states[batch.predicting[:, 0]]
    row = torch.arange(len(batch.targets), device=states.device)[:, None]
    member = (batch.row_of == row).to(states.dtype)
    # positions of no row have no meaningful states
    return (member / member.sum(1, keepdim=True)) @ states.masked_fill(
        (batch.row_of < 0)[:, None], 0
    )


def _call(layer: Any, *args: Any, **kwargs: Any) -> Any:
    return type(layer).forward(layer, *args, **kwargs)


def _call_compiled(compiled: Callable[..., Any], layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Compiled at the first call, for any number of positions and tiles."""
    positions = args[0].shape[1]
    rows: Rows = kwargs["packed_rows"]
    embeddings = kwargs.get("position_embeddings")
    if isinstance(embeddings, Tensor) or embeddings is None:
        embeddings = (embeddings,)
    for tensor in (*(rows.tiles or ()), rows.users):
        if tensor is not None:
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
    for tensor in (args[0], kwargs.get("position_ids"), *embeddings):
        if isinstance(tensor, Tensor):
            dims = [dim for dim, size in enumerate(tensor.shape) if size == positions]
            torch._dynamo.maybe_mark_dynamic(tensor, dims)
    return compiled(layer, *args, **kwargs)
