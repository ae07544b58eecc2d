"""Many clients at once: each gets the answer that its prompt would give alone."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import Mock

import pytest
import torch

from softprompts.backbone import Backbone
from softprompts.errors import UserError
from softprompts.library.library import Library
from softprompts.serving.async_engine import AsyncEngine
from softprompts.serving.device_tier import ServedBank
from softprompts.serving.engine import Engine
from softprompts.serving.jobs import Answer, Job
from softprompts.serving.pace import Pace
from softprompts.serving.prompt_store import PromptStore
from softprompts.serving.requests import (
    BadRequest,
    Closed,
    DeadlineExceeded,
    Limits,
    NotAClassifier,
    Piece,
    QueueFull,
    Sampling,
    TooLong,
    UnknownPrompt,
)
from softprompts.serving.sampler import next_tokens
from softprompts.serving.worker import Worker
from softprompts.tuning.tuned import Tuned

from ..chat_models import chat_model
from ..models import random_model
from .test_engine import MOODS, TEXTS, tuned

Result = TypeVar("Result")


def run(
    backbone: Backbone,
    prompts: dict[str, Tuned],
    ask: Callable[[AsyncEngine], Awaitable[Result]],
    **limits: Any,
) -> Result:
    """What `ask` returns from an engine."""

    async def main() -> Result:
        async with AsyncEngine(backbone, prompts=prompts, limits=Limits(**limits)) as engine:
            return await ask(engine)

    return asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def some_prompts(backbone: Backbone) -> dict[str, Tuned]:
    """Single prompts and mixtures, of several lengths, labels, templates and scorings."""
    prompts = {
        "mood": tuned(backbone, 1, MOODS, length=3),
        "top1": tuned(backbone, 2, MOODS, scoring="labels", length=2, count=3, route="top1"),
        "top2": tuned(backbone, 12, MOODS, scoring="labels", length=3, count=4, route="top2"),
        "soft": tuned(backbone, 3, MOODS, scoring="labels", length=2, count=2, route="soft"),
        "gumbel": tuned(backbone, 4, MOODS, scoring="labels", length=2, count=2, route="gumbel"),
        "long": tuned(backbone, 5, MOODS, scoring="labels", length=9),
        "subject": tuned(
            backbone, 6, ["food", "film", "week"], "is it {text} ?", "labels", length=4
        ),
        "suffix": tuned(backbone, 9, MOODS, scoring="labels", length=2, place="suffix"),
    }
    if backbone.special_token_counts[0]:
        after = tuned(backbone, 10, MOODS, scoring="labels", length=3, place="after-bos")
        prompts["after bos"] = after
    if backbone.generates:
        prompts["free"] = tuned(backbone, 7, [], length=5)
        prompts["free mixture"] = tuned(backbone, 8, [], length=2, count=2, route="soft")
    return prompts


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama", "bert", "minilm"])
def test_answers_are_those_of_predict(kind: str) -> None:
    backbone = random_model(kind)
    prompts = some_prompts(backbone)
    questions = [(name, text) for text in TEXTS[:4] for name in prompts]

    async def ask(engine: AsyncEngine) -> list[str]:
        return await asyncio.gather(*(engine.answer(*question) for question in questions))

    expected = [prompts[name].predict([text])[0] for name, text in questions]
    assert run(backbone, prompts, ask) == expected
    assert Engine(backbone, prompts).answer(questions) == expected


@pytest.mark.parametrize("kind", ["t5", "llama", "bert", "minilm"])
def test_probabilities_and_routes_are_those_of_the_prompt(kind: str) -> None:
    backbone = random_model(kind)
    prompts = {name: p for name, p in some_prompts(backbone).items() if p.form.labels}

    async def ask(engine: AsyncEngine) -> list[Any]:
        return await asyncio.gather(*(engine.classify(name, TEXTS[0]) for name in prompts))

    for (name, prompt), got in zip(prompts.items(), run(backbone, prompts, ask), strict=True):
        expected = prompt.probabilities([TEXTS[0]])[0]
        assert got.probabilities == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert got.label == max(expected, key=lambda label: expected[label])
        (row,) = prompt.predictor().backbone.tokenise(prompt.inputs([TEXTS[0]]), 60)
        assert got.prompt_tokens == len(row) + prompt.prompt.config.length
        if prompt.prompt.config.count == 1:
            assert got.route is None, name
        else:
            text = backbone.embed_rows([row])
            route = prompt.prompt.router_probabilities(text.embeds, text.mask)[0].tolist()
            assert got.route == pytest.approx(route, rel=1e-4)


@pytest.mark.usefixtures("slow_submissions")
def test_what_is_asked_at_once_shares_passes() -> None:
    backbone = random_model("t5")
    prompts = {f"mood {n}": tuned(backbone, n, MOODS, "{text}", "labels") for n in range(5)}
    prompts["free"] = tuned(backbone, 7, [], length=3)
    one_token = Sampling(max_tokens=1)

    async def ask(engine: AsyncEngine) -> None:
        labels = [engine.classify(f"mood {n}", TEXTS[n]) for n in range(5)]
        answers = [anext(engine.generate("free", text, one_token)) for text in TEXTS[:4]]
        await asyncio.gather(*labels, *answers)
        stats = engine.stats()
        assert (stats.passes, stats.rows) == (2, 9), "one for labels, one for first tokens"

    run(backbone, prompts, ask)


def generated(backbone: Backbone, prompt: Tuned, text: str, tokens: int) -> str:
    """A greedy answer of up to `tokens` tokens, alone."""
    predictor = prompt.predictor()
    (row,) = backbone.tokenise(prompt.inputs([text]), predictor.budget)
    embedded = backbone.embed_rows([row], prompt.prompt.config.place)
    vectors = prompt.prompt(embedded.embeds, embedded.mask)
    return backbone.decode(backbone.generate(vectors, embedded, tokens))[0]


@pytest.mark.parametrize("kind", ["t5", "bart", "llama", "gemma2"])
def test_rows_join_and_leave_and_each_answer_is_that_of_its_prompt_alone(kind: str) -> None:
    backbone = random_model(kind)
    prompts = {
        f"prompt {seed}": tuned(backbone, seed, [], length=1 + seed % 4) for seed in range(5)
    } | {"mixture": tuned(backbone, 9, [], length=2, count=2, route="top1")}
    names = [*prompts] * 3
    lengths = [3 + 7 * (number % 6) for number in range(len(names))]
    crowd = list(zip(names, TEXTS * 3, lengths, strict=False))

    async def one(engine: AsyncEngine, number: int) -> str:
        name, text, tokens = crowd[number]
        await asyncio.sleep(0.001 * number)  # so that others have begun
        sampling = Sampling(max_tokens=tokens, stream=number % 2 == 0)
        pieces = [piece async for piece in engine.generate(name, text, sampling)]
        assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert pieces[-1].finish_reason in ("stop", "length")
        return "".join(piece.text for piece in pieces)

    async def ask(engine: AsyncEngine) -> list[str]:
        example = {"text": "I love it", "label": "positive"}
        searches = [asyncio.ensure_future(engine.search([example])) for _ in range(2)]
        answers = await asyncio.gather(*(one(engine, number) for number in range(len(crowd))))
        await asyncio.gather(*searches)
        stats = engine.stats()
        shared = stats.rows > 1.5 * stats.passes
        assert shared or kind == "bart", "rows share steps although they came one by one"
        return answers

    answers = run(backbone, prompts, ask, slots=5)
    for (name, text, tokens), answer in zip(crowd, answers, strict=True):
        assert answer == generated(backbone, prompts[name], text, tokens), (name, tokens)


def test_a_prompt_of_a_decoder_is_read_once_and_dropped_when_its_table_is_full() -> None:
    backbone = random_model("llama")
    prompts = {f"prompt {seed}": tuned(backbone, seed, MOODS, length=6) for seed in range(4)}
    expected = {name: prompt.probabilities(TEXTS) for name, prompt in prompts.items()}

    async def ask(engine: AsyncEngine) -> tuple[int, int]:
        for index, text in enumerate(TEXTS):
            for name in prompts:
                got = await engine.classify(name, text)
                assert got.probabilities == pytest.approx(expected[name][index], rel=1e-4)
        stats = engine.stats()
        assert stats.prefix_hits + stats.prefix_misses + 1 == len(TEXTS) * len(prompts)
        return stats.prefixes, stats.prefix_hits

    assert run(backbone, prompts, ask) == (4, len(TEXTS) * 4 - 4)
    row = 2 * 2 * 2 * 8 * 4  # bytes of a token: two layers, keys and values, two heads of 8 floats
    kept, _ = run(backbone, prompts, ask, prefix_bytes=15 * row)
    assert kept == 2, "15 tokens: one is zero, and 14 hold two prompts of 6"
    kept, _ = run(backbone, prompts, ask, prefix_bytes=15 * row, device_bytes=20 * 32 * 4)
    assert kept <= 2


@pytest.mark.parametrize("table", ["vectors", "heads", "prefixes"])
def test_a_full_table_drops_the_prompt_that_was_used_least_recently(table: str) -> None:
    """Room for two prompts of a, b and c."""
    backbone = random_model("minilm" if table == "heads" else "llama")
    vectors, row = 6 * backbone.hidden * 4, 2 * 2 * 2 * 8 * 4  # as in the test above
    limits = {
        "vectors": {"device_bytes": 2 * vectors + backbone.hidden * 4},
        "heads": {"device_bytes": 4 * 5 * (backbone.feature_size + 1) * 4},  # two labels each
        "prefixes": {"prefix_bytes": 13 * row},
    }
    prompts = {
        name: tuned(backbone, seed, MOODS, length=6) for seed, name in enumerate("abc", start=1)
    }

    async def ask(engine: AsyncEngine) -> None:
        async def use(names: str) -> None:
            for name in names:
                await engine.classify(name, TEXTS[0])

        def kept() -> set[str]:
            pool = getattr(engine.worker.tier, table)
            return {name for name in prompts if engine.store.load(name).key in pool}

        await use("ab")
        assert kept() == {"a", "b"}
        await use("a")
        await use("cc")  # keys and values are kept of prompts that come again
        assert kept() == {"a", "c"}
        await use("ab")
        assert kept() == {"a", "b"}
        await use("ba")
        await use("c")
        assert kept() == {"a", "c"}

    run(backbone, prompts, ask, **limits[table])


def test_streamed_pieces_add_up_stop_in_time_and_report_log_probabilities() -> None:
    backbone = random_model("llama")
    prompt = {"free": tuned(backbone, 5, [], length=3)}
    whole = generated(backbone, prompt["free"], TEXTS[0], 24)
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]

    async def pieces(engine: AsyncEngine, **settings: Any) -> list[Piece]:
        sampling = Sampling(max_tokens=24, **settings)
        return [piece async for piece in engine.generate("free", TEXTS[0], sampling)]

    async def ask(engine: AsyncEngine) -> None:
        streamed = await pieces(engine, logprobs=2)
        assert len(streamed) > 5
        assert "".join(piece.text for piece in streamed) == whole
        assert sum(piece.tokens for piece in streamed) == 24
        tokens = [token for piece in streamed for token in piece.logprobs]
        assert len(tokens) == 24
        for token in tokens:
            assert token.top[0] == (token.token, token.logprob), "greedy: the most probable"
            assert token.top[1][1] <= token.logprob <= 0
        for stops, stream in (((stop, "never"), True), ((stop, "never"), False), (stop, True)):
            stopped = await pieces(engine, stop=stops, stream=stream)
            assert "".join(p.text for p in stopped) == whole[: whole.index(stop)].rstrip()
            assert stopped[-1].finish_reason == "stop"

    run(backbone, prompt, ask)


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_a_seed_gives_the_same_sample_whatever_is_in_the_batch(kind: str) -> None:
    backbone = random_model(kind)
    prompts = {f"prompt {seed}": tuned(backbone, seed, [], length=3) for seed in range(3)}

    async def sample(engine: AsyncEngine, name: str, seed: int, **settings: Any) -> list[str]:
        sampling = Sampling(max_tokens=8, temperature=1.5, seed=seed, n=3, **settings)
        texts = ["", "", ""]
        async for piece in engine.generate(name, TEXTS[1], sampling):
            texts[piece.index] += piece.text
        return texts

    async def ask(engine: AsyncEngine) -> None:
        alone = await sample(engine, "prompt 0", 7)
        assert len(set(alone)) == 3
        cases = [("prompt 1", 1), ("prompt 0", 7), ("prompt 2", 3), ("prompt 0", 8)]
        samples = [sample(engine, *case) for case in cases]
        crowd = await asyncio.gather(*samples, sample(engine, "prompt 1", 2, top_p=0.9))
        assert crowd[1] == alone
        assert crowd[3] != alone
        narrow = await sample(engine, "prompt 0", 7, top_p=1e-9)
        assert narrow == [generated(backbone, prompts["prompt 0"], TEXTS[1], 8)] * 3

    run(backbone, prompts, ask)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.3, 0.6, 0.1]),
        ({"top_p": 0.8}, [1 / 3, 2 / 3, 0]),
        ({"temperature": 0.5}, [9 / 46, 36 / 46, 1 / 46]),
        ({"temperature": 0.0}, [0, 1, 0]),
        ({"temperature": 1e-320}, [0, 1, 0]),
        ({"top_p": 0.0}, [0, 1, 0]),
    ],
)
def test_samples_follow_the_probabilities(
    settings: dict[str, float], expected: list[float]
) -> None:
    backbone = random_model("llama")
    store = PromptStore(backbone, [], {"free": tuned(backbone, 1, [])}, 0)
    job = Job(store.load("free"), "", "", 0, None, print)
    sampling: Any = {"temperature": 1.0, **settings}
    answers = [Answer(job, Sampling(seed=seed, **sampling), 0) for seed in range(3000)]
    logits = torch.tensor([0.3, 0.6, 0.1]).log().expand(len(answers), -1)
    tokens = [token for token, _ in next_tokens(logits, answers)]
    shares = [tokens.count(token) / len(tokens) for token in range(3)]
    assert shares == pytest.approx(expected, abs=0.03)


def test_refusals_say_why() -> None:
    backbone = random_model("t5")
    prompts = {"mood": tuned(backbone, 1, MOODS), "free": tuned(backbone, 2, [])}

    async def fails(awaited: Coroutine[Any, Any, Any], kind: type[Exception], message: str) -> None:
        with pytest.raises(kind, match=message):
            await awaited

    async def ask(engine: AsyncEngine) -> None:
        async def generate(question: Any = "x", name: str = "free", **settings: Any) -> None:
            async for _ in engine.generate(name, question, Sampling(**settings)):
                pass

        await fails(engine.classify("mod", "x"), UnknownPrompt, "'mod'; did you mean mood")
        await fails(engine.classify("../mood", "x"), UnknownPrompt, "no prompt")
        await fails(engine.classify("free", "x"), NotAClassifier, "has no labels")
        await fails(engine.classify("mood", 3), BadRequest, "Question 1 is 3")  # type: ignore[arg-type]
        await fails(engine.classify("mood", {"body": "x"}), BadRequest, "no column 'text'")
        await fails(engine.classify("mood", "x" * 2000), TooLong, "2,000 characters")
        await fails(generate(max_tokens=65), TooLong, "64 tokens, not 65")
        await fails(generate(temperature=-1), BadRequest, "temperature is -1")
        await fails(generate(top_p=2), BadRequest, "from 0 to 1")
        await fails(generate(n=99), BadRequest, "n is 99")
        await fails(generate(stop=("",)), BadRequest, "stop")
        await fails(generate(stop=(1,)), BadRequest, r"stop is \(1,\); it must be texts")
        await fails(generate(n=1.5), BadRequest, "n is 1.5; it must be a whole number")
        await fails(generate(logprobs=True), BadRequest, "logprobs is True; it must be a whole num")
        await fails(generate(temperature="1"), BadRequest, "temperature is '1'; it must be a num")
        assert engine.stats().requests == 0

    run(backbone, prompts, ask, max_characters=1000, max_tokens=64)

    async def long(engine: AsyncEngine) -> None:
        await fails(engine.classify("mood", "word " * 100), TooLong, "reads at most")

    run(backbone, prompts, long, truncate=False)

    async def encoder_only(engine: AsyncEngine) -> None:
        pieces = engine.generate("mood", "x")
        with pytest.raises(BadRequest, match="cannot generate"):
            await anext(pieces)

    bert = random_model("bert")
    run(bert, {"mood": tuned(bert, 1, MOODS)}, encoder_only)


def test_a_full_queue_refuses_and_what_is_cancelled_or_late_frees_its_place() -> None:
    backbone = random_model("t5")
    prompts = {"free": tuned(backbone, 1, []), "mood": tuned(backbone, 2, MOODS)}
    endless = Sampling(max_tokens=4096)

    async def ask(engine: AsyncEngine) -> None:
        first = engine.generate("free", "one", endless)
        assert (await anext(first)).index == 0
        waiting = [engine.generate("free", f"text {number}", endless) for number in range(3)]
        tasks = [asyncio.ensure_future(anext(pieces)) for pieces in waiting]
        late = asyncio.ensure_future(anext(engine.generate("free", "late", endless, timeout=1)))
        await until(lambda: engine.stats().waiting == 4)
        with pytest.raises(QueueFull) as refusal:
            await engine.classify("mood", "no more")
        with pytest.raises(QueueFull):
            await anext(engine.generate("free", "nor this", endless))
        assert refusal.value.retry_after > 0
        assert engine.stats().refused == 2
        assert engine.stats().requests == 5, "those that were accepted"
        with pytest.raises(DeadlineExceeded):
            await late
        tasks[0].cancel()
        await until(lambda: engine.stats().waiting == 2)
        assert (await engine.classify("mood", "again")).label in MOODS
        await first.aclose()  # frees the only slot
        assert (await tasks[1]).index == 0
        await waiting[1].aclose()
        assert (await tasks[2]).index == 0
        await waiting[2].aclose()
        with pytest.raises(DeadlineExceeded):
            async for _ in engine.generate("free", "too long", endless, timeout=0.05):
                pass
        await until(lambda: engine.stats().decoding == 0)
        stats = engine.stats()
        assert (stats.cancelled, stats.expired, stats.waiting) == (4, 2, 0)

    run(backbone, prompts, ask, slots=1, queue=4, max_tokens=4096)


def test_a_failed_batch_fails_its_requests_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backbone = random_model("t5")
    prompts = {"free": tuned(backbone, 1, []), "mood": tuned(backbone, 2, MOODS)}

    async def ask(engine: AsyncEngine) -> None:
        for place, error in [
            ("softprompts.serving.device_tier.ServedBank.score", ValueError("score")),
            ("softprompts.serving.device_tier.ServedBank.prefill", ValueError("prefill")),
            ("softprompts.serving.slots.SlottedRows.join", ValueError("join")),
            ("softprompts.serving.slots.SlottedRows.step", ValueError("step")),
            ("softprompts.serving.worker.Worker._drop_stopped", ValueError("stopped")),
        ]:
            with monkeypatch.context() as patched:
                patched.setattr(place, Mock(side_effect=error))
                classified = engine.classify("mood", TEXTS[0])
                answers = await asyncio.gather(
                    classified, engine.answer("free", TEXTS[0]), return_exceptions=True
                )
            assert any(answer is error for answer in answers), place
            assert (await engine.classify("mood", TEXTS[0])).label in MOODS
            assert await engine.answer("free", TEXTS[0]) == prompts["free"].predict(TEXTS[:1])[0]
        assert engine.stats().failed >= 5

    run(backbone, prompts, ask)
    assert "a batch of 1 requests failed" in caplog.text


def test_a_batch_that_needs_too_much_memory_is_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = random_model("t5")
    prompts = {"mood": tuned(backbone, 2, MOODS, scoring="labels")}
    score = ServedBank.score
    sizes: list[int] = []

    def limited(bank: ServedBank, kind: Any, rows: Any, candidates: Any) -> torch.Tensor:
        sizes.append(len(rows))
        if len(rows) > 2:
            raise torch.OutOfMemoryError
        return score(bank, kind, rows, candidates)

    async def ask(engine: AsyncEngine) -> list[str]:
        got = await asyncio.gather(*(engine.classify("mood", text) for text in TEXTS))
        return [one.label for one in got]

    monkeypatch.setattr(ServedBank, "score", limited)
    assert run(backbone, prompts, ask) == prompts["mood"].predict(TEXTS)
    assert max(sizes) > 2


@pytest.mark.parametrize(("latency", "smallest", "largest"), [(1e-6, 2, 50), (1e3, 100, 256)])
def test_batches_are_as_large_as_the_latency_allows(
    latency: float, smallest: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = random_model("t5")
    prompts = {"mood": tuned(backbone, 2, MOODS, scoring="labels")}
    score, sizes = ServedBank.score, list[int]()

    def recorded(bank: ServedBank, kind: Any, rows: Any, candidates: Any) -> torch.Tensor:
        sizes.append(len(rows))
        return score(bank, kind, rows, candidates)

    for name in ("add", "choose"):  # passes take this long, whatever else the machine does
        note = getattr(Pace, name)
        monkeypatch.setattr(
            Pace, name, lambda pace, n, _, note=note: note(pace, n, 1e-3 + 1e-5 * n)
        )

    async def ask(engine: AsyncEngine) -> None:
        for _ in range(2):
            await asyncio.gather(*(engine.classify("mood", TEXTS[0]) for _ in range(300)))
            del sizes[:1]  # it is not known yet how long a pass takes

    monkeypatch.setattr(ServedBank, "score", recorded)
    run(backbone, prompts, ask, latency=latency)
    assert smallest <= max(sizes) <= largest


@torch.no_grad()
def test_answers_begin_together_beside_many_in_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """All in progress wait while others begin."""
    backbone = random_model("t5")
    monkeypatch.setattr(type(backbone), "eos_ids", set())  # no answer ends early
    engine = AsyncEngine(backbone, prompts={"free": tuned(backbone, 7, [], length=3)})
    prompt, worker, begun = engine.store.load("free"), engine.worker, list[int]()
    begin = worker._begin

    def counted(jobs: list[Job]) -> None:
        begun.append(len(jobs))
        begin(jobs)

    def jobs(count: int) -> list[Job]:
        sampling = Sampling(max_tokens=60, stream=False)
        return [
            Job(prompt, TEXTS[0], "tenant", 0, None, Mock(), sampling=sampling)
            for _ in range(count)
        ]

    monkeypatch.setattr(worker, "_begin", counted)
    monkeypatch.setattr(worker, "_step_for", lambda seconds, until: worker._step())
    play_round(worker, jobs(1))
    play_round(worker, jobs(2))
    assert begun == [1, 2], "few in progress are not kept waiting for long"
    play_round(worker, jobs(29))
    begun.clear()
    for _ in range(12):
        play_round(worker, jobs(1))
    assert begun == [4, 5]
    for _ in range(8):
        play_round(worker, [])
    assert begun == [4, 5, 3], "none waits for more than eight tokens"


def play_round(worker: Worker, jobs: list[Job], until: float = 0.0) -> None:
    worker._taken = jobs
    worker._round(until)


@torch.no_grad()
@pytest.mark.parametrize(("seconds", "other"), [(10.0, 0.0), (0.0, 10.0), (10.0, 5.0)])
def test_what_is_in_progress_gets_as_much_time_as_what_begins(
    seconds: float, other: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or new answers, or those of another engine of the model, could keep those in progress from
    ever ending."""
    backbone = random_model("t5")
    engine = AsyncEngine(backbone, prompts={"free": tuned(backbone, 7, [], length=3)})
    worker, begin, step, now = engine.worker, engine.worker._begin, engine.worker._step, 0.0
    steps = 0

    def slow_begin(jobs: list[Job]) -> None:
        nonlocal now
        now += seconds
        begin(jobs)

    def slow_step() -> None:
        nonlocal now, steps
        now, steps = now + 1.0, steps + 1
        step()

    monkeypatch.setattr(type(backbone), "eos_ids", set())
    monkeypatch.setattr("softprompts.serving.worker.time.perf_counter", lambda: now)
    monkeypatch.setattr(worker, "_begin_pace", Mock(budget=100))
    monkeypatch.setattr(worker, "_begin", slow_begin)
    monkeypatch.setattr(worker, "_step", slow_step)
    sampling = Sampling(max_tokens=60, stream=False)
    prompt = engine.store.load("free")
    job = Job(prompt, TEXTS[0], "tenant", 0, None, Mock(), sampling=sampling)
    play_round(worker, [job], until=other)
    assert steps == (10 if seconds else 9), "as long as the turn before, less one step"


def test_short_rows_share_a_pass_though_long_ones_need_their_own() -> None:
    backbone = random_model("t5")
    engine = AsyncEngine(backbone, prompts={"free": tuned(backbone, 7, [], length=3)})
    bank = ServedBank(engine.worker.tier, [engine.store.load("free")], 0)
    queries = [(0, [5] * length) for length in (10,) * 20 + (97,) + (10,) * 20]
    sizes = [3 + len(row) for _, row in queries]
    passes = [rows for _, rows in bank.split(queries, sizes, Limits(batch_tokens=400))]
    assert [len(rows) for rows in passes] == [4, 400 // 13, 7]
    assert passes[0][0] == 20
    assert sorted(row for rows in passes for row in rows) == list(range(41))


def test_closing_finishes_what_was_taken_or_gives_it_up() -> None:
    backbone = random_model("t5")
    prompts = {"free": tuned(backbone, 1, [])}

    async def main(finish: bool) -> list[Any]:
        engine = AsyncEngine(backbone, prompts=prompts, limits=Limits(slots=2))
        await engine.start()
        asked = [engine.answer("free", text) for text in TEXTS]
        tasks = [asyncio.ensure_future(question) for question in asked]
        await asyncio.sleep(0.005)
        await engine.close(finish=finish)
        assert not engine.running
        with pytest.raises(Closed):
            await engine.answer("free", "more")
        return await asyncio.gather(*tasks, return_exceptions=True)

    assert asyncio.run(main(finish=True)) == prompts["free"].predict(TEXTS)
    given_up = asyncio.run(main(finish=False))
    assert any(isinstance(answer, Closed) for answer in given_up)


def test_an_engine_is_started_once_before_it_is_asked() -> None:
    backbone = random_model("t5")

    async def main() -> None:
        engine = AsyncEngine(backbone, prompts={"mood": tuned(backbone, 1, MOODS)})
        with pytest.raises(Closed, match="The engine is not started"):
            await engine.classify("mood", "x")
        async with engine:
            await engine.classify("mood", "x")
        with pytest.raises(UserError, match="can be started only once; create another one"):
            await engine.start()

    asyncio.run(main())


def test_one_busy_tenant_does_not_starve_another() -> None:
    backbone = random_model("t5")
    prompts = {"mood": tuned(backbone, 1, MOODS)}

    async def ask(engine: AsyncEngine) -> list[str]:
        order: list[str] = []

        async def classify(tenant: str, priority: int = 0) -> None:
            await engine.classify("mood", TEXTS[0], tenant=tenant, priority=priority)
            order.append(tenant)

        busy = [asyncio.ensure_future(classify("busy")) for _ in range(60)]
        await asyncio.sleep(0)
        others = [asyncio.ensure_future(classify("quiet")) for _ in range(3)]
        urgent = asyncio.ensure_future(classify("urgent", priority=1))
        await asyncio.gather(*busy, *others, urgent)
        return order

    order = run(backbone, prompts, ask, batch_rows=4)
    assert order.index("urgent") < 12
    assert max(place for place, tenant in enumerate(order) if tenant == "quiet") < 40


def test_one_busy_prompt_does_not_starve_another() -> None:
    """Without tenants, prompts have equal shares."""
    backbone = random_model("t5")
    prompts = {name: tuned(backbone, 1, MOODS, scoring="labels") for name in ("busy", "quiet")}

    async def ask(engine: AsyncEngine) -> list[str]:
        order: list[str] = []

        async def classify(name: str) -> None:
            await engine.classify(name, "word " * 60)
            order.append(name)

        await asyncio.gather(*(classify(name) for name in ["busy"] * 60 + ["quiet"] * 3))
        return order

    order = run(backbone, prompts, ask, batch_rows=4)
    assert max(place for place, name in enumerate(order) if name == "quiet") < 20


@pytest.mark.parametrize("kind", ["t5", "llama", "bert"])
def test_a_search_ranks_prompts_by_how_well_they_predict_examples(kind: str) -> None:
    backbone = random_model(kind)
    prompts = {f"prompt {seed}": tuned(backbone, seed, MOODS, length=3) for seed in range(6)}
    prompts["other columns"] = tuned(backbone, 9, MOODS, "{premise}")
    rows = [{"text": text, "label": MOODS[number % 2]} for number, text in enumerate(TEXTS)]

    @torch.no_grad()
    def mean_log_probability(prompt: Tuned) -> float:
        texts = backbone.embed_rows(backbone.tokenise([str(row["text"]) for row in rows], 60))
        targets = backbone.tokenise_targets([str(row["label"]) for row in rows])
        losses = backbone.losses(prompt.prompt(texts.embeds, texts.mask), texts, targets)
        return -float(losses.nll.sum() / losses.tokens.sum())

    async def ask(engine: AsyncEngine) -> None:
        expected = {name: mean_log_probability(prompts[name]) for name in list(prompts)[:6]}
        best = sorted(expected, key=lambda name: -expected[name])
        fits = await engine.search(rows, 4)
        assert [fit.name for fit in fits] == best[:4]
        assert [fit.score for fit in fits] == pytest.approx([expected[n] for n in best[:4]])
        targets = backbone.tokenise_targets([str(row["label"]) for row in rows])
        totals = torch.tensor([expected[name] * sum(map(len, targets)) for name in best])
        embeddings = torch.tensor([engine.embedding(name) for name in best])
        mean = totals.softmax(0) @ embeddings
        assert await engine.embed(rows) == pytest.approx(mean.tolist(), abs=1e-3)
        with pytest.raises(BadRequest, match="No prompt reads rows with these columns"):
            await engine.search([{"body": "x"}])

    run(backbone, prompts, ask)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "ok", "label": "x " * 6000}, "target of row 2 has 12,001 tokens; at most 512"),
        ({"text": "ok", "label": "x " * 60000}, "target of row 2 has 119,999 characters; at most"),
        ({"text": "x " * 60000, "label": "ok"}, "text of row 2 has 119,999 characters; at most"),
    ],
)
def test_a_search_has_the_limits_of_other_requests(row: dict[str, str], message: str) -> None:
    backbone = random_model("t5")

    async def ask(engine: AsyncEngine) -> None:
        for search in (engine.search, engine.embed):
            with pytest.raises(TooLong, match=message):
                await search([{"text": "ok", "label": "ok"}, row])
        assert engine.stats().rows == 0

    run(backbone, {"free": tuned(backbone, 1, [], length=3)}, ask)


def test_long_targets_do_not_share_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = random_model("t5")
    scored: list[int] = []
    score = ServedBank.score

    def recorded(self: ServedBank, kind: Any, rows: Any, candidates: Any) -> Any:
        scored.append(len(rows))
        return score(self, kind, rows, candidates)

    monkeypatch.setattr(ServedBank, "score", recorded)
    rows = [{"text": "good", "label": "food " * 50}] * 4

    async def ask(engine: AsyncEngine) -> None:
        await engine.search(rows)
        assert scored == [1] * 4

    run(backbone, {"free": tuned(backbone, 1, [], length=3)}, ask, batch_tokens=100)


def test_chat_prompts_and_plain_ones_share_an_engine() -> None:
    backbone = chat_model()
    plain = some_prompts(backbone)
    prompts = {name: plain[name] for name in ("mood", "top1", "free")}
    for name, prompt in list(prompts.items()):
        config = {"tuning": {"max_length": 96, "chat": True}}
        prompts[f"{name} in a chat"] = replace(prompt, card=replace(prompt.card, config=config))
    questions = [(name, text) for text in TEXTS[:3] for name in prompts]

    async def ask(engine: AsyncEngine) -> list[str]:
        return await asyncio.gather(*(engine.answer(*question) for question in questions))

    assert run(backbone, prompts, ask) == [prompts[n].predict([text])[0] for n, text in questions]


def test_requests_keep_their_answers_while_prompts_come_and_go(tmp_path: Path) -> None:
    backbone = random_model("llama")
    versions = [tuned(backbone, seed, MOODS, scoring="labels", length=3) for seed in range(4)]
    for seed, version in enumerate(versions):
        version.save(tmp_path / "runs" / f"v{seed}")
    probabilities = [tuple(v.probabilities([TEXTS[0]])[0].values()) for v in versions]
    library = Library(tmp_path / "library")
    library.add(tmp_path / "runs" / "v0", "changing")
    library.add(tmp_path / "runs" / "v0", "steady")
    over = False

    def churn() -> None:
        for step in range(12):
            library.add(tmp_path / "runs" / f"v{step % 4}", "changing", overwrite=True)
            library.add(tmp_path / "runs" / f"v{step % 4}", f"new{step % 2}", overwrite=True)
            library.remove(f"new{step % 2}")

    async def client(engine: AsyncEngine, name: str) -> int:
        answered = 0
        while not over:
            try:
                got = await engine.classify(name, TEXTS[0])
            except UnknownPrompt:
                assert name.startswith("new")
                continue
            row = tuple(got.probabilities.values())
            known = probabilities[:1] if name == "steady" else probabilities
            assert any(row == pytest.approx(one, rel=1e-4) for one in known)
            answered += 1
        return answered

    async def main() -> None:
        nonlocal over
        async with AsyncEngine(backbone, tmp_path / "library") as engine:
            names = ["changing", "changing", "steady", "new0", "new1"]
            clients = [asyncio.ensure_future(client(engine, name)) for name in names]
            await asyncio.to_thread(churn)
            over = True
            answered = await asyncio.gather(*clients)
            assert min(answered[:3]) > 3
            assert engine.stats().failed == 0
            last = await engine.classify("changing", TEXTS[0])
            assert tuple(last.probabilities.values()) == pytest.approx(probabilities[3], rel=1e-4)
            await engine.classify("steady", TEXTS[0])
            assert engine.stats().on_device <= 4, "old versions are dropped"

    asyncio.run(main())


def test_a_prompt_on_a_slow_disk_does_not_hold_a_request_past_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone = random_model("t5")
    read = threading.Event()

    async def ask(engine: AsyncEngine) -> str:
        load, loaded = engine.store.load, engine.store.loaded
        monkeypatch.setattr(
            engine.store, "loaded", lambda name: loaded(name) if read.is_set() else None
        )
        monkeypatch.setattr(engine.store, "load", lambda name: (read.wait(5), load(name))[1])
        for ask_once in (engine.classify, engine.answer):
            with pytest.raises(DeadlineExceeded, match="timed out"):
                await ask_once("mood", TEXTS[0], timeout=0.05)
        read.set()
        return (await engine.classify("mood", TEXTS[0])).label

    assert run(backbone, {"mood": tuned(backbone, 1, MOODS, length=3)}, ask) in MOODS
