"""Models to measure: real ones by folder, and known architectures with random weights."""

import torch
import transformers

from ..backbone import Backbone, Causal, EncoderDecoder, load_backbone
from ..backbone.backbone import DTYPES
from ..backbone.load import BUNDLED_MODELS, resolve_device, resolve_dtype

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
LLAMA = {
    "llama-135m": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "max_position_embeddings": 8192,
        "initializer_range": 0.04,
        "vocab_size": 49152,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
    }
}
"""The sizes of SmolLM2-135M."""


def load_model(name: str, dtype: str, device: str, seed: int, threads: int = 0) -> Backbone:
    """An architecture with random weights from the seed, or any model of `load_backbone`.

    On a CPU, torch uses `threads` from now on; 0: its default.
    """
    if threads:
        torch.set_num_threads(threads)
    if name not in T5 and name not in LLAMA:
        return load_backbone(name, dtype, device)
    target = resolve_device(device)
    torch_dtype = DTYPES[resolve_dtype(dtype, target)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(BUNDLED_MODELS["t5-tiny"])
    torch.manual_seed(seed)
    with target:
        if name in LLAMA:
            llama = transformers.LlamaConfig(**LLAMA[name])
            model = transformers.AutoModelForCausalLM.from_config(llama, dtype=torch_dtype)
            return Causal(model, tokenizer, name)
        model = transformers.AutoModelForSeq2SeqLM.from_config(
            transformers.T5Config(**T5[name]), dtype=torch_dtype
        )
        # transformers ties the head unless a checkpoint unties it
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
        return EncoderDecoder(model, tokenizer, name)
