"""A library with a prompt of every kind, and one server with a studio for all tests."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from softprompts.backbone import Backbone
from softprompts.config import run_config, sections
from softprompts.config.serve import ServeSettings
from softprompts.library.library import Library
from softprompts.serving.async_engine import AsyncEngine
from softprompts.tuning.tune import tune_config

from ...conftest import write_toy
from ..http_server import Running, running
from ..test_engine import MOODS, tuned

STUDIES = Path(__file__).parents[3] / "results"
PAGES = ("", "/map", "/playground", "/sources", "/tune", "/studies", "/studies/spot-small")
TEXT = "the food was great"
ALL = "a-key-for-all-prompts"


def toy_settings(folder: Path, **settings: Any) -> dict[str, Any]:
    """A quick run on a small file."""
    data = {"train": str(write_toy(folder)), "text": "review", "label": "mood"}
    return data | {"preset": "prompt-tuning", "prompt": {"length": 3}, "batch_size": 2} | settings


def make_library(backbone: Backbone, folder: Path) -> Path:
    """A prompt that was really tuned, a mixture, one of two columns, and one of free text."""
    settings = toy_settings(folder, steps=4, evaluate_every=2)
    tune_config(run_config(sections(settings)), folder / "run", backbone=backbone)
    library = folder / "library"
    Library(library).add(folder / "run", "reviews")
    others = {
        "mixture": tuned(backbone, 1, MOODS, "{text}", "labels", length=2, count=3, route="top1"),
        "pair": tuned(backbone, 2, ["food", "film"], "{kind} {text}", "labels", length=3),
        "free": tuned(backbone, 3, [], scoring="generate", length=3),
    }
    for name, prompt in others.items():
        prompt.save(library / name)
    evaluations = [
        {"step": step, "loss": 1.0, "accuracy": 50.0, "router": router(confidence)}
        for step, confidence in ((2, 0.4), (4, 0.7))
    ]
    lines = "".join(f"{json.dumps(evaluation)}\n" for evaluation in evaluations)
    (library / "mixture" / "metrics.jsonl").write_text(lines)
    return library


def router(confidence: float) -> dict[str, Any]:
    return {"confidence": confidence, "entropy": 0.5, "load": [0.5, 0.5, 0.0]}


@pytest.fixture(scope="session")
def library(tiny: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_library(tiny, tmp_path_factory.mktemp("studio"))


@pytest.fixture(scope="session")
def server(tiny: Backbone, library: Path) -> Iterator[Running]:
    settings = ServeSettings(studio=True, studies=str(STUDIES))
    with running(AsyncEngine(tiny, library), settings) as server:
        yield server
