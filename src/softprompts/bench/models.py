"""Models to measure: real ones by folder, and known architectures with random weights."""

from typing import Any

import torch
import transformers

from ..backbone import Backbone, Causal, EncoderDecoder, Masked, load_backbone
from ..backbone.load import BUNDLED_MODELS, compute_dtype, resolve_device, resolve_dtype
from ..backbone.quantized import QUANTIZED, quantize_model

T5_COMMON = {
    "vocab_size": 32128,
    "d_kv": 64,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "feed_forward_proj": "gated-gelu",
}
T5 = {
    "t5-base": T5_COMMON | {"d_model": 768, "d_ff": 2048, "num_layers": 12, "num_heads": 12},
    "t5-large": T5_COMMON | {"d_model": 1024, "d_ff": 2816, "num_layers": 24, "num_heads": 16},
}
"""The sizes of T5 v1.1."""
LLAMA_COMMON = {
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
LLAMA: dict[str, dict[str, Any]] = {
    "llama-135m": {
        "initializer_range": 0.04,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "llama-1b": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "llama-8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    },
}
"""The sizes of SmolLM2-135M, Llama 3.2 1B and Llama 3.1 8B."""
MASK = 99  # any token that random texts do not have
ENCODERS = {
    "bert-base": transformers.BertConfig,
    "modernbert-base": transformers.ModernBertConfig,
}
"""The sizes of these are the defaults of transformers."""


def load_model(name: str, dtype: str, device: str, seed: int, threads: int = 0) -> Backbone:
    """An architecture with random weights from the seed, or any model of `load_backbone`.

    On a CPU, torch uses `threads` from now on; 0: its default.
    """
    if threads:
        torch.set_num_threads(threads)
    if name not in {**T5, **LLAMA, **ENCODERS}:
        return load_backbone(name, dtype, device)
    target = resolve_device(device)
    dtype = resolve_dtype(dtype, target)
    torch.manual_seed(seed)
    with target:
        backbone = _random_backbone(name, compute_dtype(dtype, target))
    if dtype in QUANTIZED:
        quantize_model(backbone.model, QUANTIZED[dtype], target)
        backbone.quantized = dtype
    return backbone


def _random_backbone(name: str, dtype: torch.dtype) -> Backbone:
    tokenizer = transformers.AutoTokenizer.from_pretrained(BUNDLED_MODELS["t5-tiny"])
    if name in LLAMA:
        llama = transformers.LlamaConfig(**LLAMA_COMMON, **LLAMA[name])
        model = transformers.AutoModelForCausalLM.from_config(llama, dtype=dtype)
        return Causal(model, tokenizer, name)
    if name in ENCODERS:
        encoder = ENCODERS[name](initializer_range=0.04, pad_token_id=0)
        model = transformers.AutoModelForMaskedLM.from_config(encoder, dtype=dtype)
        tokenizer.mask_token = tokenizer.convert_ids_to_tokens(MASK)
        return Masked(model, tokenizer, name)
    t5 = transformers.T5Config(**T5[name])
    model = transformers.AutoModelForSeq2SeqLM.from_config(t5, dtype=dtype)
    # transformers ties the head unless a checkpoint unties it
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    return EncoderDecoder(model, tokenizer, name)
