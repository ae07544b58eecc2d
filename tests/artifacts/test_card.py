"""Cards: those of every version load, and are written again as they were."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from softprompts.artifacts.card import FORMAT, Card, PromptCard
from softprompts.config import Choice
from softprompts.errors import UserError

from ..cards import card

SAVED = Path(__file__).parents[1] / "saved"
CARDS = sorted(SAVED.rglob("prompt.json"))
MINIMAL: dict[str, Any] = {
    "prompt": {"length": 3},
    "backbone": {"name": "toy", "fingerprint": "f" * 32},
    "task": {"name": "mood"},
}


@pytest.mark.parametrize("path", CARDS, ids=lambda path: path.relative_to(SAVED).as_posix())
def test_a_saved_card_is_written_again_byte_for_byte(path: Path, tmp_path: Path) -> None:
    saved = Card.read(path)
    assert saved.plain() == json.loads(path.read_text(encoding="utf-8"))
    saved.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert saved.answering().form.labels


def test_a_card_may_lack_all_but_prompt_backbone_and_task() -> None:
    read = Card.of(MINIMAL)
    assert read.plain() == MINIMAL
    assert (read.prompt.count, read.prompt.route) == (1, Choice("single"))
    assert (read.metrics, read.test, read.embedded_at, read.sources) == ({}, None, None, [])
    with pytest.raises(UserError, match=r"of this prompt is corrupted \(it lacks task.form\)"):
        read.answering()


def test_unknown_keys_are_kept() -> None:
    data = {**MINIMAL, "note": {"by": "me"}, "task": {"name": "mood", "language": "de"}}
    assert Card.of(data).plain() == data
    changed = dataclasses.replace(Card.of(data), scoring="labels")
    assert changed.plain() == {**data, "scoring": "labels"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"prompt": {"length": -1}}, "prompt is 1 x -1"),
        ({"prompt": {"count": 2}}, "it lacks prompt.length"),
        ({"prompt": {"length": 3, "route": 5}}, "is 5"),
        ({"backbone": {"name": "toy"}}, "it lacks backbone.fingerprint"),
        (
            {"backbone": {"name": "toy", "fingerprint": "x", "hidden": 4.5}},
            "backbone.hidden is 4.5",
        ),
        ({"task": {"name": ""}}, "task has no name"),
        ({"task": {"name": "mood", "form": {"template": "{text}"}}}, "it lacks task.form.label"),
        ({"task": {"name": "mood", "metrics": "accuracy"}}, "task.metrics is 'accuracy'"),
        ({"metrics": {"accuracy": float("nan")}}, "metrics.accuracy is nan"),
        ({"metrics": {"accuracy": "good"}}, "metrics.accuracy is 'good'"),
        ({"failed": "no"}, "failed is 'no'"),
        ({"seed": True}, "seed is True"),
        ({"embedding": {}}, "it lacks embedding.step"),
        ({"config": {"tuning": 5}}, "config.tuning is 5"),
        ({"config": {"prompt": {"start": 5}}}, "is 5"),
    ],
    ids=str,
)
def test_a_corrupted_card_is_a_clear_error(
    change: dict[str, Any], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "prompt.json"
    path.write_text(json.dumps(MINIMAL | change))
    with pytest.raises(UserError) as error:
        Card.read(path)
    assert f"The card {path} is corrupted (" in str(error.value)
    assert why in str(error.value)
    assert "copy the file again, or tune the prompt again" in str(error.value)


def test_a_card_of_a_newer_version_asks_for_an_upgrade() -> None:
    with pytest.raises(UserError, match=r"newer version .* upgrade softprompts"):
        Card.of({**MINIMAL, "format": FORMAT + 1})


def test_a_new_card_names_its_format_and_no_lineage() -> None:
    plain = card().plain()
    assert next(iter(plain)) == "prompt"
    assert plain["format"] == FORMAT
    assert "lineage" not in plain
    assert Card.of(json.loads(json.dumps(plain))) == card()


def test_what_follows_from_a_card() -> None:
    start = {"kind": "prompt", "sources": ["a", "b"], "weights": [0.75, 0.25]}
    read = Card.of(
        {
            **MINIMAL,
            "task": {"name": "mood", "metrics": ["f1", "accuracy"]},
            "metrics": {"accuracy": 1.0, "f1": 2.0},
            "best_step": 4,
            "config": {"prompt": {"start": start}, "tuning": {"max_length": 64}},
        }
    )
    assert (read.metric, read.score, read.max_length) == ("f1", 2.0, 64)
    assert (read.sources, read.source_weights) == (["a", "b"], [0.75, 0.25])
    assert (read.embedded_at, read.start) == (4, Choice.of(start))
    embedded = Card.of({**read.plain(), "embedding": {"step": 9}})
    assert embedded.embedded_at == 9


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"scoring": "guess"}, "scoring is 'guess'"),
        ({"scoring": "labels"}, "scoring is 'labels'"),
        ({"config": {}}, "it lacks config.tuning.max_length"),
    ],
)
def test_a_card_that_cannot_be_answered_with(change: dict[str, Any], why: str) -> None:
    usable = {
        **MINIMAL,
        "task": {"name": "mood", "form": {"template": "{text}", "label": "label"}},
        "scoring": "generate",
        "config": {"tuning": {"max_length": 64}},
    }
    assert Card.of(usable).answering().max_length == 64
    with pytest.raises(UserError, match=why):
        Card.of(usable | change).answering()


def test_a_prompt_card_is_a_prompt_config() -> None:
    described = PromptCard(length=4, count=2, route=Choice("top1", {"noise": 0.5}))
    assert PromptCard.describing(described.config()) == dataclasses.replace(
        described, route=described.config().route
    )
