"""Encoder-decoder models: T5, mT5, FLAN-T5, BART. The prompt stands before the text in the encoder; the decoder writes the target."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from .device import sent
from .memory import Memory, Reading
from .rows import Losses, Text
from .speed import kernels
from .speed.packed import Packed
from .writer import Writer


class EncoderDecoder(Writer):
    """Prompt and text see each other fully in the encoder; the decoder's cross-attention sees both (Lester 2021 §2)."""

    family = "encoder-decoder"
    size_keys = (
        *(
            "d_model",
            "d_kv",
            "d_ff",
            "num_layers",
            "num_decoder_layers",
            "num_heads",
            "feed_forward_proj",
        ),
        *("relative_attention_num_buckets", "relative_attention_max_distance"),  # T5, mT5
        *(
            "encoder_layers",
            "decoder_layers",
            "encoder_ffn_dim",
            "encoder_attention_heads",
            "scale_embedding",
        ),  # BART
    )

    @classmethod
    def fits(cls, config: Any) -> bool:
        return bool(config.is_encoder_decoder)

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForSeq2SeqLM"

    def losses(self, prompt: Tensor, text: Text, targets: Sequence[Sequence[int]]) -> Losses:
        return self._losses(self.join(prompt, text), targets)

    def gradients(
        self,
        vectors: Tensor,
        text: Text,
        targets: Sequence[Sequence[int]],
        weight: Tensor,
        z: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Without a pad, where the model is a T5; dropout counts a row's columns, so with it rows keep them."""
        if not self.packs or self.packed is None or self.model.training or not self.frozen:
            return super().gradients(vectors, text, targets, weight, z)
        ids, kept = (sent(part, self.device) for part in self.collate(targets))
        return self.packed.gradients(vectors, text, ids, kept, weight, z)

    @property
    def packs(self) -> bool:  # type: ignore[override]
        """A T5's, but not on a GPU before it is compiled: launching more kernels costs more there than pads do."""
        return self.packed is not None and (self.packed.fast or self.device.type == "cpu")

    def expect(self, longest: int) -> None:
        if self.packed is not None:
            self.packed.expect(longest)

    def hurry(self, on: bool = True) -> None:
        if self.packed is not None:
            able = (
                self.device.type == "cuda"
                and kernels.triton is not None
                and self.model.config.d_kv in kernels.SHAPES
            )
            self.packed.fast = on and able

    def effort(self) -> dict[str, int]:
        return self.packed.effort() if self.packed is not None and self.packed.fast else {}

    def forget(self) -> None:
        if self.packed is not None:
            self.packed.forget()
        super().forget()

    @cached_property
    def packed(self) -> Packed | None:
        """The same frozen model over rows laid end to end."""
        return Packed(self.model, self._shifted) if Packed.fits(self.model) else None

    def _losses(self, source: dict[str, Any], targets: Sequence[Sequence[int]]) -> Losses:
        ids, mask = (sent(part, self.device) for part in self.collate(targets))
        return Losses.of(
            self.model(**source, decoder_input_ids=self._shifted(ids), use_cache=False).logits,
            ids,
            mask,
        )

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
        raise UserError(
            f"{self.name} does not tell the token its decoder starts with; set decoder_start_token_id in its config.json."
        )

    def read(self, prompt: Tensor | Memory, text: Text) -> Reading:
        """The encoder reads prompt and text; the decoder has begun, which gives it the keys and values of all that was encoded."""
        assert isinstance(prompt, Tensor)
        joined = self.join(prompt, text)
        states = self.model.get_encoder()(**joined).last_hidden_state
        begun = Reading(states[:, 0], None, joined["attention_mask"], states)
        begun.logits = self.go_on(
            begun, torch.full((len(states), 1), self.start, device=self.device)
        )[:, -1]
        return begun

    def go_on(self, reading: Reading, tokens: Tensor) -> Tensor:
        from transformers.modeling_outputs import BaseModelOutput

        source = {
            "encoder_outputs": BaseModelOutput(reading.states),
            "attention_mask": reading.mask,
        }
        read = self.model(
            **source, decoder_input_ids=tokens, past_key_values=reading.cache, use_cache=True
        )
        reading.cache = read.past_key_values
        logits: Tensor = read.logits
        return logits

    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        return (
            [list(ids) for ids in self.tokenizer(text_target=list(texts))["input_ids"]]
            if texts
            else []
        )

    def last_block(self) -> nn.Module:
        decoder = self.model.get_decoder()
        stack = next(child for child in decoder.children() if isinstance(child, nn.ModuleList))
        return stack[-1]
