"""Known architectures by name, as settings of their transformers config: sizes without weights.

No torch here, so that their names can be listed and checked at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import UserError, closest

_T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "vocab_size": 32128,
    "d_kv": 64,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
_V1_1 = _T5 | {"tie_word_embeddings": False, "feed_forward_proj": "gated-gelu"}
_V1_0 = _T5 | {"tie_word_embeddings": True, "feed_forward_proj": "relu"}
_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "max_position_embeddings": 8192,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
_BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "pad_token_id": 0}


def _t5(version: dict[str, Any], width: int, inner: int, layers: int, heads: int) -> dict[str, Any]:
    sizes = {"d_model": width, "d_ff": inner, "num_layers": layers, "num_heads": heads}
    return version | sizes


SHAPES: dict[str, dict[str, Any]] = {
    "t5-small": _t5(_V1_1, 512, 1024, 8, 6),
    "t5-base": _t5(_V1_1, 768, 2048, 12, 12),
    "t5-large": _t5(_V1_1, 1024, 2816, 24, 16),
    "t5-xl": _t5(_V1_1, 2048, 5120, 24, 32),
    "t5-xxl": _t5(_V1_1, 4096, 10240, 24, 64),
    "t5-v1.0-small": _t5(_V1_0, 512, 2048, 6, 8),
    "t5-v1.0-base": _t5(_V1_0, 768, 3072, 12, 12),
    "t5-v1.0-large": _t5(_V1_0, 1024, 4096, 24, 16),
    "llama-135m": _LLAMA
    | {
        "initializer_range": 0.04,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
    "llama-1b": _LLAMA
    | {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": True,
    },
    "llama-8b": _LLAMA
    | {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "tie_word_embeddings": False,
    },
    "bert-base": _BERT | {"initializer_range": 0.04},
    "bert-large": _BERT
    | {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
    },
    "modernbert-base": {
        "model_type": "modernbert",
        "architectures": ["ModernBertForMaskedLM"],
        "initializer_range": 0.04,
        "pad_token_id": 0,
    },
}
"""T5 v1.1, which Lester 2021 and Vu 2022 tune (LM-adapted) and FLAN-T5 shares; T5 v1.0, which Choi
2023 tunes; SmolLM2-135M, Llama 3.2 1B and Llama 3.1 8B; BERT and ModernBERT, whose other sizes are
the defaults of transformers."""


@contextmanager
def listing_shapes(name: str) -> Iterator[None]:
    """Inside, an error about the model `name` lists the known shapes, too."""
    try:
        yield
    except UserError as error:
        similar = closest(name, SHAPES)
        hint = f"Did you mean the shape {similar}? " if similar else ""
        raise UserError(f"{error.message} {hint}Known shapes are {', '.join(SHAPES)}.") from None
