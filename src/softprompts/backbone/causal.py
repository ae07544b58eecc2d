"""Decoder-only models: GPT-2, Llama, Qwen, Gemma. The prompt precedes the text, the target follows.

For the loss, rows are [prompt; text; target; pad], and only the target's columns get logits. (With
left padding, the pads' queries attend to nothing, and torch's fused attention on a GPU returns NaN
gradients for some such batches.) For answers, rows are [pad; prompt; text], so that all of them
continue from the same column of the cache, and a sliding window slides over a row's own tokens.
Positions always count a row's own tokens. A prompt that is the same for all texts is processed once
and its keys and values are reused.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, cast

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import DynamicCache

from ..errors import UserError
from .batch import Losses, Text, to_device
from .families import register_family
from .generative import Generative
from .kv_cache import DecodingState, PromptCache, stretches_positions
from .modules import only_columns
from .speed.decoding import DecodingGraphs
from .speed.packed_rows import CAUSAL_TYPES, COMPOSITE_TYPES, PackedRows

CACHES_PROMPTS = frozenset(
    {
        *("gpt2", "gptj", "gpt_neox", "opt", "bloom", "xglm", "llama", "mistral", "mixtral"),
        *("qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3", "smollm3"),
        *("olmo", "olmo2", "starcoder2", "stablelm", "cohere", "granite"),
    }
)
"""Model types that use the positions they are given. Others (MPT, GPT-Neo) count columns, so that
pads between a cached prompt and a text would count too."""
MIN_RECORDED_TOKENS = 8  # of an answer, for recording its decoding step to pay off
CACHED_TOGETHER = 64  # prompts that are processed together to be cached


@register_family("decoder-only")
class Causal(Generative):
    """A text keeps its tokenizer's <bos> (Gemma, Llama) and gets no end; a target gets an <eos>."""

    peft_task_type = "CAUSAL_LM"
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
        if config.is_encoder_decoder:
            return False
        if "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
            return True
        if type(config) not in transformers.AutoModelForCausalLM._model_mapping:
            return False
        if type(config) not in transformers.AutoModelForMaskedLM._model_mapping:
            return True
        return any(  # BERT and its relatives can be both
            name.endswith("ForCausalLM") or name == "BertLMHeadModel"
            for name in config.architectures or []
        )

    @classmethod
    def auto_class(cls, config: Any) -> str:
        return "AutoModelForCausalLM"

    def text_budget(self, prompt_length: int, max_length: int, target_length: int) -> int:
        return super().text_budget(prompt_length, max_length, target_length) - target_length

    def join(self, prompt: Tensor, text: Text) -> dict[str, Tensor]:
        """[pad; prompt; text]: embeddings [B, P + T, H], mask, and positions without the pads."""
        return _inputs(*text.with_prompt(prompt), pads_last=False)

    def losses(self, prompt: Tensor, text: Text, targets: Sequence[Sequence[int]]) -> Losses:
        embeds, text_mask = text.with_prompt(prompt)
        ids, target_mask = (to_device(part, self.device) for part in self.collate(targets))
        with self.no_grad_if_frozen():
            target_embeds = self.embedding(ids)
        embeds = torch.cat([embeds, target_embeds], dim=1)
        mask = torch.cat([text_mask, target_mask], dim=1)
        offsets = torch.arange(ids.shape[1], device=self.device)
        # the columns whose logits predict the target
        columns = (text_mask.sum(1, keepdim=True) - 1 + offsets).clamp(max=mask.shape[1] - 1)
        with only_columns(self.model.base_model, columns) as select:
            logits = self.model(**_inputs(embeds, mask, pads_last=True), use_cache=False).logits
        return Losses.from_logits(select(logits), ids, target_mask)

    def packed_options(
        self, vectors: Tensor, text: Text, targets: Sequence[Sequence[int]]
    ) -> dict[str, Any]:
        return {"target_lengths": [len(target) for target in targets]}

    @cached_property
    def packed(self) -> PackedRows | None:
        if self.model.config.model_type not in CAUSAL_TYPES | COMPOSITE_TYPES:
            return None
        return PackedRows(self.model, causal=True)

    @property
    def reads_prompts_once(self) -> bool:
        return self.packs_rows

    def prefill(self, prompt: Tensor | PromptCache, text: Text) -> DecodingState:
        """[pad; prompt; text]; or, with a cached prompt, the cache's [prompt; pad], [pad; text]."""
        if isinstance(prompt, Tensor):
            return self._prefill(self.join(prompt, text))
        inputs, prompt_mask = self.join(text.embeds[:, :0], text), prompt.mask()
        mask = torch.cat([prompt_mask, inputs["attention_mask"]], dim=1)
        positions = _positions(mask)[:, prompt_mask.shape[1] :]
        inputs |= {"attention_mask": mask, "position_ids": positions}
        return self._prefill(inputs | {"past_key_values": DynamicCache(prompt.layers)})

    def _prefill(self, inputs: dict[str, Any]) -> DecodingState:
        output = self.model(**inputs, use_cache=True, logits_to_keep=1)
        if getattr(output, "past_key_values", None) is None:
            raise UserError(
                f"{self.name} has no key-value cache to decode with; "
                "use a model with attention in every layer."
            )
        return DecodingState(output.logits[:, -1], output.past_key_values, inputs["attention_mask"])

    def extend(self, state: DecodingState, tokens: Tensor) -> Tensor:
        state.mask = torch.cat([state.mask, torch.ones_like(tokens)], dim=1)
        output = self.model(
            input_ids=tokens,
            attention_mask=state.mask,
            position_ids=_positions(state.mask)[:, -tokens.shape[1] :],
            past_key_values=state.cache,
            use_cache=True,
        )
        return cast(Tensor, output.logits)

    @cached_property
    def records_decoding(self) -> bool:
        """Whether the decoding steps of long answers are recorded and replayed."""
        return self.device.type == "cuda" and not self.is_spread

    @cached_property
    def decoding_graphs(self) -> DecodingGraphs:
        return DecodingGraphs(self.model)

    def decoding_step(self, state: DecodingState, steps: int) -> Callable[[Tensor], Tensor]:
        recorded = None
        if steps >= MIN_RECORDED_TOKENS and self.records_decoding:
            try:
                recorded = self.decoding_graphs.step_after(state, steps)
            except RuntimeError:  # the model waits for the CPU in its step, or memory ran out
                self.records_decoding = False
                self.free_memory()
        return recorded or super().decoding_step(state, steps)

    def free_memory(self) -> None:
        self.__dict__.pop("decoding_graphs", None)
        super().free_memory()

    @torch.no_grad()
    def cache_prompts(self, vectors: Tensor, lengths: Tensor) -> PromptCache | None:
        """Each prompt is processed by itself, at the first positions."""
        config = self.model.config
        fits = config.model_type in CACHES_PROMPTS and not stretches_positions(config)
        if vectors.shape[1] == 0 or not fits:
            return None
        columns = torch.arange(vectors.shape[1], device=self.device)
        mask = (columns < lengths[:, None].clamp(min=1)).long()
        inputs = {
            "inputs_embeds": vectors.to(self.model.dtype),
            "attention_mask": mask,
            "position_ids": _positions(mask),
        }
        parts = [slice(i, i + CACHED_TOGETHER) for i in range(0, len(vectors), CACHED_TOGETHER)]
        caches = [self._prefill({n: t[part] for n, t in inputs.items()}).cache for part in parts]
        return PromptCache.from_caches(caches, lengths)

    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """As words after a space, with the end of sequence."""
        end = self.tokenizer.eos_token_id
        if end is None:
            raise UserError(
                f"The tokenizer of {self.name} has no end of sequence; "
                "set eos_token in its tokenizer_config.json."
            )
        return [[*self.word_pieces(text), int(end)] for text in texts]


def _inputs(embeds: Tensor, mask: Tensor, pads_last: bool) -> dict[str, Tensor]:
    """Rows as the model takes them, with the pads moved to one end and the rest in order."""
    order = mask.argsort(dim=1, descending=pads_last, stable=True)
    mask = mask.gather(1, order)
    embeds = embeds.gather(1, order.unsqueeze(-1).expand_as(embeds))
    return {"inputs_embeds": embeds, "attention_mask": mask, "position_ids": _positions(mask)}


def _positions(mask: Tensor) -> Tensor:
    """0, 1, 2, ... over each row's own tokens; 0 for pads."""
    return (mask.cumsum(1) - 1).clamp(min=0)
