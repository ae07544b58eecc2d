"""Chat templates: the ids are those of transformers on the full conversation."""

from datetime import datetime
from typing import Any, cast

import pytest
import torch
from transformers import AutoTokenizer

from softprompts.backbone import Backbone, Causal, chats_by_default, with_chat
from softprompts.backbone.chat import Chat
from softprompts.errors import UserError

from ..chat_models import FAMILIES, chat_model
from .test_real import HOME

TEXTS = [
    "the food was great",
    "never again",
    " I love it, and the staff was kind.\n",
    "Is it good?\n\npositive or negative:",
    "broken <|x|> [after] a week",
]
TARGETS = ["positive", "negative", "is it good"]
DATE = {"date_string": "26 Jul 2024"}
WRITTEN = {
    "llama-3": "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nis it?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "llama-3.2": "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
    "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nis it?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "qwen-2.5": "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
    "assistant.<|im_end|>\n<|im_start|>user\nis it?<|im_end|>\n<|im_start|>assistant\n",
    "qwen-3": "<|im_start|>user\nis it?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    "gemma-3": "<bos><start_of_turn>user\nis it?<end_of_turn>\n<start_of_turn>model\n",
    "smollm-2": "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
    "Hugging Face<|im_end|>\n<|im_start|>user\nis it?<|im_end|>\n<|im_start|>assistant\n",
    "mistral-0.1": "<s>[INST] is it? [/INST]",
    "mistral-0.3": "<s>[INST] is it?[/INST]",
}
"""What the published templates of these models write before an answer."""


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def chat(family: str) -> Chat:
    return cast(Chat, with_chat(chat_model(family), True))


def conversation(text: str, answer: str | None = None) -> list[dict[str, str]]:
    turns = [{"role": "user", "content": text}]
    return turns if answer is None else [*turns, {"role": "assistant", "content": answer}]


def template_ids(tokenizer: Any, turns: list[dict[str, str]], **options: Any) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(
        turns, tokenize=True, return_dict=False, **DATE, **options
    )
    return ids


def check_written(view: Chat, text: str, answer: str) -> None:
    """The ids of a text and a target are those of these strings."""
    (row,), (ids,) = view.token_ids(["is it?"]), view.tokenise_targets(["yes"])
    encoded = view.tokenizer([text, text + answer], add_special_tokens=False)["input_ids"]
    assert [row, [*row, *ids]] == encoded


def test_a_text_is_the_users_turn_up_to_the_answer(family: str) -> None:
    view = chat(family)
    for text, row in zip(TEXTS, view.token_ids(TEXTS), strict=True):
        options = {"add_generation_prompt": True, "enable_thinking": False}
        assert row == template_ids(view.tokenizer, conversation(text), **options)


def test_text_and_target_are_the_full_conversation(family: str) -> None:
    """Up to the end of the assistant's turn; templates may write a line break after it."""
    view = chat(family)
    end = view.tokenizer.convert_tokens_to_ids(FAMILIES[family].end)
    for text, row in zip(TEXTS, view.token_ids(TEXTS), strict=True):
        for target, ids in zip(TARGETS, view.tokenise_targets(TARGETS), strict=True):
            full = template_ids(view.tokenizer, conversation(text, target))
            assert full[: len(row) + len(ids)] == [*row, *ids]
            assert not view.tokenizer.decode(full[len(row) + len(ids) :]).strip()
            assert ids[-1] == end
            assert end not in ids[:-1]


def test_texts_and_targets_are_written_as_the_published_templates_do(family: str) -> None:
    answer = " yes" if family == "mistral-0.3" else "yes"
    check_written(chat(family), WRITTEN[family], answer + FAMILIES[family].end)


@pytest.mark.parametrize(
    ("family", "changes", "written"),
    [
        (  # its first release writes the header of an answer after every conversation
            "llama-3",
            {"{% if add_generation_prompt %}": "{% if true %}"},
            (WRITTEN["llama-3"], "yes<|eot_id|>"),
        ),
        (  # Mistral Nemo
            "mistral-0.3",
            {'"[INST] "': '"[INST]"', '" " + message["content"] | trim': 'message["content"]'},
            ("<s>[INST]is it?[/INST]", "yes</s>"),
        ),
        (  # 0.1 and 0.2 as published later
            "mistral-0.1",
            {
                "'[INST] '": "' [INST] '",
                "message['content'] + eos_token + ' '": "' ' + message['content'] + eos_token",
            },
            ("<s> [INST] is it? [/INST]", " yes</s>"),
        ),
    ],
    ids=["Llama 3, first", "Mistral Nemo", "Mistral 0.2, later"],
)
def test_variants_of_a_template_that_models_were_published_with(
    family: str, changes: dict[str, str], written: tuple[str, str]
) -> None:
    model = chat_model(family, "variant-instruct")
    template = FAMILIES[family].template
    for old, new in changes.items():
        assert old in template
        template = template.replace(old, new)
    model.tokenizer.chat_template = template
    check_written(cast(Chat, with_chat(model, True)), *written)


def test_the_tokenizer_of_smollm2() -> None:
    """Its own, with its own template, if SOFTPROMPTS_BACKBONES names a folder with it."""
    folder = HOME / "smollm2-135m"
    if not folder.is_dir():
        pytest.skip("no smollm2-135m; set SOFTPROMPTS_BACKBONES to the folder it is in")
    model = chat_model("smollm-2", "its-own-tokenizer")
    model.tokenizer = AutoTokenizer.from_pretrained(folder)
    view = cast(Chat, with_chat(model, True))
    assert view.tokenizer.decode(view.token_ids(["is it?"])[0]) == WRITTEN["smollm-2"]
    end = view.tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert view.end_of_turn == [end]
    for text, row in zip(TEXTS, view.token_ids(TEXTS), strict=True):
        assert row == template_ids(view.tokenizer, conversation(text), add_generation_prompt=True)
        for target, ids in zip(TARGETS, view.tokenise_targets(TARGETS), strict=True):
            full = template_ids(view.tokenizer, conversation(text, target))
            assert full[: len(row) + len(ids)] == [*row, *ids]
            assert ids[-1] == end


def test_there_is_one_bos(family: str) -> None:
    view, bos = chat(family), FAMILIES[family].bos
    if bos is not None:
        index = view.tokenizer.convert_tokens_to_ids(bos)
        assert [row.count(index) for row in view.token_ids(TEXTS)] == [1] * len(TEXTS)
        assert view.special_token_counts[0] == 1
    else:
        assert view.special_token_counts[0] == 0
        with pytest.raises(UserError, match="adds no token before a text"):
            view.check_place("after-bos")


def test_truncation_shortens_the_text_and_not_the_template(family: str) -> None:
    view = chat(family)
    (short,), (long,) = view.token_ids(["good"]), view.token_ids(["good " * 100])
    budget = len(short) + 7
    row = view.truncate(long, budget)
    assert len(row) == budget
    start, closing = len(view._opening), view._closing
    assert row[:start] == short[:start]
    assert row[-closing:] == short[-closing:]
    assert row[:-closing] == long[: budget - closing]
    before, _, after = view.tokenizer.decode(short).partition("good")
    text = view.tokenizer.decode(row)
    assert text.startswith(before)
    assert text.endswith(after)
    with pytest.raises(UserError, match=rf"takes {start + closing} tokens"):
        view.truncate(long, start + closing)


def test_a_router_sees_the_text_only(family: str) -> None:
    view = chat(family)
    rows = view.token_ids(TEXTS)
    mask = view.content_mask(view.embed_rows(rows))
    for text, row, used in zip(TEXTS, rows, mask.bool(), strict=True):
        read = view.tokenizer.decode(torch.tensor(row)[used[: len(row)]])
        assert read.strip() == text.strip()
        assert not used[len(row) :].any()


def test_a_suffix_ends_the_users_turn(family: str) -> None:
    view = chat(family)
    rows = view.token_ids(TEXTS)
    columns = view.prompt_columns(*view.collate(rows), "suffix")
    assert columns is not None
    assert columns.tolist() == [len(row) - view._closing for row in rows]


def test_labels_are_read_back_without_the_end(family: str) -> None:
    view = chat(family)
    rows = view.tokenise_targets(TARGETS)
    assert view.decode(view.collate(rows)[0]) == TARGETS


def test_answers_stop_at_the_end_of_a_turn() -> None:
    """Gemma's tokenizer names another token as the end of a sequence."""
    base, view = chat_model("gemma-3"), chat("gemma-3")
    end = view.tokenizer.convert_tokens_to_ids("<end_of_turn>")
    assert end not in base.eos_ids
    assert view.eos_ids == base.eos_ids | {end}
    text = view.embed_rows(view.token_ids(TEXTS[:1]))
    prompt = torch.zeros(1, 0, 32)
    generated = base.generate(prompt, text, 6)[0].tolist()
    assert len(generated) == 6
    view.end_of_turn = [generated[2]]
    first = generated.index(generated[2])
    assert view.generate(prompt, text, 6)[0].tolist() == generated[: first + 1]


def test_the_date_and_reasoning_do_not_change_answers() -> None:
    llama, qwen = chat("llama-3.2"), chat("qwen-3")
    row = llama.tokenizer.decode(llama.token_ids(["x"])[0])
    assert "Today Date: 26 Jul 2024\n" in row
    assert datetime.now().strftime("%d %b %Y") not in row
    qwen_row = qwen.tokenizer.decode(qwen.token_ids(["x"])[0])
    assert qwen_row.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_a_template_that_asks_for_todays_date_gets_a_fixed_one() -> None:
    model = chat_model("qwen-2.5", "dated")
    model.tokenizer.chat_template = "{{ strftime_now('%Y') }}" + model.tokenizer.chat_template
    view = with_chat(model, True)
    assert view.tokenizer.decode(view.token_ids(["x"])[0]).startswith("2024")


def test_a_turn_without_a_special_end_ends_with_the_end_of_sequence() -> None:
    model = chat_model("qwen-2.5", "plain")
    model.tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    )
    view = with_chat(model, True)
    (ids,) = view.tokenise_targets(["positive"])
    assert view.tokenizer.decode(ids) == " positive<|im_end|>"
    assert not chats_by_default(model), "the template does not say what ends a turn"


def test_reasoning_that_a_template_always_begins_precedes_the_answer() -> None:
    """DeepSeek-R1's; the full conversation leaves it out."""
    model = chat_model("qwen-3", "r1")
    model.tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
    )
    view = with_chat(model, True)
    (row,), (ids,) = view.token_ids(["x"]), view.tokenise_targets(["positive"])
    assert view.tokenizer.decode([*row, *ids]).endswith("<think>\npositive<|im_end|>")


# -- which models chat -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "name", "eos", "expected"),
    [
        ("smollm-2", "HuggingFaceTB/SmolLM2-135M-Instruct", None, True),
        ("smollm-2", "/models/smollm2", None, True),  # <|im_end|> is its end of sequence
        ("qwen-3", "Qwen/Qwen3-0.6B", None, True),
        ("qwen-3", "Qwen/Qwen3-0.6B-Base", "<|endoftext|>", False),
        ("qwen-2.5", "Qwen/Qwen2.5-0.5B", "<|endoftext|>", False),  # has a template, too
        ("gemma-3", "google/gemma-3-1b-it", None, True),
        ("gemma-3", "google/gemma-3-1b-pt", None, False),
        ("gemma-3", "/chat/models/italian", None, False),
    ],
)
def test_instruction_tuned_models_chat(
    family: str, name: str, eos: str | None, expected: bool
) -> None:
    model = chat_model(family, name)
    if eos is not None:
        model.tokenizer.eos_token = eos
        model.model.generation_config.eos_token_id = model.tokenizer.eos_token_id
    assert chats_by_default(model) is expected


def test_models_without_a_template_do_not_chat(t5: Backbone) -> None:
    plain = chat_model("smollm-2", "plain-instruct")
    plain.tokenizer.chat_template = None
    for backbone in (t5, plain):
        assert not chats_by_default(backbone)
        assert with_chat(backbone, False) is backbone
        with pytest.raises(UserError, match="has no chat template; leave out chat"):
            with_chat(backbone, True)


@pytest.mark.parametrize(
    "template",
    ["{{ nonsense(", "{{ raise_exception('no users') }}", "hello", {"tools": "x", "search": "y"}],
    ids=str,
)
def test_a_template_that_cannot_be_used_is_reported(template: str | dict[str, str]) -> None:
    model = chat_model("smollm-2", f"broken-{template}-instruct".replace("/", ""))
    model.tokenizer.chat_template = template
    assert not chats_by_default(model)
    with pytest.raises(UserError, match="cannot be used"):
        with_chat(model, True)


def test_the_model_is_shared() -> None:
    """A family of a plugin keeps its methods; what the model computes is in one place."""

    class Own(Causal):
        """A plugin's family."""

    base = Own(chat_model().model, chat_model().tokenizer, "own-instruct")
    view = with_chat(base, True)
    assert isinstance(view, Own)
    assert view.packed is base.packed
    base.disable_packing()
    assert view.packed is None
    base.unfreeze()
    assert not view.frozen
    base.refreeze()
    assert view.frozen
