"""The encoder-decoder family against PEFT and plain transformers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from softprompts.backbone import Backbone, EncoderDecoder, Text, load_backbone
from softprompts.errors import UserError

from ..conftest import GOLDEN, golden
from ..models import SIZES, TOKENS, random_t5, t5_tokenizer, unpadded

PEFT = golden("peft_t5")


@pytest.fixture(scope="module")
def peft_model() -> EncoderDecoder:
    return EncoderDecoder(
        AutoModelForSeq2SeqLM.from_pretrained(GOLDEN / "peft_t5_model"), None, "peft_t5_model"
    )


def peft_prompt() -> torch.Tensor:
    """The second half of the adapter file is unused: only the first rows are the prompt."""
    rows = load_file(GOLDEN / "peft_t5_adapter" / "adapter_model.safetensors")["prompt_embeddings"]
    return rows[: PEFT["num_virtual_tokens"]]


def test_loss_logits_and_gradient_match_peft(peft_model: EncoderDecoder) -> None:
    prompt = peft_prompt().requires_grad_()
    text = peft_model.embed_rows(unpadded(PEFT))
    targets = [[token for token in row if token >= 0] for row in PEFT["labels"]]
    losses = peft_model.losses(prompt.expand(3, -1, -1), text, targets)
    mean = losses.nll.sum() / losses.tokens.sum()
    assert mean.item() == pytest.approx(PEFT["loss"], abs=1e-4)
    mean.backward()
    torch.testing.assert_close(
        prompt.grad, torch.tensor(PEFT["grad_prompt_first_7_rows"]), rtol=1e-3, atol=1e-3
    )
    logits = torch.tensor(PEFT["logits"]).log_softmax(-1)
    for row, target in enumerate(targets):
        expected = sum(logits[row, column, token] for column, token in enumerate(target))
        assert -losses.nll[row].item() == pytest.approx(float(expected), abs=1e-3)
    without = peft_model.losses(prompt[:0].expand(3, 0, -1), text, targets)
    assert (without.nll.sum() / without.tokens.sum()).item() == pytest.approx(
        PEFT["loss_without_prompt"], abs=1e-4
    )


def test_generation_matches_peft(peft_model: EncoderDecoder) -> None:
    prompt = peft_prompt().expand(3, -1, -1)
    text = peft_model.embed_rows(unpadded(PEFT))
    assert peft_model.generate(prompt, text, 10).tolist() == [
        row[1:] for row in PEFT["generated_ids"]
    ], "PEFT's rows begin with the start token"
    alone = Text(text.embeds[2:, :3], text.mask[2:, :3])
    assert peft_model.generate(prompt[:1], alone, 10).tolist() == [
        PEFT["generated_ids_row2_alone_unpadded"][0][1:]
    ]


def test_dropout_is_on_inside_and_off_outside(t5: Backbone) -> None:
    text = t5.embed_rows(t5.tokenise(["some text here"], 20))
    prompt, target = torch.randn(1, 4, 32), t5.tokenise_targets(["yes"])
    without_dropout = t5.losses(prompt, text, target).nll
    with t5.training_mode(torch.tensor([0.5]), torch.tensor([7])):
        assert t5.losses(prompt, text, target).nll != without_dropout
        assert t5.losses(prompt, text, target).nll != t5.losses(prompt, text, target).nll
    assert t5.losses(prompt, text, target).nll == without_dropout
    with t5.training_mode():
        assert t5.losses(prompt, text, target).nll == without_dropout


def test_z_is_the_squared_log_normaliser(peft_model: EncoderDecoder) -> None:
    text = peft_model.embed_rows(unpadded(PEFT))
    targets = [[token for token in row if token >= 0] for row in PEFT["labels"]]
    z = peft_model.losses(peft_prompt().expand(3, -1, -1), text, targets).z
    squared = torch.tensor(PEFT["logits"]).logsumexp(-1).square()
    expected = torch.stack(
        [squared[row, : len(target)].sum() for row, target in enumerate(targets)]
    )
    torch.testing.assert_close(z, expected, rtol=1e-4, atol=1e-3)


def test_the_fingerprint_depends_on_the_weights_but_not_on_the_dtype(tiny: Backbone) -> None:
    assert load_backbone(dtype="bf16", device="cpu").fingerprint == tiny.fingerprint
    one, other = random_t5(), random_t5()
    assert one.fingerprint == other.fingerprint
    with torch.no_grad():
        next(other.blocks()[-1].parameters()).add_(0.5)
    assert (
        random_t5(d_ff=128).fingerprint
        != one.fingerprint
        != EncoderDecoder(other.model, other.tokenizer).fingerprint
    )


def test_the_unit_is_the_embedding_scale_as_a_power_of_two(tiny: Backbone) -> None:
    assert tiny.unit == 1.0
    scaled_up = random_t5()
    with torch.no_grad():
        scaled_up.model.shared.weight.mul_(
            12.5 / scaled_up.model.shared.weight.square().mean().sqrt()
        )
    assert scaled_up.unit == 16.0


def test_bart_scales_its_embeddings_and_has_a_limit(bart: Backbone) -> None:
    ids = torch.tensor([10, 11])
    torch.testing.assert_close(
        bart.input_embeddings(ids), bart.embedding.weight[ids].detach() * 32**0.5
    )
    assert bart.max_positions == 128


@pytest.mark.parametrize(
    "config",
    [
        transformers.SwitchTransformersConfig(
            **SIZES, **TOKENS, num_experts=2, num_sparse_encoder_layers=1
        ),
        transformers.NllbMoeConfig(
            **TOKENS | {"decoder_start_token_id": 1},
            vocab_size=16128,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            encoder_ffn_dim=32,
            decoder_ffn_dim=32,
            num_experts=2,
            encoder_sparse_step=2,
            decoder_sparse_step=2,
        ),
    ],
    ids=["switch", "nllb"],
)
@torch.no_grad()
def test_mixtures_of_experts_decode_with_their_cache(config: Any) -> None:
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(config)
    backbone = EncoderDecoder(model, t5_tokenizer(), "experts")
    text = backbone.embed_rows(backbone.tokenise(["never again", "what a lovely film"], 20))
    prompt, targets = torch.randn(2, 4, 32), backbone.tokenise_targets(["good", "not so good"])
    scores = backbone.scores(prompt, text, [targets] * 2)
    for column, target in enumerate(targets):
        losses = backbone.losses(prompt, text, [target] * 2).nll
        torch.testing.assert_close(-losses, scores[:, column], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "dtype", "why"),
    [("t5-tiny", "fp16", "T5 overflows"), ("no/such-model-anywhere", "fp32", "cannot be loaded")],
)
def test_a_clear_error_for_what_cannot_be_loaded(name: str, dtype: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        load_backbone(name, dtype)


def test_an_unsupported_model_type_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit", "architectures": ["ViTModel"]}')
    with pytest.raises(
        UserError, match="unsupported model type vit; supported families: decoder-only"
    ):
        load_backbone(str(tmp_path))


def test_generation_ignores_the_models_penalties_and_minimum_lengths(tiny: Backbone) -> None:
    text = tiny.embed_rows(
        tiny.tokenise(
            ["Classify the sentiment of the review as positive or negative. A wonderful film."], 60
        )
    )
    before = tiny.generate(torch.zeros(1, 0, 256), text, 12).tolist()
    config = tiny.model.generation_config
    config.min_length, config.repetition_penalty, config.no_repeat_ngram_size = 56, 5.0, 1
    try:
        assert tiny.generate(torch.zeros(1, 0, 256), text, 12).tolist() == before
    finally:
        config.min_length, config.repetition_penalty, config.no_repeat_ngram_size = None, None, None


def test_dropout_works_if_the_models_config_sets_it_to_0() -> None:
    backbone = random_t5(dropout_rate=0)
    text, target = (
        backbone.embed_rows(backbone.tokenise(["some text"], 20)),
        backbone.tokenise_targets(["yes"]),
    )
    without_dropout = backbone.losses(torch.zeros(1, 4, 32), text, target).nll
    with backbone.training_mode(torch.tensor([0.5]), torch.tensor([7])):
        assert backbone.losses(torch.zeros(1, 4, 32), text, target).nll != without_dropout


def test_the_included_model_needs_no_network() -> None:
    code = (
        "import socket\n"
        "def refuse(*a, **k): raise AssertionError('network')\n"
        "socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse\n"
        "from softprompts.backbone import load_backbone; load_backbone()"
    )
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_texts_are_truncated_to_the_budget_and_keep_their_end(tiny: Backbone) -> None:
    rows = tiny.tokenise(["word " * 500, "short"], 30)
    assert len(rows[0]) == 30
    assert rows[0][-1] == tiny.tokenizer.eos_token_id
    with pytest.raises(UserError, match="leaves 0 tokens"):
        tiny.tokenise(["x"], -3)


def test_the_included_model_knows_some_language(tiny: Backbone) -> None:
    """It was trained on supervised tasks too, so it works without a prompt."""
    question = "Classify the sentiment of the review as positive or negative. "
    text = tiny.embed_rows(
        tiny.tokenise(
            [question + review for review in ("A wonderful, moving film.", "A dull, stupid film.")],
            40,
        )
    )
    good, bad = tiny.scores(
        torch.zeros(2, 0, 256), text, [tiny.tokenise_targets(["positive", "negative"])] * 2
    )
    assert good[0] > good[1]
    assert bad[1] > bad[0]
