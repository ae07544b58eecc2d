"""Models the tests share: the embedded t5-tiny, and tiny random T5 and BART that take milliseconds."""

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

from softprompts.backbone import Backbone, EncoderDecoder, load_backbone

torch.set_num_threads(1)

GOLDEN = Path(__file__).parent / "golden"
DATA = Path(os.environ.get("SOFTPROMPTS_DATA", Path(__file__).parents[2] / "shared" / "data"))


def golden(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((GOLDEN / f"{name}.json").read_text())
    return read


def tokenizer() -> Any:
    """t5-tiny's tokenizer: real words for random models."""
    from transformers import AutoTokenizer

    from softprompts.backbone.load import EMBEDDED

    return AutoTokenizer.from_pretrained(EMBEDDED["t5-tiny"])


SIZES = {"vocab_size": 16128, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4}
TOKENS = {"decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}


def random_t5(**overrides: Any) -> EncoderDecoder:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    config = T5Config(**(SIZES | overrides), **TOKENS, feed_forward_proj="gated-gelu")
    return EncoderDecoder(T5ForConditionalGeneration(config), tokenizer(), "random-t5")


def random_bart() -> EncoderDecoder:
    from transformers import BartConfig, BartForConditionalGeneration

    torch.manual_seed(0)
    config = BartConfig(
        vocab_size=16128, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=64, scale_embedding=True, init_std=0.5,
        pad_token_id=0, bos_token_id=2, eos_token_id=1, decoder_start_token_id=1, forced_eos_token_id=1,
    )  # fmt: skip
    return EncoderDecoder(BartForConditionalGeneration(config), tokenizer(), "random-bart")


@pytest.fixture(scope="session")
def t5() -> Backbone:
    return random_t5()


@pytest.fixture(scope="session")
def mt5() -> Backbone:
    from transformers import MT5Config, MT5ForConditionalGeneration

    torch.manual_seed(0)
    config = MT5Config(**SIZES, **TOKENS, tie_word_embeddings=False)
    return EncoderDecoder(MT5ForConditionalGeneration(config), tokenizer(), "random-mt5")


@pytest.fixture(scope="session")
def bart() -> Backbone:
    return random_bart()


@pytest.fixture(scope="session")
def tiny() -> Backbone:
    """The embedded default, as it ships."""
    return load_backbone(dtype="fp32", device="cpu")


TOY = [
    ("the food was great and the staff kind", "positive"),
    ("what a lovely film", "positive"),
    ("best purchase I made this year, works every day", "positive"),
    ("I love it", "positive"),
    ("broken after a week and nobody answers", "negative"),
    ("dull, long and badly acted", "negative"),
    ("never again", "negative"),
    ("the worst meal of my life", "negative"),
]


@pytest.fixture
def toy_csv(tmp_path: Path) -> Path:
    """A small file a newcomer might bring: 24 rows, quotes and commas inside."""
    path = tmp_path / "reviews.csv"
    rows = [f'"{text}, visit {visit}",{label}' for visit in range(3) for text, label in TOY]
    path.write_text("review,mood\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return path
