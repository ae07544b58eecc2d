"""What is particular to the decoder-only family; test_families.py tests what all share."""

from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from softprompts.backbone import Causal, Text
from softprompts.config import PromptConfig
from softprompts.prompt import Material
from softprompts.prompt.prompt import build_prompt
from softprompts.tuning import Predictor

from ..conftest import GOLDEN, golden
from ..models import CAUSALS, byte_tokenizer, random_causal, unpadded

PEFT = golden("peft_causal_gpt2")


@pytest.fixture(scope="module", params=CAUSALS)
def backbone(request: pytest.FixtureRequest) -> Causal:
    return random_causal(request.param)


@pytest.fixture(scope="module")
def peft_model() -> Causal:
    return Causal(
        AutoModelForCausalLM.from_pretrained(GOLDEN / "peft_causal_gpt2_model"),
        None,
        "peft_causal_gpt2_model",
    )


def peft_prompt() -> torch.Tensor:
    return load_file(GOLDEN / "peft_causal_gpt2_adapter" / "adapter_model.safetensors")[
        "prompt_embeddings"
    ]


def test_loss_logits_and_gradient_match_peft(peft_model: Causal) -> None:
    case = PEFT["right_padded"]
    prompt = peft_prompt().requires_grad_()
    total, tokens = torch.zeros(()), 0
    for row, (ids, mask, labels) in enumerate(
        zip(case["input_ids"], case["attention_mask"], case["labels"], strict=True)
    ):
        length = sum(mask)
        first = next(column for column in range(length) if labels[column] >= 0)
        before, target = torch.tensor([ids[:first]], dtype=torch.long), ids[first:length]
        text = Text(peft_model.embedding(before), torch.ones_like(before))
        losses = peft_model.losses(prompt[None], text, [target])
        expected = torch.tensor(case["logits"][row]).log_softmax(-1)
        log_prob = sum(
            float(expected[len(prompt) + first - 1 + offset, token])
            for offset, token in enumerate(target)
        )
        assert -losses.nll.item() == pytest.approx(log_prob, abs=1e-3)
        total, tokens = total + losses.nll.sum(), tokens + len(target)
    assert (total / tokens).item() == pytest.approx(case["loss"], abs=1e-5)
    (total / tokens).backward()
    torch.testing.assert_close(prompt.grad, torch.tensor(case["grad_prompt"]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("side", ["right_padded", "left_padded"])
def test_generation_equals_the_unpadded_rows(peft_model: Causal, side: str) -> None:
    """With left padding, PEFT puts the pads between prompt and text and generates something else;
    the unpadded rows are right."""
    text = peft_model.embed_rows(unpadded(PEFT[side]))
    generated = peft_model.generate(peft_prompt().expand(3, -1, -1), text, 8).tolist()
    lengths = [sum(mask) for mask in PEFT[side]["attention_mask"]]
    assert generated == [
        row[length:]
        for row, length in zip(PEFT["unpadded_rows_generated_ids"], lengths, strict=True)
    ]


def test_special_tokens_follow_the_tokenizer(backbone: Causal) -> None:
    row = backbone.tokenise(["never again"], 20)[0]
    assert (row[0] == backbone.tokenizer.bos_token_id) == (
        backbone.name in ("tiny-llama", "tiny-gemma2")
    ), "<s> if the tokenizer adds it"
    assert row[-1] != backbone.tokenizer.eos_token_id, "no end of sequence before the target"
    target = backbone.tokenise_targets(["positive"])[0]
    assert target[-1] == backbone.tokenizer.eos_token_id
    assert backbone.tokenizer.decode(target[:-1]) == " positive", "tokenised as after a space"


def test_the_target_counts_in_the_budget(backbone: Causal) -> None:
    longest = max(map(len, backbone.tokenise_targets(["positive", "negative"])))
    assert (
        Predictor(
            backbone,
            build_prompt(PromptConfig(length=4), Material(backbone), 0),
            ["positive", "negative"],
            max_length=64,
        ).budget
        == 60 - longest
    )


def test_a_model_that_is_its_own_base_model() -> None:
    """Llama 4 has no submodule of the name that transformers looks for."""
    words = byte_tokenizer("<s>")
    torch.manual_seed(0)
    config = transformers.Llama4TextConfig(
        vocab_size=400,
        hidden_size=32,
        intermediate_size=32,
        intermediate_size_mlp=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        pad_token_id=0,
    )
    backbone = Causal(AutoModelForCausalLM.from_config(config), words, "tiny-llama4")
    text = backbone.embed_rows(backbone.tokenise(["never again", "what a lovely film"], 20))
    prompt, targets = torch.randn(2, 4, 32), backbone.tokenise_targets(["good", "not good"])
    losses = backbone.losses(prompt, text, targets).nll
    scores = backbone.scores(prompt, text, [targets] * 2)
    torch.testing.assert_close(-losses, scores.diagonal(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"max_position_embeddings": -1}, None),
        (
            {"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 24}},
            24,
        ),
    ],
)
def test_the_limit_on_tokens(settings: dict[str, Any], limit: int | None) -> None:
    """Some configs have -1 for no limit; beyond longrope's original length, the longest row of a
    batch determines the positions of all."""
    backbone = random_causal("llama")
    for name, value in settings.items():
        setattr(backbone.model.config, name, value)
    assert backbone.max_positions == limit
