"""Baselines in the same loop: model tuning, alone or on a mixture, and prompt design."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from softprompts.backbone import Backbone
from softprompts.config import run_config
from softprompts.errors import UserError
from softprompts.tasks import load_task
from softprompts.tuning.tune import tune_config
from softprompts.tuning.tuned import load

from ..models import random_model


def settings(toy_csv: Path, **more: Any) -> Any:
    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    tuning = {
        "steps": 30,
        "batch_size": 8,
        "evaluate_every": 10,
        "checkpoint_every": 10,
        "max_length": 64,
        "lr": 0.003,
    }
    return run_config({"preset": "model-tuning", "task": task, "tuning": tuning}, more)


@pytest.mark.parametrize("kind", ["t5", "llama", "bert", "minilm"])
def test_the_whole_model_is_trained_and_saved(kind: str, toy_csv: Path, tmp_path: Path) -> None:
    backbone = random_model(kind)
    before = backbone.fingerprint
    weights = {name: value.clone() for name, value in backbone.model.named_parameters()}
    tuned = tune_config(settings(toy_csv), tmp_path / "run", backbone=backbone)
    assert tuned.card.trained_parameters >= sum(value.numel() for value in weights.values())
    changed = [
        name
        for name, value in backbone.model.named_parameters()
        if not torch.equal(value, weights[name])
    ]
    assert len(changed) > 0.8 * len(weights), "nearly all of it changed"
    assert tuned.backbone.fingerprint != before
    assert all(not value.requires_grad for value in backbone.model.parameters()), "frozen again"
    texts = ["never again", "I love it"]
    again = load(tmp_path / "run", device="cpu")
    assert again.probabilities(texts) == tuned.probabilities(texts)
    with pytest.raises(UserError, match="was tuned on another version"):
        load(tmp_path / "run", backbone=random_model(kind))
    # the tuned model is an ordinary backbone: SPoT's "multi-task model tuning before it"
    more = run_config(
        {
            "preset": "prompt-tuning",
            "model": str(tmp_path / "run" / "model"),
            "task": settings(toy_csv).plain()["task"],
            "tuning": {"steps": 2, "batch_size": 4},
            "prompt": {"length": 4},
            "device": "cpu",
        }
    )
    assert tune_config(more, tmp_path / "next").card.steps == 2


def test_model_tuning_learns_the_toy(toy_csv: Path) -> None:
    tuned = tune_config(
        settings(toy_csv, tuning={"steps": 60}), None, backbone=random_model("minilm")
    )
    assert tuned.metrics["accuracy"] > tuned.card.majority["accuracy"]


def test_either_the_prompt_or_the_model_is_trained(toy_csv: Path) -> None:
    with pytest.raises(UserError, match="preset='model-tuning' sets both"):
        tune_config(settings(toy_csv, prompt={"length": 3}), None, backbone=random_model("t5"))
    with pytest.raises(UserError, match="preset='model-tuning' sets both"):
        tune_config(
            settings(toy_csv, tuning={"trains": "prompt"}), None, backbone=random_model("t5")
        )
    half = random_model("t5")
    half.model.to(torch.bfloat16)
    with pytest.raises(UserError, match="needs fp32 weights on one device"):
        tune_config(settings(toy_csv), None, backbone=half)


def test_designed_prompts_are_evaluated_without_training(toy_csv: Path, tmp_path: Path) -> None:
    """Zero-shot and few-shot prompt design: the same loop with nothing to train."""
    task = {
        "train": str(toy_csv),
        "text": "review",
        "label": "mood",
        "instruction": "Is the review positive or negative?",
    }
    for shots in (0, 4):
        config = run_config(
            {
                "preset": "prompt-design",
                "task": {**task, "demonstrations": shots},
                "tuning": {"scoring": "labels"},
            }
        )
        made = load_task(config.task)
        text = made.validation[0].input
        assert text.startswith("Is the review positive or negative? ")
        assert text.count("answer: ") == shots
        if shots:
            assert text.endswith(" answer:")
            assert (
                sum(
                    f"answer: {label}" in part
                    for label in made.labels
                    for part in text.split("\n\n")[:4]
                )
                == 4
            )
        backbone = random_model("t5")
        before = backbone.fingerprint
        tuned = tune_config(config, tmp_path / str(shots), backbone=backbone)
        assert (tuned.card.steps, tuned.card.best_step) == (0, 0)
        assert set(tuned.metrics) == {"accuracy", "macro_f1"}
        again = load(tmp_path / str(shots), backbone=random_model("t5"))
        assert again.backbone.fingerprint == before
        assert again.inputs(["fine"])[0] == f"{again.form.before}fine{again.form.after}"
        assert again.predict(["fine"]) == tuned.predict(["fine"])


def test_an_instruction_that_leaves_no_tokens_for_the_text_is_refused(toy_csv: Path) -> None:
    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    for more, fits in (
        ({"instruction": "word " * 100}, False),
        ({"demonstrations": 20}, False),
        ({"instruction": "word"}, True),
    ):
        config = run_config(
            {
                "preset": "prompt-design",
                "task": {**task, **more},
                "tuning": {"scoring": "labels", "max_length": 40},
            }
        )
        told = (
            nullcontext()
            if fits
            else pytest.raises(UserError, match="leave no tokens for the text")
        )
        with told:
            tune_config(config, None, backbone=random_model("t5"))


def test_the_included_model_answers_an_instruction(tiny: Backbone, tmp_path: Path) -> None:
    rows = [("A wonderful, moving film.", "positive"), ("A dull, stupid film.", "negative")] * 10
    (tmp_path / "films.csv").write_text(
        "text,mood\n" + "".join(f'"{text}",{mood}\n' for text, mood in rows)
    )
    task = {"train": str(tmp_path / "films.csv"), "text": "text", "label": "mood"}
    words = "Classify the sentiment of the review as positive or negative."
    config = run_config(
        {
            "preset": "prompt-design",
            "task": {**task, "instruction": words},
            "tuning": {"scoring": "labels"},
        }
    )
    assert tune_config(config, None, backbone=tiny).metrics["accuracy"] == 100.0
