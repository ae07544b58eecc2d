"""Encoder-decoder models: T5, mT5, FLAN-T5, BART. The prompt stands before the text in the encoder; the decoder writes the target."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .backbone import Backbone, Losses, Text


class EncoderDecoder(Backbone):
    """Prompt and text see each other fully in the encoder; the decoder's cross-attention sees both (Lester 2021 §2)."""

    auto_class = "AutoModelForSeq2SeqLM"

    def join(self, prompt: Tensor, text: Text) -> dict[str, Tensor]:
        """[prompt; text; pad] as the encoder's input: [B, P + T, H]. The prompt stays float32 until here."""
        embeds = torch.cat([prompt.to(text.embeds), text.embeds], dim=1)
        mask = torch.cat([text.mask.new_ones(prompt.shape[:2]), text.mask], dim=1)
        return {"inputs_embeds": embeds, "attention_mask": mask}

    def losses(self, prompt: Tensor, text: Text, targets: Sequence[Sequence[int]]) -> Losses:
        return self._losses(self.join(prompt, text), targets)

    def _losses(self, source: dict[str, Any], targets: Sequence[Sequence[int]]) -> Losses:
        ids, mask = (part.to(self.device) for part in self.collate(targets))
        logits = self.model(**source, decoder_input_ids=self._shifted(ids), use_cache=False).logits.float()  # [B, N, V]
        normaliser = logits.logsumexp(-1)
        nll = normaliser - logits.gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        return Losses((nll * mask).sum(1), (normaliser.square() * mask).sum(1), mask.sum(1))

    def _shifted(self, ids: Tensor) -> Tensor:
        """What the decoder reads while it writes `ids`: the start token, then all but the last."""
        start = ids.new_full((len(ids), 1), self.model.config.decoder_start_token_id)
        return torch.cat([start, ids[:, :-1]], dim=1)

    @torch.no_grad()
    def scores(self, prompt: Tensor, text: Text, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Each input is encoded once, whatever the number of candidates."""
        joined = self.join(prompt, text)
        source = {"encoder_outputs": self.model.get_encoder()(**joined), "attention_mask": joined["attention_mask"]}
        return torch.stack([-self._losses(source, [candidate] * len(prompt)).nll for candidate in candidates], dim=1)

    @torch.no_grad()
    def generate(self, prompt: Tensor, text: Text, max_new_tokens: int) -> Tensor:
        from transformers import GenerationConfig

        own = self.model.generation_config  # a model's beams and penalties are not ours: only its special tokens are
        tokens = {key: getattr(own, key, None) for key in ("decoder_start_token_id", "eos_token_id", "pad_token_id", "forced_bos_token_id")}
        greedy = GenerationConfig(max_new_tokens=max_new_tokens, do_sample=False, num_beams=1, use_cache=True, **tokens)
        generated: Tensor = self.model.generate(**self.join(prompt, text), generation_config=greedy)
        return generated

    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(ids) for ids in self.tokenizer(text_target=list(texts))["input_ids"]]

    def last_block(self) -> nn.Module:
        decoder = self.model.get_decoder()
        stack = next(child for child in decoder.children() if isinstance(child, nn.ModuleList))
        return stack[-1]

    @property
    def longest(self) -> int | None:
        """T5 knows only distances; BART has learned positions."""
        return getattr(self.model.config, "max_position_embeddings", None)
