"""A small corpus, a tokenizer trained on it, and a config that learns it in seconds."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from softprompts.pretraining.config import PretrainConfig
from softprompts.pretraining.tokenizer import train_tokenizer

WORDS = (
    "the a cat dog bird fish sat ran flew swam on under over by mat tree house river and then it "
    "slept ate sang"
)


def texts(count: int = 60, seed: int = 0) -> list[str]:
    rng, words = random.Random(seed), WORDS.split()
    return [
        " ".join(rng.choice(words) for _ in range(rng.randint(20, 60))) + "." for _ in range(count)
    ]


@pytest.fixture(autouse=True)
def _temporary_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return train_tokenizer(texts(), 200, 20)


@pytest.fixture(scope="session")
def tokenizer_folder(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def text_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n\n".join(texts()) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tasks_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "tasks.jsonl"
    rows = [
        ["last word", text.rstrip("."), text.rstrip(".").split()[-1]] for text in texts(40, seed=1)
    ]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


SMALL: dict[str, Any] = {
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 32,
    "num_layers": 1,
    "num_decoder_layers": 1,
    "num_heads": 2,
}


@pytest.fixture
def make_config(
    text_file: Path, tasks_file: Path, tokenizer_folder: Path
) -> Callable[..., PretrainConfig]:
    def make(**settings: Any) -> PretrainConfig:
        defaults: dict[str, Any] = {
            "text": [str(text_file)],
            "tasks": [str(tasks_file)],
            "tokenizer": str(tokenizer_folder),
            **SMALL,
            "input_length": 24,
            "batch_tokens": 320,
            "steps": 6,
            "warmup": 2,
            "log_every": 2,
            "device": "cpu",
            "processes": 1,
            "objectives": {"span": 0.5, "prefix": 0.25, "tasks": 0.25},
        }
        return PretrainConfig(**{**defaults, **settings})

    return make
