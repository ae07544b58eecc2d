"""The HTTP server with OpenAI's own client: sync, async and streaming, on a T5 and a Llama."""

import asyncio
import json
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from softprompts.backbone import Backbone
from softprompts.serving.async_engine import AsyncEngine
from softprompts.tuning.tuned import Tuned

from ..models import TOY, random_model
from .http_server import Running, ask, running
from .test_engine import MOODS, tuned

TEXTS = [text for text, _ in TOY]
ROWS = [{"text": text, "kind": "new"} for text in TEXTS[:2]]
PAIRS = "is it {kind} ? {text}"


def prompts(backbone: Backbone) -> dict[str, Tuned]:
    return {
        "mood": tuned(backbone, 1, MOODS, scoring="labels", length=3),
        "spoken mood": tuned(backbone, 2, MOODS, scoring="generate", length=3),
        "mixture": tuned(backbone, 3, MOODS, scoring="labels", length=2, count=3, route="top1"),
        "pair": tuned(backbone, 4, ["food", "film"], PAIRS, "labels", length=4),
        "free": tuned(backbone, 5, [], scoring="generate", length=5),
    }


@pytest.fixture(scope="module", params=["t5-tiny", "llama"])
def backbone(request: pytest.FixtureRequest, tiny: Backbone) -> Backbone:
    return tiny if request.param == "t5-tiny" else random_model("llama")


@pytest.fixture(scope="module")
def all_prompts(backbone: Backbone) -> dict[str, Tuned]:
    return prompts(backbone)


@pytest.fixture(scope="module")
def server(backbone: Backbone, all_prompts: dict[str, Tuned]) -> Iterator[Running]:
    with running(AsyncEngine(backbone, prompts=all_prompts)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="EMPTY", max_retries=0) as client:
        yield client


def test_prompts_are_listed_as_vllm_lists_adapters(
    client: OpenAI, server: Running, backbone: Backbone
) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == sorted(prompts(backbone))
    for model in models:
        assert model.object == "model"
        assert model.model_extra == {"root": backbone.name, "parent": backbone.name}
    details = client.models.retrieve("spoken mood").model_extra
    assert details is not None
    assert (details["labels"], details["scoring"]) == (MOODS, "generate")
    assert details["form"]["template"] == "{text}"
    with pytest.raises(openai.NotFoundError, match="There is no prompt 'mod'"):
        client.models.retrieve("mod")


def test_completions_answer_as_predict_does(
    client: OpenAI, all_prompts: dict[str, Tuned], backbone: Backbone
) -> None:
    for name in ("mood", "spoken mood", "free", "mixture"):
        reply = client.completions.create(model=name, prompt=TEXTS)
        expected = all_prompts[name].predict(TEXTS, verbose=False)
        assert [choice.text.strip() for choice in reply.choices] == expected
        assert [choice.index for choice in reply.choices] == list(range(len(TEXTS)))
        assert (reply.object, reply.model) == ("text_completion", name)
        usage = reply.usage
        assert usage is not None
        length = all_prompts[name].prompt.config.length
        rows = backbone.tokenise(TEXTS, 60)
        assert usage.prompt_tokens == sum(length + len(row) for row in rows)
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        generates = name in ("free", "spoken mood")
        assert (usage.completion_tokens > 0) == generates
    chosen = client.completions.create(model="pair", prompt=ROWS)  # type: ignore[arg-type]
    expected = all_prompts["pair"].predict(ROWS, verbose=False)
    assert [choice.text for choice in chosen.choices] == expected
    asked: Any = {"scoring": "generate"}
    reply = client.completions.create(model="mood", prompt=TEXTS[0], extra_body=asked)
    expected = all_prompts["mood"].predict(TEXTS[:1], scoring="generate", verbose=False)
    assert [reply.choices[0].text.strip()] == expected


def test_a_stream_says_the_same_piece_by_piece(client: OpenAI) -> None:
    asked: Any = {"model": "free", "prompt": TEXTS[:3], "max_tokens": 12}
    whole = client.completions.create(**asked)
    chunks = list(
        client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    texts = [""] * 3
    reasons: dict[int, str] = {}
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        assert chunk.usage is None
        texts[choice.index] += choice.text
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == {choice.index: choice.finish_reason for choice in whole.choices}
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len(chunks) > 4, "more than a piece per text"


def test_events_are_those_of_the_protocol(server: Running) -> None:
    body = {"model": "free", "messages": [{"role": "user", "content": TEXTS[0]}], "stream": True}
    status, text, headers = ask(f"{server.base_url}/chat/completions", body)
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0]["role"] == "assistant"
    assert not any("role" in delta for delta in deltas[1:])
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (
        len(chunks) - 1
    )
    assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    assert "usage" not in chunks[0]


def test_chat_is_one_message(client: OpenAI, all_prompts: dict[str, Tuned]) -> None:
    question: Any = {"role": "user", "content": [{"type": "text", "text": TEXTS[1]}]}
    reply = client.chat.completions.create(model="mood", messages=[question])
    message = reply.choices[0].message
    assert message.role == "assistant"
    assert [message.content] == all_prompts["mood"].predict(TEXTS[1:2], verbose=False)
    asked: Any = {"model": "free", "messages": [{"role": "user", "content": TEXTS[2]}]}
    whole = client.chat.completions.create(**asked, max_completion_tokens=7)
    parts = client.chat.completions.create(**asked, max_tokens=7, stream=True)
    pieces = [part.choices[0].delta.content or "" for part in parts]
    assert "".join(pieces) == whole.choices[0].message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 7
    system: Any = {"role": "system", "content": "Be kind."}
    for messages in ([system, question], [question, question]):
        with pytest.raises(openai.BadRequestError, match="send one message with the role user"):
            client.chat.completions.create(model="free", messages=messages)


def test_chat_takes_n_seed_and_stop_as_completions_do(client: OpenAI) -> None:
    messages: Any = [{"role": "user", "content": TEXTS[0]}]
    asked: Any = {"model": "free", "temperature": 1.5, "max_tokens": 8}
    plain = client.completions.create(**asked, prompt=TEXTS[0], n=3, seed=7)
    texts = [choice.text for choice in plain.choices]
    assert len(set(texts)) > 1
    reply = client.chat.completions.create(**asked, messages=messages, n=3, seed=7)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert [choice.message.content for choice in reply.choices] == texts
    assert reply.usage == plain.usage
    streamed = [""] * 3
    for chunk in client.chat.completions.create(
        **asked, messages=messages, n=3, seed=7, stream=True
    ):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts
    other = client.chat.completions.create(**asked, messages=messages, n=3, seed=8)
    assert [choice.message.content for choice in other.choices] != texts
    stop = texts[0][2:4]
    for stops in (stop, ["never", stop]):
        cut = client.chat.completions.create(**asked, messages=messages, seed=7, stop=stops)
        (choice,) = cut.choices
        assert choice.message.content == texts[0][: texts[0].index(stop)].rstrip()
        assert choice.finish_reason == "stop"


def test_sampling_follows_its_seed(client: OpenAI) -> None:
    asked: Any = {"model": "free", "prompt": TEXTS[0], "temperature": 1.5, "max_tokens": 8, "n": 3}
    first, again = (client.completions.create(**asked, seed=7) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert [choice.text for choice in again.choices] == texts
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert client.completions.create(**asked, seed=8).choices[0].text != texts[0]
    narrow = client.completions.create(**asked, top_p=1e-6, seed=9)
    greedy = client.completions.create(**{**asked, "temperature": 0, "n": 1})
    assert {choice.text for choice in narrow.choices} == {greedy.choices[0].text}


def test_a_stop_ends_an_answer(client: OpenAI) -> None:
    asked: Any = {"model": "free", "prompt": TEXTS[0], "temperature": 1.0, "seed": 1}
    whole = client.completions.create(**asked, max_tokens=16).choices[0]
    stop = whole.text[2:4]
    cut = client.completions.create(**asked, max_tokens=16, stop=[stop]).choices[0]
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason == "stop"


def test_log_probabilities_have_both_shapes(client: OpenAI, all_prompts: dict[str, Tuned]) -> None:
    asked: Any = {"model": "free", "prompt": TEXTS[0], "max_tokens": 4}
    choice = client.completions.create(**asked, logprobs=2).choices[0]
    logs = choice.logprobs
    assert logs is not None
    assert logs.tokens
    assert logs.token_logprobs
    assert logs.top_logprobs
    assert logs.text_offset is not None
    assert logs.text_offset[0] == 0
    for token, log, top in zip(logs.tokens, logs.token_logprobs, logs.top_logprobs, strict=True):
        assert len(top) in (1, 2)  # two tokens may be spelled the same
        assert log <= 0
        assert math.isclose(max(top.values()), log, abs_tol=1e-5), token
    sample = client.completions.create(**asked, logprobs=1, temperature=2, seed=1, n=4)
    for logs_of_sample in [choice.logprobs for choice in sample.choices]:
        assert logs_of_sample is not None
        tops, tokens = logs_of_sample.top_logprobs or [], logs_of_sample.tokens or []
        assert all(token in top for token, top in zip(tokens, tops, strict=True))
        assert max(map(len, tops)) == 2, "the likeliest token, and the one that was drawn"
    for choice in sample.choices:
        assert choice.logprobs is not None
        offsets, tokens = choice.logprobs.text_offset or [], choice.logprobs.tokens or []
        for offset, token in list(zip(offsets, tokens, strict=True))[1:]:
            assert choice.text[offset:].startswith(token.rstrip())
    messages: Any = [{"role": "user", "content": TEXTS[0]}]
    chat = client.chat.completions.create(
        model="free", messages=messages, max_tokens=4, logprobs=True, top_logprobs=2
    )
    content = chat.choices[0].logprobs.content if chat.choices[0].logprobs else None
    assert content is not None
    assert [token.token for token in content] == logs.tokens
    assert all(bytes(token.bytes or []).decode() == token.token for token in content)
    assert client.completions.create(**asked).choices[0].logprobs is None
    label = client.completions.create(model="mood", prompt=TEXTS[0], logprobs=2).choices[0].logprobs
    assert label is not None
    assert label.top_logprobs
    expected = all_prompts["mood"].probabilities(TEXTS[:1], verbose=False)[0]
    shares = {name: math.exp(log) for name, log in label.top_logprobs[0].items()}
    assert shares == pytest.approx(expected, abs=1e-4)


def test_the_async_client_works(server: Running, all_prompts: dict[str, Tuned]) -> None:
    expected = all_prompts["free"].predict(TEXTS, verbose=False)

    async def read(client: AsyncOpenAI, text: str) -> str:
        stream = await client.completions.create(model="free", prompt=text, stream=True)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def read_all() -> list[str]:
        async with AsyncOpenAI(base_url=server.base_url, api_key="EMPTY") as client:
            return await asyncio.gather(*(read(client, text) for text in TEXTS))

    assert [text.strip() for text in asyncio.run(read_all())] == expected


def test_the_async_client_chats(server: Running, all_prompts: dict[str, Tuned]) -> None:
    questions = [(name, text) for text in TEXTS for name in ("mood", "free")]
    expected = [all_prompts[name].predict([text], verbose=False)[0] for name, text in questions]

    async def read(client: AsyncOpenAI, name: str, text: str) -> str:
        messages: Any = [{"role": "user", "content": text}]
        reply = await client.chat.completions.create(model=name, messages=messages)
        return (reply.choices[0].message.content or "").strip()

    async def read_all() -> list[str]:
        async with AsyncOpenAI(base_url=server.base_url, api_key="EMPTY") as client:
            return await asyncio.gather(*(read(client, *question) for question in questions))

    assert asyncio.run(read_all()) == expected


def test_labels_have_vllms_shape(server: Running, all_prompts: dict[str, Tuned]) -> None:
    for name in ("mood", "mixture"):
        body = {"model": name, "input": TEXTS[:3]}
        status, reply, _ = ask(f"{server.base_url}/classify", body)
        assert status == 200
        assert ask(f"{server.url}/classify", body)[1]["data"] == reply["data"], "vLLM's own path"
        assert (reply["object"], reply["model"]) == ("list", name)
        expected = all_prompts[name].probabilities(TEXTS[:3], verbose=False)
        for index, (item, shares) in enumerate(zip(reply["data"], expected, strict=True)):
            assert (item["index"], item["num_classes"]) == (index, 2)
            assert item["label"] == max(shares, key=lambda label: shares[label])
            assert dict(zip(item["labels"], item["probs"], strict=True)) == pytest.approx(
                shares, abs=1e-4
            )
            if name == "mixture":
                assert sum(item["route"]) == pytest.approx(1, abs=1e-4)
                assert item["route"][item["routed_to"]] == max(item["route"])
            else:
                assert item["route"] is item["routed_to"] is None
        assert reply["usage"]["prompt_tokens"] > 0
        assert reply["usage"]["completion_tokens"] == 0
    status, reply, _ = ask(f"{server.base_url}/classify", {"model": "pair", "input": ROWS[0]})
    assert (status, reply["data"][0]["labels"]) == (200, ["food", "film"])
    status, reply, _ = ask(f"{server.base_url}/classify", {"model": "free", "input": "x"})
    assert status == 400
    assert "has no labels to choose among" in reply["error"]["message"]


@pytest.mark.usefixtures("slow_submissions")
def test_the_texts_of_a_request_share_a_pass(server: Running) -> None:
    for route, body in [
        ("classify", {"model": "mood", "input": TEXTS[:5]}),
        ("completions", {"model": "mood", "prompt": TEXTS[:5]}),
        ("completions", {"model": "free", "prompt": TEXTS[:5], "max_tokens": 1}),
    ]:
        before = server.engine.stats()
        assert ask(f"{server.base_url}/{route}", body)[0] == 200
        after = server.engine.stats()
        assert (after.passes - before.passes, after.rows - before.rows) == (1, 5), body


def test_tasks_are_embedded_and_searched(
    client: OpenAI, server: Running, backbone: Backbone
) -> None:
    names = ["mood", "mixture"]
    reply = client.embeddings.create(model=backbone.name, input=names)
    plain = client.embeddings.create(model=backbone.name, input=names, encoding_format="float")
    for packed, floats in zip(reply.data, plain.data, strict=True):
        assert len(packed.embedding) == backbone.hidden
        assert packed.embedding == pytest.approx(floats.embedding, rel=1e-6)
    assert reply.data[0].embedding != reply.data[1].embedding
    with pytest.raises(openai.NotFoundError, match="There is no prompt 'nothing'"):
        client.embeddings.create(model=backbone.name, input=["nothing"])
    with pytest.raises(openai.NotFoundError, match="name the backbone"):
        client.embeddings.create(model="mood", input=names)
    rows: Any = [{"text": text, "label": label} for text, label in TOY]
    task = client.embeddings.create(model=backbone.name, input=rows)
    assert len(task.data[0].embedding) == backbone.hidden
    status, found, _ = ask(f"{server.base_url}/search", {"rows": rows, "top": 2})
    assert status == 200
    scores = [item["score"] for item in found["data"]]
    assert len(scores) == 2
    assert scores == sorted(scores, reverse=True)
    assert {item["id"] for item in found["data"]} <= set(prompts(backbone))


def test_a_search_times_out_while_the_model_is_at_work(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    monkeypatch.setattr(server.engine.worker, "_score", lambda jobs: answered.wait(60))
    before = server.engine.stats()
    rows = [{"text": text, "label": label} for text, label in TOY]
    status, reply, _ = ask(f"{server.base_url}/search", {"rows": rows, "timeout": 0.2})
    answered.set()
    assert status == 504
    assert " of 5 prompts; send fewer rows, or give it more time." in reply["error"]["message"]
    assert server.engine.stats().cancelled == before.cancelled, "they have expired"


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("classify", {"model": "mood", "input": "x"}),
        ("completions", {"model": "mood", "prompt": "x"}),
        ("completions", {"model": "free", "prompt": "x"}),
        ("completions", {"model": "free", "prompt": "x", "stream": True}),
        ("chat/completions", {"model": "free", "messages": [{"role": "user", "content": "x"}]}),
    ],
)
def test_a_request_times_out_while_the_model_is_at_work(
    server: Running, monkeypatch: pytest.MonkeyPatch, route: str, body: dict[str, Any]
) -> None:
    worker, finished = server.engine.worker, threading.Event()
    for name in ("_score", "_begin"):
        work = getattr(worker, name)
        monkeypatch.setattr(worker, name, lambda jobs, work=work: (finished.wait(2), work(jobs)))
    before = server.engine.stats()
    status, reply, _ = ask(f"{server.base_url}/{route}", {**body, "timeout": 0.1})
    after = server.engine.stats()
    finished.set()
    assert (status, reply["error"]["code"]) == (504, "timeout")
    assert (after.expired, after.cancelled) == (before.expired + 1, before.cancelled)


def test_a_stream_times_out_while_the_model_is_at_work(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, finished = server.engine.worker, threading.Event()
    step = worker._step

    def slow_step() -> None:
        if any(len(answer.ids) == 5 for group in worker._groups for answer in group.answers):
            finished.wait(20)
        step()

    monkeypatch.setattr(worker, "_step", slow_step)
    before, began = server.engine.stats(), time.monotonic()
    body = {"model": "free", "prompt": "x", "temperature": 2, "seed": 1, "max_tokens": 64}
    url = f"{server.base_url}/completions"
    status, text, got = ask(url, {**body, "stream": True, "timeout": 0.5})
    after, seconds = server.engine.stats(), time.monotonic() - began
    finished.set()
    assert status == 200
    assert seconds < 10
    *_, error, end = text.split("\n\n")
    assert ('"code": "timeout"' in error, end) == (True, "")
    assert server.wait_for_line(request_id=got["x-request-id"])["status"] == 504
    assert (after.expired, after.cancelled) == (before.expired + 1, before.cancelled)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 3}, "temperature: input should be less than or equal to 2."),
        ({"temprature": 1}, "There is no parameter 'temprature'; did you mean temperature?"),
        ({"best_of": 4}, "The parameter best_of is not supported; leave it out."),
        ({"prompt": [[1, 2]]}, "prompt must be a text, an object with columns, or a list"),
        ({"prompt": []}, "A request needs inputs, and this one has none; send some."),
        ({"prompt": ["x"] * 257}, "has at most 256 inputs, and this one has 257; split it."),
        ({"prompt": ""}, "the column 'text' is empty"),
        ({"prompt": ["a", "b", ""]}, "text 3: the column 'text' is empty"),
        ({"prompt": [{"text": "x"}, {"txt": "y"}]}, "text 2 has no column 'text'"),
        ({"prompt": {"txt": "x"}}, "has no column 'text'; its columns are txt."),
        ({"prompt": {}}, "has no column 'text'; its columns are none."),
        ({"max_tokens": 0}, "max_tokens: input should be greater than or equal to 1."),
        ({"max_tokens": 513}, "An answer may have at most 512 tokens, not 513."),
        ({"prompt": "x" * 100_001}, "text 1 has 100,001 characters; at most 100,000"),
        ({"prompt": ["a", "b", "c " * 60000]}, "text 3 has 119,999 characters; at most 100,000"),
        ({"n": 17}, "n is 17; it must be from 1 to 16."),
        ({"n": 10**400}, "n: input should be less than 2147483648."),
        ({"n": "2"}, "n: input should be a valid integer."),
        ({"max_tokens": True}, "max_tokens: input should be a valid integer."),
        ({"max_tokens": -1}, "max_tokens: input should be greater than or equal to 1."),
        ({"stop": 5}, "stop must be a text, or a list of texts."),
        ({"stream_options": {"include_usage": True}}, "stream_options needs stream to be true."),
        ({"stop": [""]}, "stop must be up to 16 texts of 1 to 1,000 characters."),
        ({"model": "mood", "n": 2}, "This prompt chooses a label, so every answer is the same"),
        ({"model": "pair"}, "The prompt pair reads the columns kind, text, not one text"),
        ({"prompt": None}, "prompt must be a text"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_request_is_one_sentence(
    client: OpenAI, changes: dict[str, Any], message: str
) -> None:
    asked = {"model": "free", "prompt": "x", **changes}
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/completions", body=asked, cast_to=object)
    assert message in str(caught.value)
    assert caught.value.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "The last message must have the role user"),
        ("hello", "messages: input should be a valid list."),
        ([{"role": "user", "content": 5}], "messages.0.content must be a text, or a list of parts"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "parts of the type text."),
        ([{"role": "robot", "content": "x"}], "functions are not supported (role 'robot')."),
        ([{"content": "x"}], "The parameter messages.0.role is missing."),
        ([{"role": "user"}], "the column 'text' is empty"),
    ],
    ids=str,
)
def test_bad_messages_are_one_sentence(server: Running, messages: Any, message: str) -> None:
    body = {"model": "free", "messages": messages}
    status, reply, _ = ask(f"{server.base_url}/chat/completions", body)
    assert status == 400
    assert message in reply["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "The body is not valid JSON."),
        (b"[]", "The body must be a JSON object"),
        (b'{"model": "free"}', "The parameter prompt is missing."),
        (b"[" * 100_000, "JSON"),
        (b'{"model": "free", "prompt": "x", "temperature": NaN}', "temperature"),
        (rb'{"model": "free", "prompt": "\ud800"}', "is not valid Unicode text"),
        (rb'{"model": "free", "prompt": "x", "\ud800": 1}', "must be a JSON object"),
    ],
)
def test_a_broken_body_is_one_sentence(server: Running, body: bytes, message: str) -> None:
    status, reply, _ = ask(f"{server.base_url}/completions", body)
    assert status == 400
    assert message in reply["error"]["message"]


def test_other_paths_have_errors_of_the_same_shape(server: Running) -> None:
    status, reply, _ = ask(f"{server.base_url}/nothing")
    assert (status, reply["error"]["type"]) == (404, "not_found_error")
    status, reply, _ = ask(f"{server.base_url}/completions")
    assert status == 405
    assert reply["error"]["message"] == "There is nothing at GET '/v1/completions'."
