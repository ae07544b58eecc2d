"""Decoder-only models: GPT-2, Llama, Qwen, Gemma. The prompt stands before the text, the target follows it.

For the loss rows are laid out as [prompt; text; target; pad], and only the target's columns get logits. (With pads in front, their
queries see nothing at all, and torch's fused attention on a GPU returns gradients that are not numbers for some such batches.) For
answers they are laid out as [pad; prompt; text], so that every row goes on from the same column of the cache, and a sliding window
slides over a row's own tokens. Positions are counted over each row's own tokens in both.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from .backbone import Backbone, Losses, Text, only


class Causal(Backbone):
    """A text keeps the beginning its tokenizer gives it (Gemma's and Llama's <bos>) and has no end; a target has the end of sequence."""

    family = "decoder-only"
    size_keys = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "n_embd",
        "n_layer",
        "n_head",
    )

    @classmethod
    def fits(cls, config: Any) -> bool:
        from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

        if not config.is_encoder_decoder and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
            return True
        if config.is_encoder_decoder or type(config) not in AutoModelForCausalLM._model_mapping:
            return False
        if type(config) not in AutoModelForMaskedLM._model_mapping:
            return True
        return any(
            name.endswith("ForCausalLM") or name == "BertLMHeadModel" for name in config.architectures or []
        )  # BERT and its like can be both

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForCausalLM"

    def budget(self, prompt_length: int, max_length: int, target_length: int) -> int:
        return super().budget(prompt_length, max_length, target_length) - target_length

    def join(self, prompt: Tensor, text: Text) -> dict[str, Tensor]:
        """[pad; prompt; text]: embeddings [B, P + T, H], mask, and positions counted from each row's first own token."""
        embeds, mask = text.joined(prompt)
        order = mask.argsort(dim=1, stable=True)  # pads to the front, all else in its order
        mask = mask.gather(1, order)
        embeds = embeds.gather(1, order.unsqueeze(-1).expand_as(embeds))
        return {"inputs_embeds": embeds, "attention_mask": mask, "position_ids": _positions(mask)}

    def losses(self, prompt: Tensor, text: Text, targets: Sequence[Sequence[int]]) -> Losses:
        embeds, mask = text.joined(prompt)
        ids, kept = (part.to(self.device) for part in self.collate(targets))
        with self.still():
            written = self.embedding(ids)
        embeds, whole = torch.cat([embeds, written], dim=1), torch.cat([mask, kept], dim=1)
        order = whole.argsort(dim=1, descending=True, stable=True)  # pads to the end, all else in its order
        embeds, whole = embeds.gather(1, order.unsqueeze(-1).expand_as(embeds)), whole.gather(1, order)
        before = mask.sum(1, keepdim=True) - 1 + torch.arange(ids.shape[1], device=self.device)  # the columns that tell the target [B, N]
        with only(self.model.base_model, before.clamp(max=whole.shape[1] - 1)) as told:
            asked = {"inputs_embeds": embeds, "attention_mask": whole, "position_ids": _positions(whole)}
            logits = self.model(**asked, use_cache=False).logits
        return Losses.of(told(logits), ids, kept)

    def _read(self, joined: dict[str, Tensor]) -> Any:
        """The rows up to where the answer begins, with their keys and values."""
        read = self.model(**joined, use_cache=True, logits_to_keep=1)
        if getattr(read, "past_key_values", None) is None:
            raise UserError(f"{self.name} keeps no keys and values to go on from; take a model with attention all through.")
        return read

    @torch.no_grad()
    def scores(self, prompt: Tensor, text: Text, candidates: Sequence[Sequence[int]]) -> Tensor:
        """[prompt; text] is read once; every candidate goes on from its cache. A full sliding window's cache cannot be taken back."""
        joined = self.join(prompt, text)
        window = getattr(self.model.config.get_text_config(), "sliding_window", None)
        if window is not None and joined["attention_mask"].shape[1] + max(map(len, candidates)) >= window:
            return torch.stack([-self.losses(prompt, text, [candidate] * len(prompt)).nll for candidate in candidates], dim=1)
        read = self._read(joined)
        cache, width, mask = read.past_key_values, joined["attention_mask"].shape[1], joined["attention_mask"]
        found = []
        for candidate in candidates:
            ids = torch.tensor(candidate, device=self.device).expand(len(prompt), -1)
            logits = read.logits
            if ids.shape[1] > 1:
                longer = torch.cat([mask, mask.new_ones(len(ids), ids.shape[1] - 1)], dim=1)
                asked = {"attention_mask": longer, "position_ids": _positions(longer)[:, width:], "past_key_values": cache}
                rest = self.model(input_ids=ids[:, :-1], use_cache=True, **asked).logits
                cache.crop(1 - ids.shape[1])
                logits = torch.cat([logits, rest], dim=1)
            found.append(-Losses.of(logits, ids, torch.ones_like(ids)).nll)
        return torch.stack(found, dim=1)

    @torch.no_grad()
    def generate(self, prompt: Tensor, text: Text, max_new_tokens: int) -> Tensor:
        """The prompt is read once, with the text; every further token goes on from the cache."""
        joined = self.join(prompt, text)
        read = self._read(joined)
        seen = {"mask": joined["attention_mask"], "cache": read.past_key_values}

        def step(tokens: Tensor) -> Tensor:
            seen["mask"] = torch.cat([seen["mask"], torch.ones_like(tokens)], dim=1)
            positions = _positions(seen["mask"])[:, -1:]
            asked = {"attention_mask": seen["mask"], "position_ids": positions, "past_key_values": seen["cache"]}
            logits: Tensor = self.model(input_ids=tokens, use_cache=True, **asked).logits[:, -1]
            return logits

        return self.greedy(read.logits[:, -1], step, max_new_tokens)

    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """As a word after a space is spelled, and the end of sequence."""
        end = self.tokenizer.eos_token_id
        if end is None:
            raise UserError(f"The tokenizer of {self.name} has no end of sequence; give it an eos_token in its tokenizer_config.json.")
        return [[*self.word_pieces(text), int(end)] for text in texts]

    def last_block(self) -> nn.Module:
        return self.blocks()[-1]


def _positions(mask: Tensor) -> Tensor:
    """0, 1, 2, ... over each row's own tokens; pads stand at 0."""
    return (mask.cumsum(1) - 1).clamp(min=0)
