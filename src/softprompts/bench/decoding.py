"""Decoding: a decoder-only model generates a fixed number of tokens.

Ours caches the prompt's keys and values; PEFT reads the prompt every time. The texts of a batch
have one length, because PEFT counts pads as positions and would compute something else than ours.
No token ends a text, so both sides generate the same number.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..artifacts.peft import UNUSED_SIZES
from ..backbone import Backbone, Causal
from ..errors import UserError
from .learners import compile_layers, original_model, peft_modes
from .measure import Say, compare_with_peft, environment, peft_library
from .models import load_model
from .settings import DecodingSettings as Settings

MIN_AGREEMENT = {"fp32": 1.0, "bf16": 0.0}
"""The least share of equal tokens. In bf16 a near tie can flip, and with it all later tokens, so
there the share is only reported."""


def measure(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """The benchmark's result, again after each batch size."""
    backbone = load_model(
        settings.model, settings.dtype, settings.device, settings.seed, settings.threads
    )
    if not isinstance(backbone, Causal):
        raise UserError(
            "This benchmark is for decoder-only models; choose llama-135m, or a folder of one."
        )
    backbone.model.generation_config.eos_token_id = backbone.tokenizer.eos_token = None
    rng = np.random.default_rng(settings.seed)
    ids = torch.tensor(rng.integers(100, backbone.vocab_size, settings.prompt))
    prompt = backbone.input_embeddings(ids)
    peers = {mode: _peer(backbone, prompt, mode) for mode in peft_modes(settings.peers, backbone)}
    batches = []
    # PEFT warns at every token; without pads it does not matter
    warnings.filterwarnings("ignore", "Position ids are not supported")
    for size in map(int, settings.batches.split(",")):
        rows: list[list[int]] = rng.integers(
            100, backbone.vocab_size, (size, settings.text)
        ).tolist()
        batches.append({"batch": size, **_compare(settings, backbone, peers, prompt, rows, say)})
        yield {
            **environment(backbone.device, backbone.dtype),
            "settings": asdict(settings),
            "batches": batches,
        }


def _peer(backbone: Backbone, prompt: Tensor, mode: str) -> Any:
    """PEFT with the same prompt."""
    library = peft_library()
    config = library.PromptTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=len(prompt), **UNUSED_SIZES
    )
    model = library.get_peft_model(original_model(backbone.model), config).eval()
    model.prompt_encoder["default"].embedding.weight.data.copy_(prompt)
    return compile_layers(model) if mode == "regions" else model


@torch.no_grad()
def _compare(
    settings: Settings,
    backbone: Causal,
    peers: Mapping[str, Any],
    prompt: Tensor,
    rows: list[list[int]],
    say: Say,
) -> dict[str, Any]:
    vectors = prompt.to(backbone.device)[None]
    cache = backbone.cache_prompts(vectors, torch.tensor([len(prompt)], device=backbone.device))
    if cache is None:
        raise UserError(f"{backbone.name} cannot cache a prompt; choose another model.")
    first = torch.zeros(len(rows), dtype=torch.long, device=backbone.device)

    def with_peft(peer: Any) -> Tensor:
        ids = torch.tensor(rows, device=backbone.device)
        generated: Tensor = peer.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=settings.new_tokens,
            do_sample=False,
            num_beams=1,
        )
        return generated[:, -settings.new_tokens :]

    def ours(prompts: Any) -> Tensor:
        return backbone.generate(prompts, backbone.embed_rows(rows), settings.new_tokens)

    calls: dict[str, Callable[[], Tensor]] = {
        "read": lambda: ours(vectors.expand(len(rows), -1, -1)),
        "remembered": lambda: ours(cache.rows(first, len(prompt))),
        **{mode: partial(with_peft, peer) for mode, peer in peers.items()},
    }
    minimum, title = MIN_AGREEMENT[backbone.dtype], f"batch {len(rows)}"
    return compare_with_peft(calls, backbone.device, settings, minimum, title, "tokens", say)
