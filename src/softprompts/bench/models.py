"""Models to measure on: real ones by folder, and the shapes of known ones with random weights, which take no download."""

from typing import Any

import torch

from ..backbone import Backbone, Causal, EncoderDecoder, load_backbone
from ..backbone.backbone import DTYPES
from ..backbone.load import EMBEDDED, named_device, named_dtype

T5 = {
    "t5-base": {
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 12,
        "num_decoder_layers": 12,
        "num_heads": 12,
    },
    "t5-large": {
        "d_model": 1024,
        "d_kv": 64,
        "d_ff": 2816,
        "num_layers": 24,
        "num_decoder_layers": 24,
        "num_heads": 16,
    },
}
"""T5 v1.1's sizes."""
LLAMA = {
    "llama-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "initializer_range": 0.04,
    }
}
"""SmolLM2-135M's sizes."""


def load(name: str, dtype: str, device: str, seed: int) -> Backbone:
    """A backbone by the name of a shape, or by any name that `load_backbone` knows. The same seed gives the same random weights."""
    if name not in T5 and name not in LLAMA:
        return load_backbone(name, dtype, device)
    import transformers

    place = named_device(device)
    kind = DTYPES[named_dtype(dtype, place)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(EMBEDDED["t5-tiny"])
    torch.manual_seed(seed)
    with place:
        return _t5(name, kind, tokenizer) if name in T5 else _llama(name, kind, tokenizer)


def _t5(name: str, dtype: torch.dtype, tokenizer: Any) -> Backbone:
    import transformers

    marks = {
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
    }
    config = transformers.T5Config(
        vocab_size=32128, **T5[name], **marks, feed_forward_proj="gated-gelu"
    )
    model = transformers.AutoModelForSeq2SeqLM.from_config(config, dtype=dtype)
    model.lm_head.weight = torch.nn.Parameter(
        torch.randn_like(model.lm_head.weight)
    )  # transformers ties it unless a checkpoint does not
    return EncoderDecoder(model, tokenizer, name)


def _llama(name: str, dtype: torch.dtype, tokenizer: Any) -> Backbone:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=49152, **LLAMA[name], pad_token_id=0, eos_token_id=1, tie_word_embeddings=True
    )
    return Causal(
        transformers.AutoModelForCausalLM.from_config(config, dtype=dtype), tokenizer, name
    )
