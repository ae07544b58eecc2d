"""What is particular to the encoder-only family: filling masks, and heads saved with prompts."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from softprompts.backbone import Causal, Masked
from softprompts.backbone.families import family_for
from softprompts.backbone.masked import MaskedWithHead
from softprompts.config import Choice, PromptConfig, run_config
from softprompts.errors import UserError
from softprompts.prompt import Material
from softprompts.prompt.head import LinearHead
from softprompts.prompt.prompt import build_prompt
from softprompts.tasks import load_task
from softprompts.tuning import Run, Watcher
from softprompts.tuning.tune import tune_config
from softprompts.tuning.tuned import load

from ..models import random_masked

LABELS = ["positive", "negative"]


def settings(toy_csv: Path, **more: Any) -> Any:
    task = {"train": str(toy_csv), "text": "review", "label": "mood", **more.pop("task", {})}
    tuning = {"steps": 20, "batch_size": 8, "evaluate_every": 10, "max_length": 64, "lr": 0.1}
    return run_config(
        {"preset": "prompt-tuning", "task": task, "tuning": tuning, "prompt": {"length": 4}}, more
    )


@pytest.mark.parametrize("kind", ["bert", "roberta", "deberta"])
def test_a_text_without_a_mask_gets_one_after_its_last_word(kind: str) -> None:
    backbone = random_masked(kind)
    mask, sep = backbone.tokenizer.mask_token_id, backbone.tokenizer.sep_token_id
    row, own = backbone.tokenise(
        ["never again", f"it was {backbone.tokenizer.mask_token} again"], 20
    )
    assert row[-2:] == [mask, sep]
    assert own.count(mask) == 1
    assert own[-2:] != [mask, sep]
    cut = backbone.tokenise(["never again " * 30], 20)[0]
    assert len(cut) == 20
    assert cut[-2:] == [mask, sep]


def test_only_the_mask_gets_logits() -> None:
    backbone = random_masked("bert")
    seen = []
    hook = backbone.model.cls.register_forward_hook(
        lambda module, inputs, output: seen.append(tuple(output.shape))
    )
    text = backbone.embed_rows(backbone.tokenise(["never again", "I love it and the staff"], 20))
    backbone.losses(torch.randn(2, 4, 32), text, backbone.tokenise_targets(LABELS))
    hook.remove()
    assert seen == [(2, 1, backbone.vocab_size)]
    assert not backbone.model.base_model._forward_hooks


def test_a_label_of_several_tokens_needs_a_head() -> None:
    backbone = random_masked("bert")
    with pytest.raises(
        UserError,
        match=r"fills one mask with one token, and 'positive negative' has 2.*prompt.head='linear'",
    ):
        backbone.tokenise_targets(["positive negative"])
    assert backbone.default_head(["positive", "positive negative"]) == "linear"
    assert backbone.default_head(["positive", "zzzzqqqq$%&"]) == "linear", "a word it does not know"


def test_a_model_without_an_output_layer_cannot_fill_a_mask(toy_csv: Path) -> None:
    with pytest.raises(UserError, match="has no output layer to fill a mask with"):
        tune_config(
            settings(toy_csv, prompt={"head": "words"}), None, backbone=random_masked("minilm")
        )


@pytest.mark.parametrize("kind", ["bert", "minilm"])
def test_it_scores_labels_and_never_generates(kind: str, toy_csv: Path) -> None:
    tuned = tune_config(settings(toy_csv), None, backbone=random_masked(kind))
    assert tuned.card.scoring == tuned.card.config["tuning"]["scoring"] == "labels"
    assert tuned.card.config["prompt"]["head"]["kind"] == (
        "linear" if kind == "minilm" else "words"
    )
    assert set(tuned.predict(["never again", "I love it"])) <= set(LABELS)
    with pytest.raises(UserError, match="cannot generate"):
        tuned.predict(["x"], scoring="generate")


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_the_head_is_trained_and_saved_with_the_prompt(
    pool: str, toy_csv: Path, tmp_path: Path
) -> None:
    backbone = random_masked("minilm")
    config = settings(
        toy_csv, prompt={"head": {"kind": "linear", "pool": pool}}, tuning={"steps": 60, "lr": 0.03}
    )
    tuned = tune_config(config, tmp_path / "run", backbone=backbone)
    texts = ["never again", "I love it", "the worst meal of my life"]
    again = load(tmp_path / "run", backbone=random_masked("minilm"))
    assert again.prompt.head is not None
    assert again.prompt.head.pool == pool
    assert torch.equal(again.prompt.head.weight, tuned.prompt.head.weight)  # type: ignore[union-attr]
    assert again.probabilities(texts) == tuned.probabilities(texts)
    assert tuned.metrics["accuracy"] > tuned.card.majority["accuracy"]
    assert tuned.card.trained_parameters == 4 * 32 + 2 * 32 + 2


def test_a_resumed_run_keeps_its_head(toy_csv: Path, tmp_path: Path) -> None:
    class Stop(Watcher):
        def on_step(self, run: Any) -> None:
            if run.step == 12:
                raise KeyboardInterrupt

        def on_rows_answered(self, run: Any, rows: int) -> None: ...
        def on_evaluation(self, run: Any) -> None: ...

    config = settings(toy_csv, tuning={"checkpoint_every": 5})
    with pytest.raises(KeyboardInterrupt):
        tune_config(config, tmp_path / "parts", watcher=Stop(), backbone=random_masked("minilm"))
    resumed = tune_config(config, tmp_path / "parts", backbone=random_masked("minilm"))
    whole = tune_config(config, tmp_path / "whole", backbone=random_masked("minilm"))
    assert torch.equal(resumed.prompt.table, whole.prompt.table)
    assert torch.equal(resumed.prompt.head.weight, whole.prompt.head.weight)  # type: ignore[union-attr]


def test_a_head_that_does_not_fit_the_card_is_an_error(toy_csv: Path, tmp_path: Path) -> None:
    tune_config(settings(toy_csv), tmp_path, backbone=random_masked("minilm"))
    card = (tmp_path / "prompt.json").read_text()
    (tmp_path / "prompt.json").write_text(card.replace('"kind": "linear"', '"kind": "words"', 1))
    with pytest.raises(UserError, match="does not match its card"):
        load(tmp_path, backbone=random_masked("minilm"))


def test_a_head_is_for_encoder_only_models(t5: Any, toy_csv: Path) -> None:
    with pytest.raises(UserError, match="A linear head is for encoder-only models such as BERT"):
        tune_config(settings(toy_csv, prompt={"head": "linear"}), None, backbone=t5)


def test_first_pools_the_texts_first_token_wherever_the_prompt_is() -> None:
    backbone = random_masked("minilm")
    head = LinearHead(2, 32, torch.Generator(), "first")
    headed = backbone.with_head(head, LABELS)
    rows, prompt = headed.tokenise(["never again"], 20), torch.randn(1, 4, 32)
    words = backbone.embedding(torch.tensor(rows))
    for place, embeds, column in (
        ("prefix", torch.cat([prompt, words], 1), 4),
        ("after-bos", torch.cat([words[:, :1], prompt, words[:, 1:]], 1), 0),
    ):
        expected = head(
            backbone.model(inputs_embeds=embeds).last_hidden_state[:, column]
        ).log_softmax(-1)
        torch.testing.assert_close(
            headed.scores(prompt, headed.embed_rows(rows, place), [[[0], [1]]] * len(rows)),
            expected,
        )  # type: ignore[arg-type]


def test_bert_as_a_decoder_is_a_decoder() -> None:
    def family(**settings: Any) -> Any:
        return family_for(transformers.BertConfig(**settings))

    assert family(architectures=["BertLMHeadModel"], is_decoder=True) is Causal
    assert family(architectures=["BertForMaskedLM"]) is Masked
    assert (
        Masked.auto_class(transformers.BertConfig(architectures=["BertForPreTraining"]))
        == "AutoModelForMaskedLM"
    )
    assert Masked.auto_class(transformers.BertConfig(architectures=["BertModel"])) == "AutoModel"


@pytest.mark.parametrize("paper", [False, True])
def test_the_residual_preset_for_bert(paper: bool, toy_csv: Path) -> None:
    short = {"tuning": {"steps": 6, "batch_size": 8, "lr": 0.1}}
    config = run_config(
        {"preset": "residual-bert", "paper": paper, "task": settings(toy_csv).plain()["task"]},
        short,
    )
    tuned = tune_config(config, None, backbone=random_masked("bert"))
    made = tuned.card.config["prompt"]
    assert (made["head"], made["shape"]["kind"], made["length"]) == (
        {"kind": "linear", "pool": "first"},
        "residual",
        10,
    )
    assert tuned.prompt.head is not None


def test_one_backbone_serves_prompts_with_and_without_a_head(toy_csv: Path, tmp_path: Path) -> None:
    """A head belongs to its prompt and is not used for other prompts on the same model."""
    texts = ["never again", "I love it"]
    words = tune_config(settings(toy_csv), tmp_path / "words", backbone=random_masked("bert"))
    headed = tune_config(
        settings(toy_csv, prompt={"head": "linear"}), None, backbone=random_masked("bert")
    )
    assert load(tmp_path / "words", backbone=headed.backbone).probabilities(
        texts
    ) == words.probabilities(texts)
    shared = MaskedWithHead(
        random_masked("bert"), LinearHead(2, 32, torch.Generator(), "mean"), LABELS
    )
    assert load(tmp_path / "words", backbone=shared).probabilities(texts) == words.probabilities(
        texts
    )
    assert shared.with_head(None, ["other", "words"]) is shared.base
    relabelled = {"task": {"labels": {"positive": "great", "negative": "dull"}}}
    assert tune_config(
        settings(toy_csv, **relabelled), None, backbone=headed.backbone
    ).form.labels == ["great", "dull"]


def test_a_long_text_keeps_its_own_mask_and_counts_as_truncated(toy_csv: Path) -> None:
    backbone = random_masked("bert")
    mask = backbone.tokenizer.mask_token_id
    for template, near in (("{} it was [MASK]", backbone.pieces("it was")), ("[MASK] , {}", [])):
        row = backbone.tokenise([template.format("the food was great " * 40)], 30)[0]
        assert len(row) == 30
        assert row.count(mask) == 1
        assert row[row.index(mask) - len(near) : row.index(mask)] == near
        assert row[-1] == backbone.tokenizer.sep_token_id
    config = settings(
        toy_csv, task={"text": None, "template": "[MASK] , {review}"}, tuning={"max_length": 10}
    )
    run = Run(config, load_task(config.task), backbone)
    assert run.inputs.count_truncated(range(len(run.inputs))) == len(run.inputs)


def test_the_head_and_the_start_draw_different_numbers() -> None:
    backbone = random_masked("minilm")
    config = PromptConfig(length=2, start=Choice("normal"), head=Choice("linear"))
    prompt = build_prompt(config, Material(backbone, LABELS, None, 32), 0)
    assert prompt.head is not None
    drawn = torch.stack([prompt.head.weight.flatten(), prompt.table.flatten()]).detach()
    assert abs(float(torch.corrcoef(drawn)[0, 1])) < 0.5
