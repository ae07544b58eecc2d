"""The T5 to train, a new one like v1.1 or an existing one; and writing it to its folder."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, T5Config, T5ForConditionalGeneration

from ..backbone.load import check_missing_weights, load_errors, model_path, quiet_transformers
from ..errors import UserError
from ..files import read_json, staged_files, write_json
from .config import DIMENSIONS, PretrainConfig

MODEL_TYPES = ("t5", "mt5", "umt5")
VOCABULARY_MULTIPLE = 128
"""Vocabularies are rounded up to a multiple of this, for tensor cores."""
_DISK_FULL = "free some disk space, then run the command again"


def new_model(config: PretrainConfig, vocabulary: int) -> Any:
    """A T5 v1.1 (gated GELU) for a tokenizer of `vocabulary` tokens, with random weights."""
    model_config = T5Config(
        vocab_size=-(-vocabulary // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE,
        feed_forward_proj="gated-gelu",
        dropout_rate=config.dropout,
        tie_word_embeddings=config.tie,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
        **config.dimensions,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = T5ForConditionalGeneration._from_config(
            model_config, attn_implementation=config.attention
        )
        if not config.tie:  # transformers 5 ties the head whatever the config says
            scale = model_config.d_model**-0.5
            model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight) * scale)
    return model


def load_model(config: PretrainConfig, vocabulary: int) -> Any:
    """The model `config.from_model` in fp32, checked against a tokenizer of `vocabulary` tokens."""
    name = str(config.from_model)
    with load_errors(name):
        model_config = AutoConfig.from_pretrained(model_path(name))
        if model_config.model_type not in MODEL_TYPES:
            raise UserError(
                f"{name} is a {model_config.model_type} model; only a T5 can be trained further."
            )
        model_config.dropout_rate = config.dropout
        with quiet_transformers():
            model, loading = AutoModelForSeq2SeqLM.from_pretrained(
                model_path(name),
                config=model_config,
                dtype=torch.float32,
                attn_implementation=config.attention,
                output_loading_info=True,
            )
        check_missing_weights(name, loading["missing_keys"])
    if model.get_input_embeddings().num_embeddings < vocabulary:
        raise UserError(
            f"The tokenizer has {vocabulary} tokens, and the model {name} fewer; use the "
            "tokenizer that belongs to the model."
        )
    return model


def is_tied(model: Any) -> bool:
    """Whether embeddings and output share one matrix."""
    return model.lm_head.weight is model.get_input_embeddings().weight


def describe(model: Any) -> dict[str, Any]:
    """The model's architecture as it is, whatever the settings say."""
    config = model.config
    return {
        "model_type": config.model_type,
        "feed_forward_proj": config.feed_forward_proj,
        "tie": is_tied(model),
        "vocab_size": config.vocab_size,
        **{name: getattr(config, name) for name in DIMENSIONS},
    }


def write_model(model: Any, tokenizer: Any, folder: Path, dtype: torch.dtype) -> None:
    """Write a Hugging Face folder; each file appears complete, the config last."""
    tied = is_tied(model)
    with staged_files(folder, "config.json", _DISK_FULL) as staged:
        with quiet_transformers():
            model.to(dtype).save_pretrained(staged)
            tokenizer.save_pretrained(staged)
        path = staged / "config.json"
        write_json(path, {**read_json(path), "tie_word_embeddings": tied})


def write_tokenizer(tokenizer: Any, folder: Path) -> None:
    with staged_files(folder, "tokenizer_config.json", _DISK_FULL) as staged:
        tokenizer.save_pretrained(staged)
