"""What each strategy makes of the prompts that were found: weights, starts, mixtures, probes, and which prompts cannot be sources."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softprompts.backbone import Backbone
from softprompts.config.choice import Choice
from softprompts.errors import UserError
from softprompts.library.library import Entry, Found
from softprompts.prompt import Material, Source, build
from softprompts.transfer.strategies import (
    best_of,
    mixture,
    probe,
    probe_steps,
    shares,
    start_from,
    task_names,
    unfit,
    weighted,
)
from softprompts.tuning import RunConfig, run_config


def target(**settings: Any) -> RunConfig:
    return run_config({"preset": "prompt-tuning", "task": {"task": "helpdesk/urgency"}}, settings)


def found(
    name: str,
    similarity: float = 0.5,
    task: str = "helpdesk/intent",
    own: bool = False,
    **form: Any,
) -> Found:
    card = {
        "task": {"name": task},
        "config": {"task": {"task": None if own else task}},
        "prompt": {"length": 20, "count": 1, "route": {"kind": "single"}, **form},
    }
    return Found(Entry(name, Path("library") / name, card), similarity)


def without_start(config: RunConfig) -> RunConfig:
    return dataclasses.replace(
        config, prompt=dataclasses.replace(config.prompt, start=Choice("vocabulary"))
    )


# -- weights -----------------------------------------------------------------------------------------------------------------


def test_a_source_weighs_its_share_of_the_similarities() -> None:
    assert shares([0.5, 0.3, 0.2]) == pytest.approx([0.5, 0.3, 0.2])
    assert shares([0.6, 0.2]) == pytest.approx([0.75, 0.25])


def test_a_negative_similarity_weighs_nothing_and_where_none_is_positive_all_weigh_the_same() -> (
    None
):
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


# -- runs --------------------------------------------------------------------------------------------------------------------


def test_best_of_starts_the_same_run_from_each_of_the_nearest() -> None:
    usual = target(tuning={"lr": 0.1})
    near = [found("a"), found("b"), found("c")]
    runs = best_of(near, 2, usual)
    assert [run.prompt.start.plain() for run in runs] == [
        {"kind": "prompt", "sources": [str(Path("library", name))]} for name in "ab"
    ]
    assert [without_start(run) for run in runs] == [usual, usual]
    assert len(best_of(near, 9, usual)) == 3


def test_the_weighted_average_starts_from_the_mean_of_the_nearest(t5: Backbone) -> None:
    run = weighted(
        [found("a", 0.6), found("b", 0.2), found("c", -0.1), found("d", -0.2)],
        3,
        target(prompt={"length": 4}),
    )
    held = {str(Path("library", name)): torch.randn(1, 4, t5.hidden) for name in "abc"}
    prompt = build(run.prompt, Material(t5, fetch=lambda name: Source(held[name])), 0, t5.unit)
    a, b, _ = held.values()
    torch.testing.assert_close(prompt.fold().table.data, 0.75 * a + 0.25 * b)


def test_a_mixture_has_the_target_first_and_every_task_once() -> None:
    near = [
        found("a", task="helpdesk/intent"),
        found("a2", task="helpdesk/intent"),
        found("m", task="boolq+helpdesk/urgency"),
        found("d", task="helpdesk/area"),
    ]
    run = mixture(
        near,
        3,
        target(
            task={"metric": "macro_f1", "cap": 9},
            tuning={"evaluate_every": 10, "patience": 2, "steps": 70},
        ),
    )
    assert run.task.task == "helpdesk/urgency+helpdesk/intent+superglue/boolq"
    assert (run.task.metric, run.task.cap) == (None, 9)
    assert run.tuning.evaluate_every > run.tuning.steps == 70, (
        "the prompt of the last step is kept, not that of the best evaluation"
    )
    assert run.tuning.patience is None


def test_a_mixture_needs_tasks_with_names() -> None:
    own = run_config({"task": {"train": "reviews.csv", "text": "review", "label": "mood"}})
    with pytest.raises(UserError, match="take --strategy best or average"):
        mixture([found("a")], 1, own)


def test_names_of_mixtures_and_benchmarks_are_spelled_out() -> None:
    assert task_names("helpdesk/intent") == ["helpdesk/intent"]
    assert task_names("boolq") == ["superglue/boolq"]
    assert task_names("translation+copa")[-2:] == ["translation/wmt16_en_ro", "superglue/copa"]
    assert task_names("reviews.csv:mood") == ["reviews.csv:mood"]


# -- probes ------------------------------------------------------------------------------------------------------------------


def test_a_probe_is_the_start_of_the_run_and_of_all_its_steps_the_run_itself() -> None:
    usual = target(tuning={"steps": 300, "evaluate_every": 50, "patience": 2})
    assert probe(usual, 300) == usual
    short = probe(usual, 100)
    assert (short.tuning.steps, short.tuning.embed_at, short.tuning.patience) == (100, 100, None)
    assert dataclasses.replace(short, tuning=usual.tuning) == usual
    early = target(tuning={"steps": 300, "embed_at": 200})
    assert probe(early, 300) != early, "its embedding is of step 200, and step 300 was asked for"
    assert probe(target(tuning={"epochs": 2}), 400).tuning.epochs is None


def test_a_probe_is_as_long_as_most_sources_were_when_they_were_embedded() -> None:
    taken = [100, 300, 300, None, None, None]
    assert probe_steps(taken, target(tuning={"steps": 1000})) == 300
    assert probe_steps(taken, target(tuning={"steps": 200})) == 200
    assert probe_steps(taken, target(tuning={"epochs": 1})) == 300
    assert probe_steps([], target(tuning={"steps": 200})) == 200
    assert probe_steps([], target(tuning={"steps": 20_000})) == 10_000


# -- which prompts cannot be sources -----------------------------------------------------------------------------------------


def test_the_targets_own_task_is_left_out_unless_kept() -> None:
    for task in ("helpdesk/urgency", "helpdesk/intent+helpdesk/urgency"):
        entry = found("a", task=task).entry
        assert "the target's own task (--keep-same-task" in str(unfit(entry, target(), "best"))
        assert unfit(entry, target(), "best", keep_same_task=True) is None
    assert (
        unfit(found("a", task="superglue/boolq").entry, target(task={"task": "boolq"}), "best")
        is not None
    )
    own = run_config(
        {
            "preset": "prompt-tuning",
            "task": {"train": "data/reviews.csv", "text": "review", "label": "mood"},
        }
    )
    assert unfit(found("a", task="reviews.csv:mood", own=True).entry, own, "best") is not None
    assert unfit(found("a", task="reviews.csv:stars", own=True).entry, own, "best") is None


def test_what_cannot_be_averaged_or_mixed_is_told() -> None:
    assert "mixtures cannot be averaged" in str(
        unfit(found("a", count=4, route={"kind": "top1"}).entry, target(), "average")
    )
    assert "5 tokens and the target 20" in str(
        unfit(found("a", length=5).entry, target(), "average")
    )
    assert unfit(found("a", length=5).entry, target(), "best") is None
    assert "no named one" in str(unfit(found("a", own=True).entry, target(), "mixture"))
    assert unfit(found("a", count=4, route={"kind": "top1"}).entry, target(), "mixture") is None, (
        "only its task is used"
    )


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
    (held, theirs), (count, ours) = source, goal
    router = torch.randn(held, t5.hidden) if held > 1 else None
    trained = Source(torch.randn(held, 3, t5.hidden), router, Choice.of(theirs))
    usual = target(prompt={"length": 3, "count": count, "route": ours})
    config = start_from(usual, ["a"]).prompt
    try:
        build(config, Material(t5, fetch=lambda name: trained), 0, t5.unit)
        fits = True
    except UserError:
        fits = False
    assert (
        unfit(found("a", length=3, count=held, route=theirs).entry, usual, "best") is None
    ) == fits
