"""A sentinel before every answer: it is learned, part of the scores, and removed from answers."""

from pathlib import Path
from typing import Any

import pytest
import torch

import softprompts
from softprompts.backbone import Backbone
from softprompts.config import run_config
from softprompts.errors import UserError
from softprompts.prompt.prompt import folded_prompt
from softprompts.tasks import load_task
from softprompts.tuning import Run
from softprompts.tuning.evaluate import FREE_LENGTH, Predictor
from softprompts.tuning.tune import tune_config

TEXTS = ["what a lovely film", "never again"]
LABELS = ["negative", "positive"]


def settings(toy: Path, **tuning: Any) -> dict[str, Any]:
    return {
        "preset": "prompt-tuning",
        "task": {"train": str(toy), "text": "review", "label": "mood", "sentinel": True},
        "prompt": {"length": 4},
        "tuning": {"steps": 30, "batch_size": 8, "evaluate_every": 30, **tuning},
    }


def test_it_is_learned(toy_csv: Path, tiny: Backbone) -> None:
    config = run_config(settings(toy_csv))
    run = Run(config, load_task(config.task), tiny)
    first = tiny.tokenizer.convert_tokens_to_ids("<extra_id_0>")
    assert {tuple(ids) for ids in run.targets} == {
        (first, *ids) for ids in tiny.tokenise_targets(LABELS)
    }


def test_labels_are_scored_behind_it(tiny: Backbone) -> None:
    vectors = tiny.input_embeddings(torch.arange(100, 104))
    probabilities = Predictor(
        tiny, folded_prompt(vectors[None]), LABELS, "labels", sentinel=True
    ).probabilities(TEXTS)
    first = tiny.tokenizer.convert_tokens_to_ids("<extra_id_0>")
    text = tiny.embed_rows(tiny.tokenise(TEXTS, 40))
    asked = [[first, *ids] for ids in tiny.tokenise_targets(LABELS)]
    shares = tiny.scores(vectors.expand(2, -1, -1), text, [asked] * 2).softmax(1)
    assert [list(row.values()) for row in probabilities] == [
        pytest.approx(row, rel=1e-4) for row in shares.tolist()
    ]
    without = Predictor(tiny, folded_prompt(vectors[None]), LABELS, "labels").probabilities(TEXTS)
    assert abs(without[0]["positive"] - probabilities[0]["positive"]) > 1e-3


def test_answers_come_without_it_and_a_saved_prompt_keeps_it(
    toy_csv: Path, tiny: Backbone, tmp_path: Path
) -> None:
    tuned = tune_config(run_config(settings(toy_csv, steps=60)), tmp_path / "run", backbone=tiny)
    assert tuned.metrics["accuracy"] >= 50.0
    answers = tuned.predict(TEXTS, "generate")
    assert set(answers) <= set(LABELS)
    loaded = softprompts.load(tmp_path / "run", backbone=tiny)
    assert loaded.predict(TEXTS, "generate") == answers
    assert loaded.probabilities(TEXTS) == tuned.probabilities(TEXTS)
    first = tiny.tokenizer.convert_tokens_to_ids("<extra_id_0>")
    predictor = loaded.predictor("generate")
    text = tiny.embed_rows(tiny.tokenise(TEXTS, 40))
    vectors = loaded.prompt(text.embeds, text.mask)
    assert tiny.generate(vectors, text, predictor.answer_length)[:, 0].tolist() == [
        first,
        first,
    ]  # the model does generate it


def test_a_free_answer_is_as_long_as_without_it(tiny: Backbone) -> None:
    vectors = tiny.input_embeddings(torch.arange(100, 104))[None]
    assert (
        Predictor(tiny, folded_prompt(vectors), [], sentinel=True).answer_length == FREE_LENGTH + 1
    )
    assert (
        Predictor(tiny, folded_prompt(vectors), [], answer_length=8, sentinel=True).answer_length
        == 9
    )


def test_a_model_without_sentinels_is_refused(toy_csv: Path, bart: Backbone) -> None:
    config = run_config(settings(toy_csv, max_length=64))
    with pytest.raises(UserError, match="has no token <extra_id_0>"):
        tune_config(config, None, backbone=bart)


def test_runs_with_and_without_it_share_a_cohort(toy_csv: Path) -> None:
    runs = softprompts.tune(
        train=str(toy_csv),
        text="review",
        label="mood",
        sentinel=[False, True],
        preset="prompt-tuning",
        steps=2,
        batch_size=4,
        prompt={"length": 2},
        dtype="fp32",
        device="cpu",
    )
    assert [run.form.sentinel for run in runs] == [False, True]
    lengths = [run.predictor().answer_length for run in runs]
    assert lengths[1] == lengths[0] + 1
