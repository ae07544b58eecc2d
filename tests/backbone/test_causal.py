"""The decoder-only family against PEFT's numbers, against embeddings made by hand, and on tiny models of four kinds."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from softprompts.backbone import Causal, Text, load_backbone
from softprompts.tasks import load_task
from softprompts.tuning import Cohort, Run, run_config

from ..conftest import GOLDEN, TOY, golden

PEFT = golden("peft_causal_gpt2")
KINDS = ["gpt2", "llama", "qwen2", "gemma2"]
TEXTS = ["the food was great", "never again", "I love it and the staff was kind, what a lovely place"]


def tokenizer(begin: bool) -> PreTrainedTokenizerFast:
    """A byte-level BPE over the toy reviews; with `begin` it opens every text with <s>, as Llama's and Gemma's do."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        [f"{text} {label}" for text, label in TOY] * 5,
        trainers.BpeTrainer(vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False),
    )
    if begin:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    from tokenizers.decoders import ByteLevel

    made.decoder = ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")


def tiny_model(kind: str) -> Causal:
    torch.manual_seed(0)
    common: dict[str, Any] = {"vocab_size": 400, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    if kind == "gpt2":
        config: Any = transformers.GPT2Config(**common, n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.2)
    else:
        sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
        extra = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 64} if kind == "gemma2" else {}
        name = {"llama": "LlamaConfig", "qwen2": "Qwen2Config", "gemma2": "Gemma2Config"}[kind]
        config = getattr(transformers, name)(**common, **sizes, **extra, max_position_embeddings=128, initializer_range=0.2)
    return Causal(
        AutoModelForCausalLM.from_config(config, attn_implementation="eager"), tokenizer(kind in ("llama", "gemma2")), f"tiny-{kind}"
    )


@pytest.fixture(scope="module", params=KINDS)
def backbone(request: pytest.FixtureRequest) -> Causal:
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def peft_model() -> Causal:
    return Causal(AutoModelForCausalLM.from_pretrained(GOLDEN / "peft_causal_gpt2_model"), None, "peft_causal_gpt2_model")


def peft_prompt() -> torch.Tensor:
    return load_file(GOLDEN / "peft_causal_gpt2_adapter" / "adapter_model.safetensors")["prompt_embeddings"]


def test_loss_logits_and_gradient_match_peft(peft_model: Causal) -> None:
    case = PEFT["right_padded"]
    prompt = peft_prompt().requires_grad_()
    total, tokens = torch.zeros(()), 0
    for row, (ids, mask, labels) in enumerate(zip(case["input_ids"], case["attention_mask"], case["labels"], strict=True)):
        length = sum(mask)
        first = next(place for place in range(length) if labels[place] >= 0)
        before, target = torch.tensor([ids[:first]], dtype=torch.long), ids[first:length]
        text = Text(peft_model.embedding(before), torch.ones_like(before))
        losses = peft_model.losses(prompt[None], text, [target])
        expected = torch.tensor(case["logits"][row]).log_softmax(-1)
        told = sum(float(expected[len(prompt) + first - 1 + place, token]) for place, token in enumerate(target))
        assert -losses.nll.item() == pytest.approx(told, abs=1e-3)
        total, tokens = total + losses.nll.sum(), tokens + len(target)
    assert (total / tokens).item() == pytest.approx(case["loss"], abs=1e-5)
    (total / tokens).backward()
    torch.testing.assert_close(prompt.grad, torch.tensor(case["grad_prompt"]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("side", ["right_padded", "left_padded"])
def test_generation_equals_the_unpadded_rows(peft_model: Causal, side: str) -> None:
    """PEFT itself puts the pads between prompt and text on the left and answers otherwise; the unpadded rows are right."""
    text = peft_model.embed(torch.tensor(PEFT[side]["input_ids"]), torch.tensor(PEFT[side]["attention_mask"]))
    generated = peft_model.generate(peft_prompt().expand(3, -1, -1), text, 8).tolist()
    lengths = [sum(mask) for mask in PEFT[side]["attention_mask"]]
    assert generated == [row[length:] for row, length in zip(PEFT["unpadded_rows_generated_ids"], lengths, strict=True)]


def test_the_prompt_is_joined_as_by_hand(backbone: Causal) -> None:
    prompt = torch.randn(1, 4, 32)
    ids, target = torch.tensor(backbone.tokenise(["by hand"], 20)), backbone.tokenise_targets(["positive"])
    embeds = torch.cat([prompt, backbone.embedding(ids), backbone.embedding(torch.tensor(target))], dim=1)
    logits = backbone.model(inputs_embeds=embeds).logits[0]
    begin = 4 + ids.shape[1] - 1
    expected = torch.nn.functional.cross_entropy(logits[begin : begin + len(target[0])], torch.tensor(target[0]), reduction="sum")
    torch.testing.assert_close(backbone.losses(prompt, backbone.embed_rows(ids.tolist()), target).nll[0], expected, rtol=1e-4, atol=1e-4)


def test_padding_and_batch_make_up_do_not_matter(backbone: Causal) -> None:
    rows, targets = backbone.tokenise(TEXTS, 40), backbone.tokenise_targets(["positive", "negative", "never"])
    prompt = torch.randn(1, 4, 32).expand(3, -1, -1)
    whole = backbone.embed_rows(rows)
    losses, scores = backbone.losses(prompt, whole, targets).nll, backbone.scores(prompt, whole, targets)
    written = backbone.generate(prompt, whole, 6)
    ids, mask = backbone.collate(rows)
    left = backbone.embed(torch.nn.functional.pad(ids, (5, 2)), torch.nn.functional.pad(mask, (5, 2)))
    torch.testing.assert_close(backbone.losses(prompt, left, targets).nll, losses, rtol=1e-4, atol=1e-4)
    for row in range(3):
        alone = backbone.embed_rows([rows[row]])
        torch.testing.assert_close(backbone.losses(prompt[:1], alone, [targets[row]]).nll[0], losses[row], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(backbone.scores(prompt[:1], alone, targets)[0], scores[row], rtol=1e-4, atol=1e-4)
        single = backbone.generate(prompt[:1], alone, 6)[0].tolist()
        assert written[row, : len(single)].tolist() == single


def test_scores_are_the_losses_of_the_candidates(backbone: Causal) -> None:
    text, prompt = backbone.embed_rows(backbone.tokenise(TEXTS, 40)), torch.randn(3, 4, 32)
    candidates = backbone.tokenise_targets(["positive", "no", "x"])
    expected = torch.stack([-backbone.losses(prompt, text, [candidate] * 3).nll for candidate in candidates], dim=1)
    torch.testing.assert_close(backbone.scores(prompt, text, candidates), expected, rtol=1e-4, atol=1e-4)


def test_the_cache_writes_what_the_whole_sequence_would(backbone: Causal) -> None:
    text, prompt = backbone.embed_rows(backbone.tokenise(TEXTS[:1], 40)), torch.randn(1, 4, 32)
    written = backbone.generate(prompt, text, 5)[0].tolist()
    embeds = torch.cat([prompt, text.embeds], dim=1)
    for token in written:
        assert int(backbone.model(inputs_embeds=embeds).logits[0, -1].argmax()) == token
        embeds = torch.cat([embeds, backbone.embedding(torch.tensor([[token]]))], dim=1)


def test_beginnings_and_ends_follow_the_tokenizer(backbone: Causal) -> None:
    row = backbone.tokenise(["never again"], 20)[0]
    assert (row[0] == 0) == (backbone.name in ("tiny-llama", "tiny-gemma2")), "<s> where the tokenizer gives it"
    assert row[-1] != 1, "no end before the target"
    target = backbone.tokenise_targets(["positive"])[0]
    assert target[-1] == 1
    assert backbone.tokenizer.decode(target[:-1]) == " positive", "spelled as a word after a space"


def test_the_router_sees_the_text_and_never_the_target(backbone: Causal, toy_csv: Path) -> None:
    """Two runs on the same texts with other label words: what reaches the prompt, and so every route, is the same to the bit."""
    seen: list[list[torch.Tensor]] = []
    for words in ({"positive": "kind", "negative": "never"}, {"positive": "a much longer answer", "negative": "dull"}):
        task = {"train": str(toy_csv), "text": "review", "label": "mood", "labels": words}
        config = run_config({"preset": "smop", "task": task, "tuning": {"batch_size": 8, "steps": 3, "max_length": 64}})
        run = Run(config, load_task(config.task), backbone)
        given: list[torch.Tensor] = []
        run.prompt.register_forward_pre_hook(lambda module, inputs, given=given: given.extend(inputs[:2]))
        run.advance()
        seen.append(given)
    assert len(seen[0]) == 2
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


@pytest.mark.parametrize("preset", ["mixture", "residual"])
def test_a_run_learns_and_counts_the_target_in_its_budget(backbone: Causal, toy_csv: Path, preset: str) -> None:
    settings = {"steps": 24, "batch_size": 8, "evaluate_every": 8, "max_length": 64, "lr": 0.1}
    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    config = run_config({"preset": preset, "task": task, "tuning": settings, "prompt": {"length": 4}})
    run = Run(config, load_task(config.task), backbone)
    longest = max(map(len, backbone.tokenise_targets(["positive", "negative"])))
    assert run.predictor().budget == 64 - 4 - longest
    Cohort([run], [None]).train()
    assert run.history[-1]["loss"] < run.history[0]["loss"]
    assert all(p.grad is None for p in backbone.model.parameters())


def test_a_folder_is_loaded_as_its_family(tmp_path: Path) -> None:
    made = tiny_model("gpt2")
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    loaded = load_backbone(str(tmp_path), device="cpu")
    assert isinstance(loaded, Causal)
    assert loaded.fingerprint == made.fingerprint
    assert loaded.longest == 128
