"""Slots whose steps are recorded: every row's logits are those that it would have alone, whoever
joins and leaves; and engines that record give the answers of those that do not."""

import asyncio
from typing import Any

import pytest
import torch
from torch import Tensor

from softprompts.backbone import Generative
from softprompts.backbone.kv_cache import DecodingState
from softprompts.backbone.speed import inference
from softprompts.backbone.speed.graphs import StepGraphs
from softprompts.backbone.speed.packed_rows import CAUSAL_TYPES
from softprompts.serving import recorded_rows
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.recorded_rows import RecordedRows, padded_columns, padded_rows
from softprompts.serving.recording import try_recording
from softprompts.serving.requests import Limits

from ..backbone.speed.test_inference import batch, model, run_directly
from ..backbone.speed.test_packed_rows import inputs
from .test_async_engine import (  # noqa: F401 - tests run again, with recorded passes
    run,
    test_a_seed_gives_the_same_sample_whatever_is_in_the_batch,
    test_answers_are_those_of_predict,
    test_chat_prompts_and_plain_ones_share_an_engine,
    test_probabilities_and_routes_are_those_of_the_prompt,
    test_requests_keep_their_answers_while_prompts_come_and_go,
    test_rows_join_and_leave_and_each_answer_is_that_of_its_prompt_alone,
)
from .test_engine import tuned

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
KINDS = ["t5", "mt5", *sorted(CAUSAL_TYPES)]


@pytest.fixture(autouse=True)
def _record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record without a GPU: that is, run the passes with the sizes of recorded ones."""
    monkeypatch.setattr("softprompts.serving.recording.recorder", lambda _: run_directly)


class Alone:
    """One row, decoded in the model's own cache."""

    def __init__(self, backbone: Generative, size: int, seed: int) -> None:
        self.backbone, self.tokens = backbone, [seed + 5]
        text = backbone.embed_rows(inputs(backbone, seed, [size]))
        generator = torch.Generator().manual_seed(seed)
        prompt = torch.randn(1, 3, backbone.hidden, generator=generator).to(backbone.device)
        self.length, self.state = size + 3, backbone.prefill(prompt, text)

    def step(self) -> Tensor:
        token = torch.tensor([[self.tokens[-1]]], device=self.backbone.device)
        logits = self.backbone.extend(self.state, token)[0, -1]
        self.tokens.append((self.tokens[-1] * 7 + 1) % 90 + 5)
        return logits


def copy(alone: Alone) -> DecodingState:
    return alone.state.rows(torch.tensor([0], device=alone.backbone.device))


@torch.no_grad()
def play(backbone: Generative, rows: RecordedRows, steps: int = 60) -> None:
    """Rows join and leave, and are compared with the same rows alone after each step."""
    playing: list[Alone] = []
    for number in range(steps):
        if number % 3 == 0 and len(playing) < 7:
            new = Alone(backbone, 1 + 11 * number % 40, number)
            rows.join(copy(new), [0], [new.length])
            playing.append(new)
        if number % 7 == 6 or number == steps // 2:
            leaving = list(range(len(playing))) if number == steps // 2 else [0, len(playing) - 1]
            stay = rows.leave(leaving)
            playing = [playing[row] for row in stay]
        if not playing:
            continue
        got = rows.step([alone.tokens[-1] for alone in playing])
        expected = torch.stack([alone.step() for alone in playing])
        torch.testing.assert_close(got, expected, atol=2e-4, rtol=2e-4)


def recorded(backbone: Generative, record: Any = run_directly, most: int = 16) -> RecordedRows:
    return RecordedRows(backbone, most, 2**30, record)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("columns", [16, 128])
def test_rows_have_the_logits_that_they_would_have_alone(
    kind: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With few columns, rows are moved and buffers grow often."""
    monkeypatch.setattr(recorded_rows, "FEWEST_COLUMNS", columns)
    monkeypatch.setattr(recorded_rows, "SPARE_COLUMNS", columns // 2)
    backbone = model(kind)
    play(backbone, recorded(backbone))


def test_a_step_has_few_sizes() -> None:
    backbone, kinds = model("llama"), set[object]()

    def record(step: Any, tensors: Any, kind: object) -> Any:
        kinds.add((kind, tensors[0].shape))
        return step(*tensors)

    play(backbone, recorded(backbone, record))
    assert len(kinds) <= 4
    assert [padded_rows(count) for count in (1, 4, 5, 17, 70)] == [4, 4, 8, 32, 128]
    assert [padded_columns(count) for count in (0, 1, 129, 300)] == [0, 128, 256, 512]


def join(rows: RecordedRows, *new: Alone) -> None:
    for alone in new:
        rows.join(copy(alone), [0], [alone.length])


def compare(rows: RecordedRows, playing: list[Alone]) -> None:
    got = rows.step([alone.tokens[-1] for alone in playing])
    expected = torch.stack([alone.step() for alone in playing])
    torch.testing.assert_close(got, expected, atol=2e-4, rtol=2e-4)


def held(rows: RecordedRows) -> int:
    return rows.own.keys_values.nbytes + rows.cross.keys_values.nbytes


@torch.no_grad()
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_slots_stay_within_their_memory(kind: str) -> None:
    """A long row takes columns that many short ones need as slots after it has left."""
    backbone = model(kind)
    long, short = Alone(backbone, 200, 1), [Alone(backbone, 3, seed) for seed in range(2, 34)]
    alone = recorded(backbone, most=64)
    join(alone, long)
    limit = 6 * held(alone)
    rows = RecordedRows(backbone, 64, limit, run_directly)
    join(rows, long, *short[:2])
    compare(rows, [long, *short[:2]])
    rows.leave([0])
    join(rows, *short[2:])
    assert held(rows) <= limit
    compare(rows, short)
    nothing = RecordedRows(backbone, 64, 0, run_directly)
    join(nothing, *short[:3])
    assert nothing.own.slots == 3
    assert nothing.cross.slots in (0, 3)


@torch.no_grad()
def test_buffers_that_are_short_of_memory_grow_by_several_slots() -> None:
    backbone = model("llama")
    one = recorded(backbone, most=64)
    join(one, Alone(backbone, 3, 1))
    rows = RecordedRows(backbone, 64, held(one) // one.own.slots * 50, run_directly)
    sizes = set()
    for seed in range(50):
        join(rows, Alone(backbone, 3, seed))
        sizes.add(rows.own.slots)
    assert sizes == {4, 8, 16, 32, 48, 50}


@torch.no_grad()
@pytest.mark.parametrize("kind", ["t5", "gpt2"])
def test_a_row_leaves_nothing_behind(kind: str) -> None:
    """Not even NaN, which a weight of zero does not hide."""
    backbone = model(kind)
    rows = recorded(backbone)
    join(rows, Alone(backbone, 30, 1))
    rows.own.keys_values.fill_(torch.nan)
    rows.cross.keys_values.fill_(torch.nan)
    rows.leave([0])
    good = Alone(backbone, 5, 2)
    join(rows, good)
    compare(rows, [good])


@torch.no_grad()
@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_ranks_are_closed(kind: str) -> None:
    """A step for the last of many rows is small."""
    backbone, sizes = model(kind), list[int]()

    def record(step: Any, tensors: Any, kind: object) -> Any:
        sizes.append(tensors[0].shape[1])
        return step(*tensors)

    rows, playing = recorded(backbone, record, most=64), list[Alone]()
    for seed in range(20):
        playing.append(Alone(backbone, 3 + seed, seed))
        join(rows, playing[-1])
    compare(rows, playing)
    playing = [playing[row] for row in rows.leave(range(19))]
    compare(rows, playing)
    assert sizes == [32, 4]


@torch.no_grad()
def test_long_answers_are_recorded_once() -> None:
    backbone, kinds = model("llama"), set[object]()

    def record(step: Any, tensors: Any, kind: object) -> Any:
        kinds.add(kind)
        return step(*tensors)

    rows = recorded(backbone, record)
    for request in range(3):
        join(rows, Alone(backbone, 3, request))
        for _ in range(150):
            rows.step([7])
        rows.leave([0])
        if request == 0:
            first = set(kinds)
    assert len(kinds) <= len(first) + 1


@torch.no_grad()
def test_a_step_can_be_repeated_after_it_ran_out_of_memory() -> None:
    backbone, alone = model("t5"), Alone(model("t5"), 5, 1)
    rows = recorded(backbone)
    join(rows, alone)
    with pytest.MonkeyPatch.context() as patch:

        def fail(*_: Any) -> None:
            raise torch.OutOfMemoryError("full")

        patch.setattr(rows, "record", fail)
        with pytest.raises(torch.OutOfMemoryError):
            rows.step(alone.tokens[-1:])
    compare(rows, [alone])


@pytest.mark.parametrize("kind", ["mistral", "gemma3_text"])
def test_plain_passes_after_cached_prompts_stay_within_the_window(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where recorded passes would pad a cached prompt, a plain one counts its pads, too."""
    monkeypatch.setattr(inference, "MAX_WORK", 0)
    backbone = model(kind)
    prompt = tuned(backbone, 1, ["good", "bad"], scoring="labels", length=5)
    texts = ["a" * size for size in (1, 4, 6, 9, 30)]

    async def ask(engine: AsyncEngine) -> list[dict[str, float]]:
        found = await asyncio.gather(*(engine.classify("mood", text) for text in texts))
        return [answer.probabilities for answer in found]

    for got, expected in zip(
        run(backbone, {"mood": prompt}, ask), prompt.probabilities(texts), strict=True
    ):
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_large_batches_are_split_so_that_their_passes_are_recorded(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, rows = model(kind), list[int]()
    prompt = tuned(backbone, 1, ["good", "bad"], scoring="labels", length=5)
    texts = ["a" * (1 + size % 20) for size in range(50)]
    expected = [prompt.probabilities([text])[0] for text in texts]
    monkeypatch.setattr(inference, "MAX_WORK", 16 * inference.FEWEST_COLUMNS * backbone.hidden**2)

    async def ask(engine: AsyncEngine) -> list[dict[str, float]]:
        await engine.classify("mood", "a")  # which starts the recording
        recording = engine.worker.tier.recording
        assert recording is not None
        scores, plain = recording.scores, type(backbone).scores

        def count(prompt: Any, text: Any, candidates: Any) -> Any:
            rows.append(len(candidates))
            return scores(prompt, text, candidates)

        monkeypatch.setattr(recording, "scores", count)
        monkeypatch.setattr(type(backbone), "scores", None)
        found = await asyncio.gather(*(engine.classify("mood", text) for text in texts))
        monkeypatch.setattr(type(backbone), "scores", plain)
        return [answer.probabilities for answer in found]

    for got, of_text in zip(run(backbone, {"mood": prompt}, ask), expected, strict=True):
        assert got == pytest.approx(of_text, rel=1e-4, abs=1e-6)
    assert max(rows) == 16
    assert sum(rows) >= len(texts)


def test_an_engine_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on without, if the model cannot be recorded."""
    backbone = model("t5")
    recording = try_recording(backbone, Limits())
    assert recording is not None
    slots = recording.empty_rows()
    assert recording.empty_rows() is slots, "its steps are recorded"
    slots.lengths.append(1)
    assert recording.empty_rows() is not slots, "it is in use"

    def fail(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    assert recording.scores(*batch(backbone, [3] * 4), [[[7], [8]]] * 4) is not None
    monkeypatch.setattr(recording.passes, "record", fail)
    assert recording.scores(*batch(backbone, [3] * 4), [[[7], [8]]] * 4) is None
    assert not recording.fits(4, 10), "it does not try again"
    monkeypatch.setattr("softprompts.serving.recording.recorder", lambda _: fail)
    assert try_recording(backbone, Limits()) is None
    monkeypatch.setattr("softprompts.serving.recording.recorder", lambda _: None)
    assert try_recording(backbone, Limits()) is None


def test_a_recorder_that_cannot_be_made_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorder(backbone: Generative) -> None:
        raise RuntimeError("CUDA error: device is busy")

    monkeypatch.setattr("softprompts.serving.recording.recorder", recorder)
    assert try_recording(model("t5"), Limits()) is None


@gpu
@pytest.mark.parametrize("kind", KINDS)
def test_recorded_steps(kind: str) -> None:
    backbone, graphs = model(kind), StepGraphs()
    backbone.model.to("cuda")
    try:
        play(backbone, recorded(backbone, graphs))
        assert 0 < graphs.recorded <= 6
    finally:
        backbone.model.to("cpu")
