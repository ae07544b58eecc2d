"""Strategies: weights, starts, mixtures, probes, and which prompts cannot be sources."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softprompts.artifacts.card import Card
from softprompts.backbone import Backbone
from softprompts.config import Choice, RunConfig, run_config
from softprompts.errors import UserError
from softprompts.library.library import Entry
from softprompts.prompt import Material, Source
from softprompts.prompt.prompt import build_prompt
from softprompts.transfer.sources import SAME_TASK, source_mismatch
from softprompts.transfer.strategies import (
    multi_task,
    probe,
    probe_steps,
    shares,
    start_from,
    task_names,
)


def target(**settings: Any) -> RunConfig:
    return run_config({"preset": "prompt-tuning", "task": {"task": "helpdesk/urgency"}}, settings)


def entry_of(task: str = "helpdesk/intent", own_data: bool = False, **prompt: Any) -> Entry:
    card = {
        "backbone": {"name": "t5-tiny", "fingerprint": "f" * 32},
        "task": {"name": task},
        "config": {"task": {"task": None if own_data else task}},
        "prompt": {"length": 20, "count": 1, "route": {"kind": "single"}, **prompt},
    }
    return Entry("a", Path("library/a"), Card.of(card))


def without_start(config: RunConfig) -> RunConfig:
    return dataclasses.replace(
        config, prompt=dataclasses.replace(config.prompt, start=Choice("vocabulary"))
    )


# -- weights ---------------------------------------------------------------------------------------


def test_weights_are_shares_of_the_similarities() -> None:
    assert shares([0.5, 0.3, 0.2]) == pytest.approx([0.5, 0.3, 0.2])
    assert shares([0.6, 0.2]) == pytest.approx([0.75, 0.25])


def test_a_negative_similarity_has_no_weight() -> None:
    assert shares([0.6, 0.2, -0.9]) == pytest.approx([0.75, 0.25, 0])
    assert shares([-0.1, -0.5]) == [0.5, 0.5]
    assert shares([0.0]) == [1.0]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_weights_sum_to_one_and_keep_the_order(similarities: list[float]) -> None:
    alpha = shares(similarities)
    assert sum(alpha) == pytest.approx(1)
    assert min(alpha) >= 0
    ranked = sorted(zip(similarities, alpha, strict=True))
    assert [weight for _, weight in ranked] == sorted(alpha)


# -- runs ------------------------------------------------------------------------------------------


def test_a_run_from_a_source_is_the_same_run_with_another_start() -> None:
    usual = target(tuning={"lr": 0.1})
    run = start_from(usual, [Path("library", "a")])
    assert run.prompt.start.plain() == {"kind": "prompt", "sources": [str(Path("library", "a"))]}
    assert without_start(run) == usual


def test_the_weighted_average_starts_from_the_mean_of_the_nearest(t5: Backbone) -> None:
    held = {str(Path("library", name)): torch.randn(1, 4, t5.hidden) for name in "abc"}
    run = start_from(target(prompt={"length": 4}), list(held), shares([0.6, 0.2, -0.1]))
    prompt = build_prompt(
        run.prompt, Material(t5, fetch=lambda name: Source(held[name])), 0, t5.unit
    )
    a, b, _ = held.values()
    torch.testing.assert_close(prompt.fold().table.data, 0.75 * a + 0.25 * b)


def test_a_mixture_has_the_target_first_and_every_task_once() -> None:
    usual = target(
        task={"metric": "macro_f1", "cap": 9},
        tuning={"evaluate_every": 10, "patience": 2, "steps": 70},
    )
    run = multi_task(usual, ["helpdesk/intent", "helpdesk/intent", "boolq+helpdesk/urgency"])
    assert run.task.task == "helpdesk/urgency+helpdesk/intent+superglue/boolq"
    assert (run.task.metric, run.task.cap) == (None, 9)
    assert run.tuning.evaluate_every > run.tuning.steps == 70, (
        "the prompt of the last step is kept, not that of the best evaluation"
    )
    assert run.tuning.patience is None


def test_a_mixture_needs_tasks_with_names() -> None:
    own_run = run_config({"task": {"train": "reviews.csv", "text": "review", "label": "mood"}})
    with pytest.raises(UserError, match="use strategy='best' or strategy='average'"):
        multi_task(own_run, ["helpdesk/intent"])


def test_names_of_mixtures_and_benchmarks_are_spelled_out() -> None:
    assert task_names("helpdesk/intent") == ["helpdesk/intent"]
    assert task_names("boolq") == ["superglue/boolq"]
    assert task_names("translation+copa")[-2:] == ["translation/wmt16_en_ro", "superglue/copa"]
    assert task_names("reviews.csv:mood") == ["reviews.csv:mood"]


# -- probes ----------------------------------------------------------------------------------------


def test_a_probe_is_the_start_of_the_run_or_all_of_it() -> None:
    usual = target(tuning={"steps": 300, "evaluate_every": 50, "patience": 2})
    assert probe(usual, 300) == usual
    short = probe(usual, 100)
    assert (short.tuning.steps, short.tuning.embed_at, short.tuning.patience) == (100, 100, None)
    assert dataclasses.replace(short, tuning=usual.tuning) == usual
    early = target(tuning={"steps": 300, "embed_at": 200})
    assert probe(early, 300) != early, "its embedding is of step 200, not of step 300"
    assert probe(target(tuning={"epochs": 2}), 400).tuning.epochs is None


def test_a_probe_ends_at_the_step_of_most_embeddings() -> None:
    embedded_at = [100, 300, 300, None, None, None]
    assert probe_steps(embedded_at, target(tuning={"steps": 1000})) == 300
    assert probe_steps(embedded_at, target(tuning={"steps": 200})) == 200
    assert probe_steps(embedded_at, target(tuning={"epochs": 1})) == 300
    assert probe_steps([], target(tuning={"steps": 200})) == 200
    assert probe_steps([], target(tuning={"steps": 20_000})) == 10_000


# -- which prompts cannot be sources ---------------------------------------------------------------


def test_the_targets_own_task_is_left_out_unless_kept() -> None:
    for task in ("helpdesk/urgency", "helpdesk/intent+helpdesk/urgency"):
        entry = entry_of(task=task)
        assert source_mismatch(entry, target(), "best") == SAME_TASK
        assert source_mismatch(entry, target(), "best", keep_same_task=True) is None
    assert (
        source_mismatch(entry_of(task="superglue/boolq"), target(task={"task": "boolq"}), "best")
        is not None
    )
    own_run = run_config(
        {
            "preset": "prompt-tuning",
            "task": {"train": "data/reviews.csv", "text": "review", "label": "mood"},
        }
    )
    assert (
        source_mismatch(entry_of(task="reviews.csv:mood", own_data=True), own_run, "best")
        is not None
    )
    assert (
        source_mismatch(entry_of(task="reviews.csv:stars", own_data=True), own_run, "best") is None
    )


def test_your_own_data_is_the_same_task_only_if_file_and_label_column_are() -> None:
    task = {"train": "stars/train.csv", "text": "review", "label": "label"}
    target = run_config({"preset": "prompt-tuning", "task": task})
    for settings, same in (
        (task, True),
        (task | {"name": "stars"}, True),
        (task | {"train": "topics/train.csv"}, False),
        (task | {"label": "mood"}, False),
    ):
        entry = entry_of(task="train.csv:label", own_data=True)
        card = dataclasses.replace(entry.card, config={"task": settings})
        mismatch = source_mismatch(dataclasses.replace(entry, card=card), target, "best")
        assert (mismatch == SAME_TASK) == same, settings


def test_what_cannot_be_averaged_or_mixed_is_reported() -> None:
    assert "mixtures cannot be averaged" in str(
        source_mismatch(entry_of(count=4, route={"kind": "top1"}), target(), "average")
    )
    assert "5 tokens and the target 20" in str(
        source_mismatch(entry_of(length=5), target(), "average")
    )
    assert source_mismatch(entry_of(length=5), target(), "best") is None
    assert "has no name" in str(source_mismatch(entry_of(own_data=True), target(), "mixture"))
    assert (
        source_mismatch(entry_of(count=4, route={"kind": "top1"}), target(), "mixture") is None
    ), "only its task is used"


ROUTED = [
    (1, {"kind": "single"}),
    (2, {"kind": "top1"}),
    (2, {"kind": "soft"}),
    (3, {"kind": "soft"}),
    (3, {"kind": "soft", "k": 2}),
]


@pytest.mark.parametrize(("source", "goal"), list(itertools.product(ROUTED, ROUTED)))
def test_a_prompt_is_left_out_exactly_where_it_could_not_start_the_target(
    source: Any, goal: Any, t5: Backbone
) -> None:
    (source_count, source_route), (count, route) = source, goal
    router = {"weight": torch.randn(source_count, t5.hidden)} if source_count > 1 else {}
    vectors = torch.randn(source_count, 3, t5.hidden)
    trained = Source(vectors, router, Choice.of(source_route))
    usual = target(prompt={"length": 3, "count": count, "route": route})
    config = start_from(usual, ["a"]).prompt
    try:
        build_prompt(config, Material(t5, fetch=lambda name: trained), 0, t5.unit)
        fits = True
    except UserError:
        fits = False
    entry = entry_of(length=3, count=source_count, route=source_route)
    assert (source_mismatch(entry, usual, "best") is None) == fits
