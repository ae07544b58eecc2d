"""Inference passes recorded as CUDA graphs, so that kernels are not launched one by one.

Columns and candidates are padded to a few sizes; a pass is recorded once for its sizes and
replayed. All candidates of a row are scored in one pass: they follow its text side by side, at the
same positions, and none sees another.

Shape letters: W columns, L tokens of a candidate; the others as in `backbone.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from ..batch import Candidates, Text, to_device
from ..kv_cache import DecodingState, PromptCache, stretches_positions
from ..modules import only_columns
from .graphs import Step
from .layout import added, round_up
from .packed import MODEL_TYPES, cross_attention
from .packed_rows import CAUSAL_TYPES

FEWEST_COLUMNS = 64
"""The columns of a pass, at least."""
MAX_WORK = 2**35
"""Tokens times width squared of a recorded pass: a larger one is limited by compute, not by kernel
launches, and only loses by padding."""
MAX_SCORES = 2**27
"""The attention scores of a recorded pass, for one head."""
MAX_LOGITS = 2**29
"""The logits of a recorded pass."""

Record = Callable[[Step, Sequence[Tensor], object], tuple[Tensor, ...]]
"""Runs a step on inputs; the third argument tells apart steps whose inputs have the same shapes."""


class InferencePasses(ABC):
    """Recorded passes of one model."""

    def __init__(self, backbone: Any, record: Record) -> None:
        self.backbone, self.model, self.record = backbone, backbone.model, record

    def scores(
        self, prompt: Tensor | PromptCache, text: Text, candidates: Candidates
    ) -> Tensor | None:
        """The log-probability of each row's candidates [B, C]; None if they are too many."""
        ids = self._ids(candidates)
        if ids[0].numel() * self.backbone.vocab_size > MAX_LOGITS:
            return None
        inputs = self._inputs(prompt, text)
        (scores,) = self.record(self._score, [*ids, *inputs], self._score)
        return scores[:, : max(map(len, candidates))]

    def prefill(self, prompt: Tensor | PromptCache, text: Text) -> DecodingState:
        """Process prompt and text, up to where the answer begins."""
        inputs = self._inputs(prompt, text)
        return self._state(inputs, *self.record(self._read, inputs, self._read))

    def fits(self, rows: int, columns: int) -> bool:
        """Whether a pass with this many rows, and columns for prompt and text, is recorded."""
        columns = padded_columns(columns)
        work = rows * columns * self.backbone.hidden**2
        return work <= MAX_WORK and rows * columns**2 <= MAX_SCORES

    def _ids(self, by_row: Candidates) -> Tensor:
        """The tokens of all candidates, and whether they are used: [2, B, C, L], padded."""
        count, size = max(map(len, by_row)), max(len(ids) for row in by_row for ids in row)
        shape = 2, len(by_row), _power_of_two(count), _power_of_two(max(2, size))
        padded = np.zeros(shape, np.int64)
        for row, of_row in enumerate(by_row):
            for column, ids in enumerate(of_row):
                padded[:, row, column, : len(ids)] = ids, [1] * len(ids)
        return to_device(torch.from_numpy(padded), self.backbone.device)

    @abstractmethod
    def _inputs(self, prompt: Tensor | PromptCache, text: Text) -> list[Tensor]:
        """The joined rows: embeddings [B, W, H], their mask [B, W], and what the family adds."""

    @abstractmethod
    def _score(self, tokens: Tensor, used: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The scores of candidates [B, C]."""

    @abstractmethod
    def _read(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The next token's logits [B, V], and the keys and values to continue from."""

    @abstractmethod
    def _state(self, inputs: Sequence[Tensor], *outputs: Tensor) -> DecodingState:
        """From the inputs and outputs of `_read`."""


class CausalPasses(InferencePasses):
    """Of a decoder-only model: [pad; prompt; text; candidates], or after cached prompts."""

    def _inputs(self, prompt: Tensor | PromptCache, text: Text) -> list[Tensor]:
        cached = isinstance(prompt, PromptCache)
        joined = self.backbone.join(text.embeds[:, :0] if cached else prompt, text)
        embeds, mask = joined["inputs_embeds"], joined["attention_mask"]
        more = padded_columns(mask.shape[1]) - mask.shape[1]
        inputs = [functional.pad(embeds, (0, 0, more, 0)), functional.pad(mask, (more, 0))]
        if isinstance(prompt, PromptCache):
            inputs += [prompt.mask(), *(part for layer in prompt.layers for part in layer)]
        return inputs

    def _score(self, tokens: Tensor, used: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        embeds, mask, *prompt = inputs
        (rows, count, size), width = tokens[..., 1:].shape, mask.shape[1]
        following = self.backbone.embedding(tokens[..., :-1].flatten(1))
        columns = torch.arange(width - 1, width + count * size, device=mask.device)
        with only_columns(self.model.base_model, columns.expand(rows, -1)) as select:
            output = self.model(
                inputs_embeds=torch.cat([embeds, following], dim=1),
                **self._attention(mask, prompt, count, size),
            )
            logits = select(output.logits).float()
        logs = logits - logits.logsumexp(-1, keepdim=True)
        first = logs[:, 0].gather(1, tokens[..., 0])
        rest = logs[:, 1:].gather(2, tokens[..., 1:].reshape(rows, -1, 1)).view(rows, count, size)
        return (_summed(torch.cat([first.unsqueeze(-1), rest], dim=2), used),)

    def _attention(
        self, mask: Tensor, prompt: Sequence[Tensor], count: int = 0, size: int = 1
    ) -> dict[str, Any]:
        """What the model needs beside the embeddings of texts, and of `count` candidates of `size`
        tokens after each."""
        past = prompt[0] if prompt else mask[:, :0]
        before = torch.cat([past, mask], dim=1)
        width = before.shape[1]
        seen = functional.pad(before, (0, count * size), value=1).bool()
        column = torch.arange(-width, count * size, device=mask.device)
        owner = (column // size).clamp(min=-1)  # a candidate's number; -1 for prompt and text
        visible = (column <= column[:, None]) & ((owner < 0) | (owner == owner[:, None]))
        inside = torch.arange(size, device=mask.device).repeat(count)
        after = before.sum(1, keepdim=True) + inside
        if self.backbone.max_positions is not None:  # only pads are beyond
            after = after.clamp(max=self.backbone.max_positions - 1)
        position = torch.cat([(before.cumsum(1) - 1).clamp(min=0), after], dim=1)
        own = position[:, past.shape[1] :]
        visible = visible[past.shape[1] :] & seen[:, None]
        masks = attention_masks(self.model, visible, own, position)
        layers = [_Layer(*pair) for pair in zip(prompt[1::2], prompt[2::2], strict=True)]
        if not prompt:
            layers = [_Layer() for _ in range(self.model.config.num_hidden_layers)]
        return {
            "attention_mask": masks,
            "position_ids": own,
            "past_key_values": Cache(layers=layers),
            "use_cache": True,
        }

    def _read(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        embeds, mask, *prompt = inputs
        beside = self._attention(mask, prompt)
        output = self.model(inputs_embeds=embeds, logits_to_keep=1, **beside)
        return output.logits[:, -1], _stacked(output.past_key_values)

    def _state(self, inputs: Sequence[Tensor], *outputs: Tensor) -> DecodingState:
        logits, keys_values = outputs
        before = [inputs[2]] if len(inputs) > 2 else []
        return DecodingState(logits, _cache(keys_values), torch.cat([*before, inputs[1]], dim=1))


class T5Passes(InferencePasses):
    """Of a T5: [prompt; text; pad] in the encoder, candidates in the decoder."""

    def _inputs(self, prompt: Tensor | PromptCache, text: Text) -> list[Tensor]:
        joined = self.backbone.join(prompt, text)
        embeds, mask = joined["inputs_embeds"], joined["attention_mask"]
        more = padded_columns(mask.shape[1]) - mask.shape[1]
        return [functional.pad(embeds, (0, 0, 0, more)), functional.pad(mask, (0, more))]

    def _encode(self, embeds: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The encoder's states [B, W, H], and what is added to the scores of columns [B, W]."""
        hidden = added(mask.bool(), embeds.dtype)
        encoder = self.model.get_encoder()
        output = encoder(inputs_embeds=embeds, attention_mask=hidden[:, None, None])
        return output.last_hidden_state, hidden

    def _score(self, tokens: Tensor, used: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        states, hidden_columns = self._encode(*inputs)
        rows, count, size = tokens.shape
        start = torch.full_like(tokens[..., :1], self.backbone.decoder_start_id)
        ids = torch.cat([start, tokens[..., :-1]], dim=2).flatten(1)
        column = torch.arange(count * size, device=tokens.device)
        position, owner = column % size, column // size
        visible = (position <= position[:, None]) & (owner == owner[:, None])
        decoder = self.model.get_decoder()
        bias = decoder.block[0].layer[0].SelfAttention.compute_bias(size, size)
        bias = bias[:, :, position[:, None], position]
        mask, hidden = added(visible, states.dtype)[None, None], decoder.embed_tokens(ids)
        for block in decoder.block:
            attention, cross, feed_forward = block.layer
            hidden = attention(hidden, attention_mask=mask, position_bias=bias)[0]
            queries = cross.layer_norm(hidden)
            across = cross_attention(cross.EncDecAttention, queries, states, hidden_columns)
            hidden = feed_forward(hidden + across)
        hidden = decoder.final_layer_norm(hidden)
        if getattr(self.model.config, "scale_decoder_outputs", False):
            hidden = hidden * self.model.model_dim**-0.5
        logits = self.model.lm_head(hidden).float().view(rows, count, size, -1)
        logs = logits.gather(3, tokens.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
        return (_summed(logs, used),)

    def _read(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        states, hidden_columns = self._encode(*inputs)
        own, across = (
            Cache(layers=[_Layer() for _ in self.model.get_decoder().block]) for _ in range(2)
        )
        output = self.model(
            encoder_outputs=BaseModelOutput(states),
            attention_mask=hidden_columns[:, None, None],
            decoder_input_ids=inputs[1].new_full((len(states), 1), self.backbone.decoder_start_id),
            past_key_values=EncoderDecoderCache(own, across),
            use_cache=True,
        )
        return output.logits[:, -1], states, _stacked(own), _stacked(across)

    def _state(self, inputs: Sequence[Tensor], *outputs: Tensor) -> DecodingState:
        logits, states, *caches = outputs
        return DecodingState(logits, EncoderDecoderCache(*map(_cache, caches)), inputs[1], states)


class _Layer(DynamicLayer):  # type: ignore[misc]
    """Keys and values that are new, after those of a prompt if there is one."""

    def __init__(self, keys: Tensor | None = None, values: Tensor | None = None) -> None:
        super().__init__()
        self.keys: Tensor | None = keys
        self.values: Tensor | None = values
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        if self.keys is not None and self.values is not None:
            key_states = torch.cat([self.keys, key_states], dim=2)
            value_states = torch.cat([self.values, value_states], dim=2)
        self.keys, self.values = key_states, value_states
        return key_states, value_states

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]


def passes_for(backbone: Any, record: Record) -> InferencePasses | None:
    """The recorded passes of a model, if its layers are known to fit."""
    config = backbone.model.config
    if config.model_type in MODEL_TYPES:
        return T5Passes(backbone, record)
    fits = config.model_type in CAUSAL_TYPES and not stretches_positions(config)
    return CausalPasses(backbone, record) if fits else None


def attention_masks(
    model: Any, visible: Tensor, queries: Tensor, keys: Tensor
) -> Tensor | dict[str, Tensor]:
    """What a decoder-only model adds to its attention scores [B, 1, Q, K], by kind of layer if
    there are several: from the visible columns [B, Q, K], and the positions of queries [B, Q] and
    keys [B, K], which a sliding window needs."""
    config = model.config
    window = getattr(config, "sliding_window", None)
    everything = added(visible, model.dtype)[:, None]
    if window is None:
        return everything
    near = visible & (queries[:, :, None] - keys[:, None] < window)
    if getattr(config, "layer_types", None) is None:
        return added(near, model.dtype)[:, None]
    return {"full_attention": everything, "sliding_attention": added(near, model.dtype)[:, None]}


def padded_columns(count: int) -> int:
    """The columns of the pass that has `count`."""
    return max(FEWEST_COLUMNS, round_up(count, 2))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _summed(logs: Tensor, used: Tensor) -> Tensor:
    """The log-probabilities of candidates [B, C] from those of their tokens [B, C, L]; -inf if a
    row has fewer candidates."""
    return (logs * used).sum(-1).masked_fill(used[..., 0] == 0, -torch.inf)


def _stacked(cache: Any) -> Tensor:
    """The keys and values of all layers: [layers, 2, B, A, W, D]."""
    return torch.stack([torch.stack([layer.keys, layer.values]) for layer in cache.layers])


def _cache(keys_values: Tensor) -> DynamicCache:
    return DynamicCache([(layer[0], layer[1]) for layer in keys_values])
