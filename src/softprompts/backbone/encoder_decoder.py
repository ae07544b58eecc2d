"""Encoder-decoder models: T5, mT5, FLAN-T5, BART.

The prompt precedes the text in the encoder; the decoder generates the target.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor
from transformers.modeling_outputs import MoeModelOutputWithPast

from ..errors import UserError
from .batch import Losses, Text, to_device
from .families import register_family
from .generative import Generative
from .kv_cache import DecodingState, PromptCache
from .speed.packed import MODEL_TYPES, PackedT5


@register_family("encoder-decoder")
class EncoderDecoder(Generative):
    """Prompt and text attend to each other in the encoder; the decoder's cross-attention sees both
    (Lester 2021 §2)."""

    peft_task_type = "SEQ_2_SEQ_LM"
    size_keys = (
        "d_model",
        "d_kv",
        "d_ff",
        "num_layers",
        "num_decoder_layers",
        "num_heads",
        "feed_forward_proj",
        # T5, mT5
        "relative_attention_num_buckets",
        "relative_attention_max_distance",
        # BART
        "encoder_layers",
        "decoder_layers",
        "encoder_ffn_dim",
        "encoder_attention_heads",
        "scale_embedding",
    )

    @classmethod
    def fits(cls, config: Any) -> bool:
        return bool(config.is_encoder_decoder)

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForSeq2SeqLM"

    def losses(self, prompt: Tensor, text: Text, targets: Sequence[Sequence[int]]) -> Losses:
        ids, mask = (to_device(part, self.device) for part in self.collate(targets))
        inputs = self.join(prompt, text)
        decoder_ids = self._shifted(ids)
        logits = self.model(**inputs, decoder_input_ids=decoder_ids, use_cache=False).logits
        return Losses.from_logits(logits, ids, mask)

    @cached_property
    def packed(self) -> PackedT5 | None:
        return (
            PackedT5(self.model, self._shifted)
            if self.model.config.model_type in MODEL_TYPES
            else None
        )

    def _shifted(self, ids: Tensor) -> Tensor:
        """The decoder's input for the target `ids`: the start token, then all but the last."""
        return torch.cat([ids.new_full((len(ids), 1), self.decoder_start_id), ids[:, :-1]], dim=1)

    @property
    def decoder_start_id(self) -> int:
        for config in (self.model.config, self.model.generation_config):
            start = getattr(config, "decoder_start_token_id", None)
            if start is not None:
                return int(start)
        raise UserError(
            f"{self.name} does not say which token its decoder starts with; "
            "set decoder_start_token_id in its config.json."
        )

    def prefill(self, prompt: Tensor | PromptCache, text: Text) -> DecodingState:
        """Encode prompt and text, and decode the start token, which fills the cross-attention's
        cache."""
        assert isinstance(prompt, Tensor)
        inputs = self.join(prompt, text)
        states = self.model.get_encoder()(**inputs).last_hidden_state
        state = DecodingState(states[:, 0], None, inputs["attention_mask"], states)
        start = torch.full((len(states), 1), self.decoder_start_id, device=self.device)
        state.logits = self.extend(state, start)[:, -1]
        return state

    def extend(self, state: DecodingState, tokens: Tensor) -> Tensor:
        output = self.model(
            encoder_outputs=MoeModelOutputWithPast(state.states),  # with Switch's router_logits
            attention_mask=state.mask,
            decoder_input_ids=tokens,
            past_key_values=state.cache,
            use_cache=True,
        )
        state.cache = output.past_key_values
        return cast(Tensor, output.logits)

    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        return [list(ids) for ids in self.tokenizer(text_target=list(texts))["input_ids"]]
