"""What a mixture's router does at each evaluation is part of the run's history."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from softprompts.backbone import Backbone
from softprompts.tuning import Cohort, Run
from softprompts.tuning.routing import RouterWatch

from .test_cohort import make

SINGLE: dict[str, Any] = {"preset": "prompt-tuning", "prompt": {"length": 2}}
MIXTURES: list[dict[str, Any]] = [
    {"preset": "smop", "prompt": {"length": 2, "count": 3}, "seed": 4},
    {"preset": "mixture", "prompt": {"length": 2, "count": 4}, "seed": 5},
]


def by_hand(run: Run) -> dict[str, Any]:
    """The router's entry for the run's prompt as it is, from the probabilities of all rows."""
    backbone = run.backbone
    rows = list(run.held_out)
    text = backbone.embed_rows(rows)
    probabilities = run.prompt.router_probabilities(text.embeds, backbone.content_mask(text))
    entropy = -(probabilities * probabilities.log()).sum(1) / math.log(probabilities.shape[1])
    chosen = probabilities.argmax(1).tolist()
    return {
        "confidence": pytest.approx(float(probabilities.amax(1).mean()), abs=1e-4),
        "entropy": pytest.approx(float(entropy.mean()), abs=1e-4),
        "load": [
            pytest.approx(chosen.count(k) / len(chosen), abs=1e-4)
            for k in range(probabilities.shape[1])
        ],
    }


def test_every_evaluation_of_a_mixture_records_its_router(toy_csv: Path, tiny: Backbone) -> None:
    """In a cohort with a prompt that has none, and with mixtures of other sizes."""
    single, *mixtures = make(toy_csv, tiny, SINGLE, *MIXTURES)
    Cohort([single, *mixtures], [None] * 3).train()
    assert all("router" not in entry for entry in single.history)
    for run in mixtures:
        assert [entry["step"] for entry in run.history] == [2, 4]
        assert run.history[-1]["router"] == by_hand(run), "the pass that answered the rows"
        assert run.history[0]["router"] != run.history[1]["router"]


def test_rows_that_are_answered_again_count_once(
    tmp_path: Path, tiny: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory runs out in the first of several batches; smaller ones fit."""
    rows = [f"{'good ' * (row % 7)}film {row},{('good', 'bad')[row % 2]}" for row in range(80)]
    (tmp_path / "rows.csv").write_text("\n".join(["review,mood", *rows]))
    (run,) = make(tmp_path / "rows.csv", tiny, MIXTURES[0])
    cohort = Cohort([run], [None])
    cohort.evaluation_rows = 4
    forward, calls = run.prompt.route.forward, []

    def fails_once(*values: Any) -> torch.Tensor:
        vectors = forward(*values)
        calls.append(len(vectors))
        if len(calls) == 1:
            raise torch.OutOfMemoryError
        return vectors

    monkeypatch.setattr(run.prompt.route, "forward", fails_once)
    cohort.evaluate([run])
    assert len(calls) > 2
    assert sum(run.history[0]["router"]["load"]) == pytest.approx(1, abs=1e-3)
    assert run.history[0]["router"] == by_hand(run)


def test_a_router_is_watched_only_during_an_evaluation(toy_csv: Path, tiny: Backbone) -> None:
    (run,) = make(toy_csv, tiny, MIXTURES[0])
    router = run.prompt.route.router
    assert router is not None
    with RouterWatch(run.prompt) as watch:
        router(torch.zeros(5, tiny.hidden))
    router(torch.zeros(7, tiny.hidden))
    assert float(watch.sums[:3].sum()) == 5
    assert watch.entry(run.team)["router"]["entropy"] == pytest.approx(1), "all are as likely"
