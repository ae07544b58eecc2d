"""Encoder-decoder models: T5, mT5, FLAN-T5, BART. The prompt stands before the text in the encoder; the decoder writes the target."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from .backbone import Backbone, Losses, Text


class EncoderDecoder(Backbone):
    """Prompt and text see each other fully in the encoder; the decoder's cross-attention sees both (Lester 2021 §2)."""

    family = "encoder-decoder"
    size_keys = (
        *("d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads", "feed_forward_proj"),
        *("relative_attention_num_buckets", "relative_attention_max_distance"),  # T5, mT5
        *("encoder_layers", "decoder_layers", "encoder_ffn_dim", "encoder_attention_heads", "scale_embedding"),  # BART
    )

    @classmethod
    def fits(cls, config: Any) -> bool:
        return bool(config.is_encoder_decoder)

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForSeq2SeqLM"

    def losses(self, prompt: Tensor, text: Text, targets: Sequence[Sequence[int]]) -> Losses:
        return self._losses(self.join(prompt, text), targets)

    def _losses(self, source: dict[str, Any], targets: Sequence[Sequence[int]]) -> Losses:
        ids, mask = (part.to(self.device) for part in self.collate(targets))
        return Losses.of(self.model(**source, decoder_input_ids=self._shifted(ids), use_cache=False).logits, ids, mask)

    def _shifted(self, ids: Tensor) -> Tensor:
        """What the decoder reads while it writes `ids`: the start token, then all but the last."""
        return torch.cat([ids.new_full((len(ids), 1), self.start), ids[:, :-1]], dim=1)

    @property
    def start(self) -> int:
        """The token a decoder begins with."""
        for told in (self.model.config, self.model.generation_config):
            own = getattr(told, "decoder_start_token_id", None)
            if own is not None:
                return int(own)
        raise UserError(f"{self.name} does not tell the token its decoder starts with; set decoder_start_token_id in its config.json.")

    def _encoded(self, prompt: Tensor, text: Text) -> dict[str, Any]:
        joined = self.join(prompt, text)
        return {"encoder_outputs": self.model.get_encoder()(**joined), "attention_mask": joined["attention_mask"]}

    @torch.no_grad()
    def scores(self, prompt: Tensor, text: Text, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Each input is encoded once, whatever the number of candidates."""
        source = self._encoded(prompt, text)
        return torch.stack([-self._losses(source, [candidate] * len(prompt)).nll for candidate in candidates], dim=1)

    @torch.no_grad()
    def generate(self, prompt: Tensor, text: Text, max_new_tokens: int) -> Tensor:
        source = self._encoded(prompt, text)
        cache: dict[str, Any] = {"past_key_values": None}

        def step(tokens: Tensor) -> Tensor:
            read = self.model(**source, **cache, decoder_input_ids=tokens, use_cache=True)
            cache["past_key_values"] = read.past_key_values
            logits: Tensor = read.logits[:, -1]
            return logits

        start = torch.full((len(prompt), 1), self.start, device=self.device)
        return self.greedy(step(start), step, max_new_tokens)

    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(ids) for ids in self.tokenizer(text_target=list(texts))["input_ids"]] if texts else []

    def last_block(self) -> nn.Module:
        decoder = self.model.get_decoder()
        stack = next(child for child in decoder.children() if isinstance(child, nn.ModuleList))
        return stack[-1]
