"""Decoder-only models: GPT-2, Llama, Qwen, Gemma. The prompt stands before the text, the target follows it.

For the loss rows are laid out as [prompt; text; target; pad], and only the target's columns get logits. (With pads in front, their
queries see nothing at all, and torch's fused attention on a GPU returns gradients that are not numbers for some such batches.) For
answers they are laid out as [pad; prompt; text], so that every row goes on from the same column of the cache, and a sliding window
slides over a row's own tokens. Positions are counted over each row's own tokens in both. What stands before every text, a prompt that is
the same for all of them, is read once and remembered.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError
from .backbone import only
from .device import sent
from .memory import Memory, Reading
from .rows import Losses, Text
from .stepping import Steps
from .writer import Writer

REMEMBERS = frozenset(
    (
        *(
            "gpt2",
            "gptj",
            "gpt_neox",
            "opt",
            "bloom",
            "xglm",
            "llama",
            "mistral",
            "mixtral",
            "qwen2",
            "qwen3",
            "gemma",
        ),
        *(
            "gemma2",
            "gemma3_text",
            "phi",
            "phi3",
            "smollm3",
            "olmo",
            "olmo2",
            "starcoder2",
            "stablelm",
            "cohere",
            "granite",
        ),
    )
)
"""Models that count positions as they are told. Others (MPT, GPT-Neo) count columns, and pads between a prompt and a text would count."""
LONG = 8
"""Tokens of an answer from which recording a step is worth its time."""
TOGETHER = 64
"""Prompts that are read together to be remembered."""


class Causal(Writer):
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

        if not config.is_encoder_decoder and "AutoModelForCausalLM" in (
            getattr(config, "auto_map", None) or {}
        ):
            return True
        if config.is_encoder_decoder or type(config) not in AutoModelForCausalLM._model_mapping:
            return False
        if type(config) not in AutoModelForMaskedLM._model_mapping:
            return True
        return any(
            name.endswith("ForCausalLM") or name == "BertLMHeadModel"
            for name in config.architectures or []
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
        ids, kept = (sent(part, self.device) for part in self.collate(targets))
        with self.still():
            written = self.embedding(ids)
        embeds, whole = torch.cat([embeds, written], dim=1), torch.cat([mask, kept], dim=1)
        order = whole.argsort(
            dim=1, descending=True, stable=True
        )  # pads to the end, all else in its order
        embeds, whole = (
            embeds.gather(1, order.unsqueeze(-1).expand_as(embeds)),
            whole.gather(1, order),
        )
        before = (
            mask.sum(1, keepdim=True) - 1 + torch.arange(ids.shape[1], device=self.device)
        )  # the columns that tell the target [B, N]
        with only(self.model.base_model, before.clamp(max=whole.shape[1] - 1)) as told:
            asked = {
                "inputs_embeds": embeds,
                "attention_mask": whole,
                "position_ids": _positions(whole),
            }
            logits = self.model(**asked, use_cache=False).logits
        return Losses.of(told(logits), ids, kept)

    def read(self, prompt: Tensor | Memory, text: Text) -> Reading:
        """[pad; prompt; text]; or, where the prompt is remembered, [prompt; pad] as it was kept and [pad; text] to read."""
        if isinstance(prompt, Tensor):
            return self._read(self.join(prompt, text))
        asked, before = self.join(text.embeds[:, :0], text), prompt.mask()
        mask = torch.cat([before, asked["attention_mask"]], dim=1)
        asked |= {"attention_mask": mask, "position_ids": _positions(mask)[:, before.shape[1] :]}
        return self._read(asked | {"past_key_values": prompt.cache()})

    def _read(self, asked: dict[str, Any]) -> Reading:
        read = self.model(**asked, use_cache=True, logits_to_keep=1)
        if getattr(read, "past_key_values", None) is None:
            raise UserError(
                f"{self.name} keeps no keys and values to go on from; take a model with attention all through."
            )
        return Reading(read.logits[:, -1], read.past_key_values, asked["attention_mask"])

    def go_on(self, reading: Reading, tokens: Tensor) -> Tensor:
        reading.mask = torch.cat([reading.mask, torch.ones_like(tokens)], dim=1)
        positions = _positions(reading.mask)[:, -tokens.shape[1] :]
        asked = {
            "attention_mask": reading.mask,
            "position_ids": positions,
            "past_key_values": reading.cache,
        }
        logits: Tensor = self.model(input_ids=tokens, use_cache=True, **asked).logits
        return logits

    records: bool | None = None
    """Whether the steps of long answers are recorded and replayed; None: on a GPU."""

    @cached_property
    def steps(self) -> Steps:
        return Steps(self.model)

    def stepper(self, reading: Reading, more: int) -> Callable[[Tensor], Tensor]:
        recorded = None
        if more >= LONG and (self.device.type == "cuda" if self.records is None else self.records):
            try:
                recorded = self.steps.after(reading, more)
            except (
                RuntimeError
            ):  # a model that asks the CPU something as it goes, or no memory for it
                self.records = False
                self.forget()
        return recorded or super().stepper(reading, more)

    def forget(self) -> None:
        self.__dict__.pop("steps", None)
        super().forget()

    @torch.no_grad()
    def remember(self, vectors: Tensor, given: Tensor) -> Memory | None:
        """Each prompt is read by itself, from the first position on. Positions that stretch with the text's length forbid it."""
        stretched = ("dynamic", "longrope")
        if (
            vectors.shape[1] == 0
            or self.model.config.model_type not in REMEMBERS
            or any(
                kind in str(getattr(self.model.config, "rope_parameters", None))
                for kind in stretched
            )
        ):
            return None
        mask = (
            torch.arange(vectors.shape[1], device=self.device) < given[:, None].clamp(min=1)
        ).long()
        embeds = vectors.to(self.model.dtype)
        some = [slice(begin, begin + TOGETHER) for begin in range(0, len(vectors), TOGETHER)]
        read = [
            {
                "inputs_embeds": embeds[s],
                "attention_mask": mask[s],
                "position_ids": _positions(mask[s]),
            }
            for s in some
        ]
        return Memory.of([self._read(asked).cache for asked in read], given)

    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """As a word after a space is spelled, and the end of sequence."""
        end = self.tokenizer.eos_token_id
        if end is None:
            raise UserError(
                f"The tokenizer of {self.name} has no end of sequence; give it an eos_token in its tokenizer_config.json."
            )
        return [[*self.word_pieces(text), int(end)] for text in texts]

    def last_block(self) -> nn.Module:
        return self.blocks()[-1]


def _positions(mask: Tensor) -> Tensor:
    """0, 1, 2, ... over each row's own tokens; pads stand at 0."""
    return (mask.cumsum(1) - 1).clamp(min=0)
