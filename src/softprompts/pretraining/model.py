"""The T5 that learns: a new one of v1.1's kind, or an existing one to go on from; and the folder it ends in."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ..errors import UserError
from ..files import read_json, share, write_json
from .config import SIZES, PretrainConfig

FAMILY = ("t5", "mt5", "umt5")
ROUND = 128
"""A vocabulary is rounded up to a multiple of this, which matrix units like."""


def new_model(config: PretrainConfig, words: int) -> Any:
    """A T5 v1.1 (gated GELU) for a vocabulary of `words`, its weights drawn by the seed."""
    from transformers import T5Config, T5ForConditionalGeneration

    settings = T5Config(
        vocab_size=-(-words // ROUND) * ROUND, feed_forward_proj="gated-gelu", dropout_rate=config.dropout, tie_word_embeddings=config.tie,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **config.shape,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        model = T5ForConditionalGeneration._from_config(
            settings, attn_implementation=config.attention
        )
        if not config.tie:  # transformers 5 ties whatever the config says
            head = torch.nn.Parameter(
                torch.randn_like(model.shared.weight) * settings.d_model**-0.5
            )
            model.lm_head.weight = head
    return model


def load_model(config: PretrainConfig, words: int) -> Any:
    """The model of `config.from_model`, its weights as fp32."""
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    from ..backbone.load import check_whole, located, quiet, unloadable

    name = str(config.from_model)
    try:
        settings = AutoConfig.from_pretrained(located(name))
        if settings.model_type not in FAMILY:
            raise UserError(
                f"{name} is a {settings.model_type} model; pretraining goes on from a T5."
            )
        settings.dropout_rate = config.dropout
        with quiet():
            model, told = AutoModelForSeq2SeqLM.from_pretrained(
                located(name),
                config=settings,
                dtype=torch.float32,
                attn_implementation=config.attention,
                output_loading_info=True,
            )
        check_whole(name, told["missing_keys"])
    except UserError:
        raise
    except Exception as error:  # as many kinds as for a backbone
        raise unloadable(name, error) from None
    if model.get_input_embeddings().num_embeddings < words:
        raise UserError(
            f"The tokenizer has {words} tokens, and the model {name} fewer; take the tokenizer that belongs to it."
        )
    return model


def tied(model: Any) -> bool:
    """Whether the embeddings are the output's matrix too."""
    return model.lm_head.weight is model.get_input_embeddings().weight


def sizes(model: Any) -> dict[str, Any]:
    """What the model is, whatever the settings say."""
    config = model.config
    kind = {
        "model_type": config.model_type,
        "feed_forward_proj": config.feed_forward_proj,
        "tie": tied(model),
    }
    return {
        **kind,
        "vocab_size": config.vocab_size,
        **{name: getattr(config, name) for name in SIZES["tiny"]},
    }


def write_model(model: Any, tokenizer: Any, folder: Path, dtype: torch.dtype) -> None:
    """A Hugging Face folder; every file is moved in whole, the config last."""
    from ..backbone.load import quiet

    one = tied(model)

    def save(beside: Path) -> None:
        with quiet():
            model.to(dtype).save_pretrained(beside)
            tokenizer.save_pretrained(beside)
        settings = read_json(beside / "config.json")
        write_json(beside / "config.json", {**settings, "tie_word_embeddings": one})

    _moved_in(folder, save, "config.json")


def write_tokenizer(tokenizer: Any, folder: Path) -> None:
    """The tokenizer's part of the folder."""
    _moved_in(folder, tokenizer.save_pretrained, "tokenizer_config.json")


def _moved_in(folder: Path, save: Callable[[Path], object], last: str) -> None:
    """What `save` writes, written beside and moved in file by file, `last` last."""
    beside = folder / f".new.{os.getpid()}"
    try:
        save(beside)
        share(beside)
        for file in sorted(beside.iterdir(), key=lambda file: file.name == last):
            os.replace(file, folder / file.name)
    except (
        OSError,
        SafetensorError,
    ) as error:  # the latter is how safetensors tells of a full disk
        raise UserError(
            f"{folder} cannot be written ({getattr(error, 'strerror', None) or error}); make room, and give the same command again."
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
