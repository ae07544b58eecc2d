"""Texts are tokenised once, when they are first read; later their ids come from memory or disk."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from softprompts.backbone import Backbone
from softprompts.config import RunConfig
from softprompts.errors import UserError
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


def ids_of(backbone: Backbone, texts: Sequence[str], rows: Sequence[int]) -> list[list[int]]:
    return [ids.tolist() for ids in tokens.cached_ids(backbone, texts).read(backbone, rows)]


def all_ids(backbone: Backbone, texts: Sequence[str]) -> list[list[int]]:
    return ids_of(backbone, texts, range(len(texts)))


def test_only_texts_that_are_read_are_tokenised(t5: Backbone, tokenised: list[list[str]]) -> None:
    plain = [t5.tokenizer(text)["input_ids"] for text in TEXTS]
    assert ids_of(t5, TEXTS, [3, 1, 3]) == [plain[3], plain[1], plain[3]]
    assert ids_of(t5, TEXTS, [1, 2]) == plain[1:3]
    assert list(filter(None, tokenised)) == [[TEXTS[3], TEXTS[1]], [TEXTS[2]]]


def test_a_run_tokenises_the_rows_it_reads(
    t5: Backbone, tokenised: list[list[str]], tmp_path: Path
) -> None:
    """Two steps of a large file, alone and in a cohort, and the same rows after a restart."""
    lines = [f"row {number} is {'fine ' * (number % 9)},{number % 2}" for number in range(3000)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines]))
    task_settings = {"train": str(tmp_path / "rows.csv"), "text": "text", "label": "label"}
    settings = {
        "task": {**task_settings, "cap_validation": 5},
        "prompt": {"length": 2},
        "tuning": {"steps": 4, "batch_size": 2, "evaluate_every": 4},
    }
    configs = [RunConfig.of({**settings, "seed": seed}) for seed in (0, 1)]
    task = tune.load_tasks(configs)[0]
    runs = [Run(config, task, t5) for config in configs]
    alone = Run(configs[0], task, t5)
    steps = [[run.micro_batches()[0].inputs for run in runs]]
    for run in runs:
        run.step = 1
    steps.append([run.micro_batches()[0].inputs for run in runs])
    read = {text for texts in tokenised for text in texts}
    assert len(read) <= 4 * 50 * 2 + tokens.LONGEST + 10
    resumed = Run(configs[0], task, t5)
    resumed.step = 1
    assert resumed.micro_batches()[0].inputs == steps[1][0]
    assert alone.micro_batches()[0].inputs == steps[0][0]
    assert alone.inputs.longest() == max(map(len, alone.inputs))


def test_ids_come_from_memory_then_from_disk(
    t5: Backbone, tokenised: list[list[str]], tmp_path: Path
) -> None:
    plain = all_ids(t5, TEXTS)
    assert plain == [t5.tokenizer(text)["input_ids"] for text in TEXTS]
    assert tokens.cached_ids(t5, TEXTS) is tokens.cached_ids(t5, TEXTS)
    tokens._memory.clear()
    assert all_ids(t5, TEXTS) == plain
    assert list(filter(None, tokenised)) == [TEXTS]
    (path,) = (tmp_path / "cache" / "tokens").iterdir()
    assert int(read_tensors(path)[0]["ends"][-1]) == sum(map(len, plain))
    path.write_bytes(path.read_bytes()[:-9])
    tokens._memory.clear()
    assert all_ids(t5, TEXTS) == plain, "a corrupted file is written again"
    assert list(filter(None, tokenised)) == [TEXTS, TEXTS]


def test_a_cache_that_cannot_be_written_costs_time_not_the_run(
    t5: Backbone, tokenised: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "file" / "cache"))
    assert all_ids(t5, TEXTS) == [t5.tokenizer(text)["input_ids"] for text in TEXTS]
    assert tokenised == [TEXTS]


def test_memory_is_bounded(
    t5: Backbone, tokenised: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lists = [[f"{word} {text}" for text in TEXTS[:10]] for word in "abc"]
    one = sum(len(row) for row in all_ids(t5, lists[0]))
    monkeypatch.setattr(tokens, "MAX_TOKENS", int(2.5 * one))
    for texts in (lists[1], lists[0], lists[2], lists[0], lists[1]):
        all_ids(t5, texts)
    assert list(filter(None, tokenised)) == [lists[0], lists[1], lists[2], lists[1]], (
        "the one that was not asked for longest goes"
    )
    monkeypatch.setattr(tokens, "MAX_TOKENS", 1)
    all_ids(t5, lists[2])
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
    rows = [list(run.inputs) for run in alone]
    held_out = [list(run.held_out) for run in alone]
    before = sum(map(len, tokenised))
    both, turned = (
        Run(config, each, t5) for config, each in zip(configs[2:], tasks[2:], strict=True)
    )
    assert list(both.inputs) == rows[0] + rows[1]
    border = len(rows[0])
    assert both.inputs.read([border - 1, border]) == [rows[0][-1], rows[1][0]]
    assert list(turned.held_out) == held_out[1] + held_out[0]
    assert sum(map(len, tokenised)) == before
    assert both.batches.parts == (len(rows[0]), len(rows[1]))


@pytest.fixture
def large_run(
    t5: Backbone, tokenised: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """A run of 90 steps on 1,000 rows, whose rows are read ahead, as on a GPU."""
    monkeypatch.setattr(tokens, "_can_read_ahead", lambda backbone: True)
    lines = [f"row {number} is {'fine ' * (number % 9)},{number % 2}" for number in range(1000)]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines]))
    settings: Any = {
        "task": {
            "train": str(tmp_path / "rows.csv"),
            "text": "text",
            "label": "label",
            "cap_validation": 7,
        },
        "prompt": {"length": 2},
        "tuning": {"steps": 90, "batch_size": 2, "evaluate_every": 3},
    }
    config = RunConfig.of(settings)
    return Run(config, tune.load_tasks([config])[0], t5)


def inputs_of(run: Run, steps: int) -> list[list[list[int]]]:
    inputs = []
    for _ in range(steps):
        inputs.append(run.micro_batches()[0].inputs)
        run.step += 1
    return inputs


def reader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "softprompts-tokens" in thread.name]


def test_a_thread_reads_ahead_in_the_order_of_use(
    large_run: Run, t5: Backbone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, list[str]]] = []
    tokenise = t5.token_ids

    def recorded(texts: Sequence[str]) -> list[list[int]]:
        read.append((threading.current_thread().name, list(texts)))
        time.sleep(0.002)  # so that the main thread has to wait
        return tokenise(texts)

    monkeypatch.setattr(t5, "token_ids", recorded)
    orders = [large_run.rows_ahead()]
    with tokens.reading_ahead(orders):
        inputs = inputs_of(large_run, 90)
        list(large_run.held_out)
        assert len(reader_threads()) == 1
    assert not reader_threads()
    assert {name for name, _ in read} == {"softprompts-tokens_0"}
    held_out = [example.input for example in large_run.task.validation]
    position = [texts for _, texts in read].index(held_out)
    assert 1 <= position <= 3, "the validation rows are read before the first evaluation"
    assert max(len(texts) for _, texts in read) == 100, "50 batches at a time"
    tokens._memory.clear()
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "empty"))
    again = Run(large_run.config, large_run.task, t5)
    assert inputs_of(again, 90) == inputs, "the same rows as without the thread"
    assert read[-1][0] == "MainThread"


def test_an_error_of_the_reading_thread_is_raised_where_the_rows_are_read(
    large_run: Run, t5: Backbone, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = large_run.rows_ahead()[1][1]
    refused, tokenise = large_run.task.train[chunk[5]].input, t5.token_ids

    def refusing(texts: Sequence[str]) -> list[list[int]]:
        if refused in texts:
            raise UserError("This text cannot be tokenised.")
        return tokenise(texts)

    monkeypatch.setattr(t5, "token_ids", refusing)
    with (
        pytest.raises(UserError, match="cannot be tokenised"),
        tokens.reading_ahead([large_run.rows_ahead()]),
    ):
        inputs_of(large_run, 90)
    assert 0 < large_run.step < 90
    assert not reader_threads()


def test_the_reading_thread_ends_when_training_is_interrupted(
    large_run: Run, t5: Backbone, tokenised: list[list[str]]
) -> None:
    started, interrupted = threading.Event(), threading.Event()
    tokenise = t5.token_ids

    def slow(texts: Sequence[str]) -> list[list[int]]:
        if threading.current_thread() is not threading.main_thread():
            started.set()
            interrupted.wait(10)
        return tokenise(texts)

    def interrupt() -> None:
        assert started.wait(10)
        threading.Timer(0.05, interrupted.set).start()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(t5, "token_ids", slow)
        with pytest.raises(KeyboardInterrupt), tokens.reading_ahead([large_run.rows_ahead()]):
            interrupt()
        assert not reader_threads()
    assert sum(map(len, tokenised)) < 300, "the chunks that were not begun are not read"
    assert len(inputs_of(large_run, 90)) == 90, "later reads do without the thread"


def test_rows_are_read_ahead_on_a_gpu_with_a_tokenizer_that_stays_as_it_is(t5: Backbone) -> None:
    class Switching(PreTrainedTokenizerFast):
        def _switch_to_target_mode(self) -> None:
            self.mode = "target"

    def backbone(device: str, kind: type) -> Any:
        return SimpleNamespace(device=SimpleNamespace(type=device), tokenizer=kind.__new__(kind))

    usual = type(t5.tokenizer)
    assert tokens._can_read_ahead(backbone("cuda", usual))
    assert not tokens._can_read_ahead(backbone("cpu", usual))
    assert not tokens._can_read_ahead(backbone("cuda", Switching))
    assert not tokens._can_read_ahead(backbone("cuda", object)), "no fast tokenizer"
