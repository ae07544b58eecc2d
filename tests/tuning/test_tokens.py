"""Texts are tokenised once; later their ids come from memory or disk."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from softprompts.backbone import Backbone
from softprompts.config import RunConfig
from softprompts.files.tensors import read_tensors
from softprompts.tasks import load
from softprompts.tuning import tokens, tune
from softprompts.tuning.run import Run

TEXTS = [f"text {number} " + "and more " * (number % 7) for number in range(40)]


@pytest.fixture
def tokenised(t5: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The texts of every call of the tokenizer, with an empty cache."""
    calls: list[list[str]] = []
    tokenise = t5.token_ids

    def whole(texts: Sequence[str]) -> list[list[int]]:
        calls.append(list(texts))
        return tokenise(texts)

    monkeypatch.setattr(t5, "token_ids", whole)
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tokens, "MIN_TEXTS", 20)
    tokens._memory.clear()
    return calls


def test_ids_come_from_memory_then_from_disk(
    t5: Backbone, tokenised: list[list[str]], tmp_path: Path
) -> None:
    plain = tokens.cached_ids(t5, TEXTS)
    assert plain == [t5.tokenizer(text)["input_ids"] for text in TEXTS]
    assert tokens.cached_ids(t5, TEXTS) is plain
    tokens._memory.clear()
    assert tokens.cached_ids(t5, TEXTS) == plain
    assert tokenised == [TEXTS]
    (path,) = (tmp_path / "cache" / "tokens").iterdir()
    assert int(read_tensors(path)[0]["ends"][-1]) == sum(map(len, plain))
    path.write_bytes(path.read_bytes()[:-9])
    tokens._memory.clear()
    assert tokens.cached_ids(t5, TEXTS) == plain, "a corrupted file is written again"
    assert tokenised == [TEXTS, TEXTS]


def test_a_cache_that_cannot_be_written_costs_time_not_the_run(
    t5: Backbone, tokenised: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "file" / "cache"))
    assert tokens.cached_ids(t5, TEXTS) == [t5.tokenizer(text)["input_ids"] for text in TEXTS]
    assert tokenised == [TEXTS]


def test_memory_is_bounded(
    t5: Backbone, tokenised: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = [[f"{word} {text}" for text in TEXTS[:10]] for word in "abc"]
    one = sum(len(row) for row in tokens.cached_ids(t5, lists[0]))
    monkeypatch.setattr(tokens, "MAX_TOKENS", int(2.5 * one))
    for texts in (lists[1], lists[0], lists[2], lists[0], lists[1]):
        tokens.cached_ids(t5, texts)
    assert tokenised == [lists[0], lists[1], lists[2], lists[1]], (
        "the one that was not asked for longest goes"
    )
    monkeypatch.setattr(tokens, "MAX_TOKENS", 1)
    tokens.cached_ids(t5, lists[2])
    assert len(tokens._memory) == 1


def test_a_mixture_shares_the_ids_of_its_tasks(
    t5: Backbone, tokenised: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    load_own = load._load_own
    monkeypatch.setattr(
        load, "_load_own", lambda config: (read.append(config.task), load_own(config))[1]
    )
    names = [
        "helpdesk/intent",
        "helpdesk/urgency",
        "helpdesk/intent+helpdesk/urgency",
        "helpdesk/urgency+helpdesk/intent",
    ]
    configs = [RunConfig.of({"task": {"task": name}, "prompt": {"length": 2}}) for name in names]
    tasks = tune.load_tasks(configs)
    assert read == names[:2]
    alone = [Run(config, each, t5) for config, each in zip(configs[:2], tasks[:2], strict=True)]
    before = len(tokenised)
    both, turned = (
        Run(config, each, t5) for config, each in zip(configs[2:], tasks[2:], strict=True)
    )
    assert len(tokenised) == before
    assert both.inputs == alone[0].inputs + alone[1].inputs
    assert turned.held_out == alone[1].held_out + alone[0].held_out
    assert both.batches.parts == (len(alone[0].inputs), len(alone[1].inputs))
