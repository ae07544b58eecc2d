"""Chat requests with several messages: the chat template's tokens, and the prompt in its place."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai import OpenAI

from softprompts.backbone import Backbone
from softprompts.serving.async_engine import AsyncEngine
from softprompts.tuning.tuned import Tuned

from ..chat_models import chat_model
from .http_server import Running, ask, running
from .test_engine import MOODS, tuned

SYSTEM = {"role": "system", "content": "You are terse."}
TURNS = [
    {"role": "user", "content": "good food"},
    {"role": "assistant", "content": "positive"},
    {"role": "user", "content": "awful film"},
]


def in_a_chat(prompt: Tuned) -> Tuned:
    config = {"tuning": {"max_length": 128, "chat": True}}
    return replace(prompt, card=replace(prompt.card, config=config))


def prompts(backbone: Backbone) -> dict[str, Tuned]:
    chats = {
        "mood": tuned(backbone, 1, MOODS, scoring="labels", length=3),
        "free": tuned(backbone, 2, [], scoring="generate", length=4),
        "filled": tuned(backbone, 3, MOODS, "is it {text} ?", "labels", length=3),
        "suffix": tuned(backbone, 4, MOODS, scoring="labels", length=3, place="suffix"),
    }
    plain = tuned(backbone, 2, [], scoring="generate", length=4)
    return {name: in_a_chat(prompt) for name, prompt in chats.items()} | {"plain": plain}


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return chat_model("smollm-2")


@pytest.fixture(scope="module")
def server(backbone: Backbone) -> Iterator[Running]:
    with running(AsyncEngine(backbone, prompts=prompts(backbone))) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=server.base_url, api_key="EMPTY", max_retries=0) as client:
        yield client


def chat(client: OpenAI, model: str, messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(model=model, messages=messages, **options)


def template_ids(backbone: Backbone, messages: list[dict[str, str]]) -> list[int]:
    encoded = backbone.tokenizer.apply_chat_template(
        messages, tokenize=True, add_generation_prompt=True, return_dict=True
    )
    return list(encoded["input_ids"])


@pytest.mark.parametrize("messages", [TURNS, [SYSTEM, *TURNS], [SYSTEM, TURNS[0]], TURNS[:1]])
def test_a_conversation_has_the_ids_of_its_template(
    client: OpenAI, backbone: Backbone, messages: list[dict[str, str]]
) -> None:
    row = template_ids(backbone, messages)
    lengths = {"free": 4, "mood": 3, "suffix": 3}
    for name, length in lengths.items():
        expected = prompts(backbone)[name].predictor().answers([row])
        reply = chat(client, name, messages)
        assert [reply.choices[0].message.content] == expected
        assert reply.usage.prompt_tokens == length + len(row), "nothing is cut off"
        pieces = chat(client, name, messages, stream=True)
        assert ["".join(piece.choices[0].delta.content for piece in pieces)] == expected


def test_earlier_turns_change_the_answer(client: OpenAI) -> None:
    conversations = [TURNS, [SYSTEM, *TURNS], TURNS[2:], [SYSTEM, *TURNS[2:]]]
    answers = [chat(client, "free", turns).choices[0].message.content for turns in conversations]
    assert len(set(answers)) == 4


def test_the_last_message_goes_through_the_tasks_template(
    client: OpenAI, backbone: Backbone
) -> None:
    row = template_ids(backbone, [*TURNS[:2], {"role": "user", "content": "is it awful film ?"}])
    reply = chat(client, "filled", TURNS)
    assert reply.usage.prompt_tokens == 3 + len(row)
    expected = prompts(backbone)["filled"].predictor().answers([row])
    assert [reply.choices[0].message.content] == expected


def test_parts_and_developers_are_understood(client: OpenAI) -> None:
    expected = chat(client, "free", [SYSTEM, *TURNS]).choices[0].message.content
    parts = [{"type": "text", "text": "good "}, {"type": "text", "text": "food"}]
    messages = [{**SYSTEM, "role": "developer"}, {"role": "user", "content": parts}, *TURNS[1:]]
    assert chat(client, "free", messages).choices[0].message.content == expected


@pytest.mark.parametrize(
    ("model", "messages", "message"),
    [
        ("plain", TURNS, "The prompt plain was tuned on single texts"),
        ("plain", [SYSTEM, TURNS[0]], "send one message with the role user"),
        ("free", [], "The last message must have the role user"),
        ("free", [SYSTEM], "The last message must have the role user"),
        ("free", TURNS[:2], "The last message must have the role user"),
        ("free", [{"role": "tool", "content": "x"}, *TURNS], "tools and functions are not"),
        ("free", [TURNS[0], {"role": "assistant", "tool_calls": [{}]}, TURNS[0]], "tools and"),
        ("free", [{"role": "user", "content": "\ud800"}, *TURNS], "is not valid Unicode text"),
        ("free", [{"role": "user", "content": "long " * 500}, *TURNS], "more than the 512 tokens"),
        ("mood", [{"role": "user", "content": "long " * 500}, *TURNS], "more than the 512 tokens"),
    ],
)
def test_what_cannot_be_answered_is_refused(
    server: Running, model: str, messages: Any, message: str
) -> None:
    body = {"model": model, "messages": messages}
    status, reply, _ = ask(f"{server.base_url}/chat/completions", body)
    assert (status, reply["error"]["type"]) == (400, "invalid_request_error")
    assert message in reply["error"]["message"]


def test_a_template_may_refuse_messages() -> None:
    backbone = chat_model("gemma-3")
    free = in_a_chat(tuned(backbone, 2, [], scoring="generate", length=4))
    with (
        running(AsyncEngine(backbone, prompts={"free": free})) as server,
        OpenAI(base_url=server.base_url, api_key="EMPTY", max_retries=0) as client,
    ):
        assert chat(client, "free", TURNS).choices
        with pytest.raises(openai.BadRequestError, match="roles must alternate"):
            chat(client, "free", [TURNS[0], TURNS[0]])
