"""The bag of words is the same whether this process computes it or another one beside training."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from softprompts.tasks import Example, baselines
from softprompts.tasks.baselines import bag_of_words, classify, computed_beside

TRAIN = [
    Example(f"{word} number {number}", target)
    for number in range(40)
    for word, target in (("great", "good"), ("lovely", "good"), ("awful", "bad"))
]
INPUTS = ["an awful film", "a lovely film", "great", "film number 3", ""]


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(baselines, "_memory", {})


def not_here(*_: Any) -> Any:
    pytest.fail("computed in this process")


def test_another_process_computes_the_same_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = classify(TRAIN, INPUTS)
    assert expected[:3] == ["bad", "good", "good"]
    jobs = [(TRAIN, INPUTS), (TRAIN, INPUTS[:2]), (TRAIN[:60], INPUTS)]
    others = [classify(*job) for job in jobs[1:]]
    monkeypatch.setattr(baselines, "classify", not_here)
    with computed_beside(jobs):
        assert len(set(baselines._processes.values())) == 1, "one process for all"
        assert bag_of_words(TRAIN, INPUTS) == expected
        assert [bag_of_words(*job) for job in jobs[1:]] == others
    assert not baselines._processes
    monkeypatch.setattr(baselines, "_start", not_here)
    monkeypatch.setattr(baselines, "_memory", {})
    with computed_beside(jobs):
        assert bag_of_words(TRAIN, INPUTS) == expected, "cached: there is nothing to start"


def test_only_the_rows_that_are_read_go_to_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "MAX_TRAIN", 50)
    expected = classify(TRAIN, INPUTS)
    monkeypatch.setattr(baselines, "classify", not_here)
    with computed_beside([(TRAIN, INPUTS)]):
        assert bag_of_words(TRAIN, INPUTS) == expected


def test_a_killed_process_costs_time_only() -> None:
    with computed_beside([(TRAIN, INPUTS)]):
        (process,) = baselines._processes.values()
        process.kill()
        assert bag_of_words(TRAIN, INPUTS) == classify(TRAIN, INPUTS)


def test_a_process_that_cannot_start_costs_time_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("no processes left")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    with computed_beside([(TRAIN, INPUTS)]):
        assert bag_of_words(TRAIN, INPUTS) == classify(TRAIN, INPUTS)


def test_the_process_ends_when_training_is_interrupted() -> None:
    processes: list[subprocess.Popen[bytes]] = []

    def train() -> None:
        processes.extend(baselines._processes.values())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), computed_beside([(TRAIN * 80, INPUTS)]):
        train()
    assert processes[0].poll() is not None
    assert not baselines._processes
