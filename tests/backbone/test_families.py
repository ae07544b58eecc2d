"""What all families have in common, on a tiny random model of each kind: prompts are joined as by
hand, padding and batching change nothing, scores are losses, the key-value cache changes nothing,
and the model stays frozen."""

import dataclasses
import hashlib
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from softprompts.backbone import (
    Backbone,
    Causal,
    EncoderDecoder,
    Masked,
    Place,
    Text,
    load_backbone,
)
from softprompts.config import run_config
from softprompts.errors import UserError
from softprompts.prompt.head import LinearHead
from softprompts.tasks import load_task
from softprompts.tuning import Cohort, Run
from softprompts.tuning.run import check_losses
from softprompts.tuning.tune import tune_config
from softprompts.tuning.tuned import load

from ..models import KINDS, TOY, random_model

TEXTS = [text for text, _ in TOY[:3]]
LABELS = ["positive", "negative"]
PLACES: tuple[Place, ...] = ("prefix", "after-bos", "suffix")


def with_any_head(kind: str) -> Backbone:
    backbone = random_model(kind)
    return (
        backbone.with_head(LinearHead(2, 32, torch.Generator(), "mean"), LABELS)
        if backbone.default_head(LABELS) == "linear"
        else backbone
    )


@pytest.fixture(scope="module", params=KINDS)
def backbone(request: pytest.FixtureRequest) -> Backbone:
    return with_any_head(request.param)


def prompts(rows: int, length: int = 4) -> Tensor:
    return torch.randn(1, length, 32, generator=torch.Generator().manual_seed(1)).expand(
        rows, -1, -1
    )


def test_rows_that_fit_are_not_made_too_long_by_the_prompts_of_others(backbone: Backbone) -> None:
    """A long prompt with a short text, beside a short prompt with a long text."""
    if backbone.max_positions is None:
        pytest.skip("has no limit")
    room = backbone.max_positions - 8  # for special tokens and the target
    short, long = backbone.token_ids(["good", "good film " * room])
    rows, lengths = [short, backbone.truncate(long, room - 2)], [40, 2]
    vectors = torch.randn(2, 40, 32, generator=torch.Generator().manual_seed(1))
    candidates = [backbone.tokenise_targets(LABELS)] * 2

    def scores(part: slice) -> Tensor:
        text = backbone.embed_rows(rows[part])._replace(prompt_lengths=torch.tensor(lengths[part]))
        longest = max(lengths[part])
        return backbone.scores(vectors[part, :longest], text, candidates[part])

    alone = torch.cat([scores(slice(0, 1)), scores(slice(1, 2))])
    torch.testing.assert_close(scores(slice(0, 2)), alone, rtol=1e-4, atol=1e-4)
    text = backbone.embed_rows(rows)._replace(prompt_lengths=torch.tensor(lengths))
    targets = backbone.tokenise_targets(LABELS)
    nll, gradient = backbone.padded_gradients(vectors, text, targets, torch.ones(2), torch.zeros(2))
    assert bool(nll.isfinite().all())
    assert bool(gradient.isfinite().all())


def places(backbone: Backbone) -> list[Place]:
    return [place for place in PLACES if place != "after-bos" or backbone.special_token_counts[0]]


def by_hand(backbone: Backbone, row: list[int], place: Place) -> tuple[Tensor, int]:
    """[1, P + T, H] with the prompt inserted by slicing, and the number of tokens before it."""
    embeds = backbone.embedding(torch.tensor([row]))
    closing = backbone.special_token_counts[1]
    if isinstance(backbone, Masked) and backbone.tokenizer.mask_token_id in row:
        closing += 1
    at = {"prefix": 0, "after-bos": 1, "suffix": len(row) - closing}[place]
    return torch.cat([embeds[:, :at], prompts(1), embeds[:, at:]], dim=1), at


def plain_logits(
    backbone: Backbone, embeds: Tensor, at: int, row: list[int], target: list[int]
) -> Tensor:
    """The logits [N, V] of the target, by plain transformers: no mask, positions or cache."""
    model = backbone.model
    if isinstance(backbone, EncoderDecoder):
        logits: Tensor = model(inputs_embeds=embeds, labels=torch.tensor([target])).logits[0]
        return logits
    if isinstance(backbone, Causal):
        written = torch.cat([embeds, backbone.embedding(torch.tensor([target]))], dim=1)
        begin = embeds.shape[1] - 1
        causal: Tensor = model(inputs_embeds=written).logits[0, begin : begin + len(target)]
        return causal
    if hasattr(backbone, "head"):
        pooled: Tensor = backbone.head(model(inputs_embeds=embeds).last_hidden_state.mean(1))
        return pooled
    mask = row.index(backbone.tokenizer.mask_token_id)
    words: Tensor = model(inputs_embeds=embeds).logits[:, mask + (4 if at <= mask else 0)]
    return words


def test_the_prompt_is_joined_as_by_hand(backbone: Backbone) -> None:
    for place in places(backbone):
        rows, target = backbone.tokenise(TEXTS, 40), backbone.tokenise_targets(["negative"])[0]
        losses = backbone.losses(prompts(3), backbone.embed_rows(rows, place), [target] * 3).nll
        for row, loss in zip(rows, losses, strict=True):
            expected = torch.nn.functional.cross_entropy(
                plain_logits(backbone, *by_hand(backbone, row, place), row, target),
                torch.tensor(target),
                reduction="sum",
            )
            torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-4)


def test_masks_and_positions(backbone: Backbone) -> None:
    """Only pads are masked, and positions count through prompt and text."""
    for place in places(backbone):
        rows = backbone.tokenise(TEXTS, 40)
        joined = backbone.join(prompts(3), backbone.embed_rows(rows, place))  # type: ignore[attr-defined]
        mask = joined["attention_mask"]
        assert mask.sum(1).tolist() == [len(row) + 4 for row in rows]
        for row, tokens in enumerate(rows):
            own = joined["inputs_embeds"][row][mask[row] == 1]
            torch.testing.assert_close(own, by_hand(backbone, tokens, place)[0][0])
            if "position_ids" in joined:
                assert joined["position_ids"][row][mask[row] == 1].tolist() == list(
                    range(len(tokens) + 4)
                )
            else:
                assert mask[row].tolist() == sorted(mask[row].tolist(), reverse=True), (
                    "pads come last, so that the model's own positions are right"
                )


def test_padding_and_batching_change_nothing(backbone: Backbone) -> None:
    rows, targets = (
        backbone.tokenise(TEXTS, 40),
        backbone.tokenise_targets(["positive", "negative", "positive"]),
    )
    longer = [rows[0][0], *[rows[0][1]] * 9, *rows[0][1:]]  # beside it, all others are padded
    for place in places(backbone):
        batch = backbone.embed_rows(rows, place)
        losses, scores = (
            backbone.losses(prompts(3), batch, targets).nll,
            backbone.scores(prompts(3), batch, [targets[:2]] * 3),
        )
        padded = backbone.embed_rows([*rows, longer], place)
        again = backbone.losses(prompts(4), padded, [*targets, targets[0]]).nll[:3]
        torch.testing.assert_close(again, losses, rtol=1e-4, atol=1e-4)
        for row in range(3):
            alone = backbone.embed_rows([rows[row]], place)
            torch.testing.assert_close(
                backbone.losses(prompts(1), alone, [targets[row]]).nll[0],
                losses[row],
                rtol=1e-4,
                atol=1e-4,
            )
            torch.testing.assert_close(
                backbone.scores(prompts(1), alone, [targets[:2]])[0],
                scores[row],
                rtol=1e-4,
                atol=1e-4,
            )
            torch.testing.assert_close(
                backbone.losses(prompts(1), batch.rows([row]), [targets[row]]).nll[0],
                losses[row],
                rtol=1e-4,
                atol=1e-4,
            )


def test_rows_of_very_different_lengths(backbone: Backbone) -> None:
    """One word beside a hundred, on a GPU if there is one: pads must not lead to NaN gradients."""
    backbone.model.to("cuda" if torch.cuda.is_available() else "cpu")
    try:
        texts = ["it", "never again", "the food " * 12, "good " * 44]
        rows, targets = (
            backbone.tokenise(texts, 100),
            backbone.tokenise_targets(["positive", "negative"] * 2),
        )
        prompt = prompts(1).to(backbone.device).requires_grad_()
        head = getattr(backbone, "head", None)
        if head is not None:
            head.to(backbone.device)
        losses = backbone.losses(prompt.expand(4, -1, -1), backbone.embed_rows(rows), targets).nll
        losses.sum().backward()
        assert prompt.grad is not None
        assert bool(torch.isfinite(prompt.grad).all())
        scores = backbone.scores(
            prompt.detach().expand(4, -1, -1), backbone.embed_rows(rows), [targets[:2]] * 4
        )
        alone = torch.zeros_like(prompt)
        for row in range(4):
            single = prompt.detach().clone().requires_grad_()
            text = backbone.embed_rows([rows[row]])
            loss = backbone.losses(single, text, [targets[row]]).nll
            loss.sum().backward()
            alone = alone + single.grad
            torch.testing.assert_close(loss[0], losses[row], rtol=1e-3, atol=1e-3)
            torch.testing.assert_close(
                backbone.scores(single.detach(), text, [targets[:2]])[0],
                scores[row],
                rtol=1e-3,
                atol=1e-3,
            )
        torch.testing.assert_close(prompt.grad, alone, rtol=1e-2, atol=1e-2)
    finally:
        backbone.model.to("cpu")


def test_scores_are_the_losses_of_the_candidates(backbone: Backbone) -> None:
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))
    candidates = backbone.tokenise_targets(LABELS)
    expected = torch.stack(
        [-backbone.losses(prompts(3), text, [candidate] * 3).nll for candidate in candidates], dim=1
    )
    torch.testing.assert_close(
        backbone.scores(prompts(3), text, [candidates] * 3), expected, rtol=1e-4, atol=1e-4
    )


def test_generation_with_the_cache_matches_the_full_sequence(backbone: Backbone) -> None:
    """Rows of different lengths in a batch, against each row alone, token by token."""
    text = backbone.embed_rows(backbone.tokenise(TEXTS, 40))
    if not backbone.generates:
        with pytest.raises(UserError, match="cannot generate"):
            backbone.generate(prompts(3), text, 5)
        return
    for place in places(backbone):
        rows = backbone.tokenise(TEXTS, 40)
        generated = backbone.generate(prompts(3), backbone.embed_rows(rows, place), 5).tolist()
        for row, tokens in enumerate(rows):
            embeds, _ = by_hand(backbone, tokens, place)
            expected: list[int] = []
            for token in generated[row]:
                if expected and expected[-1] in backbone.eos_ids:
                    assert token == backbone.pad_id
                    continue
                expected.append(int(_next(backbone, embeds, expected).argmax()))
                assert token == expected[-1]


def _next(backbone: Backbone, embeds: Tensor, tokens: list[int]) -> Tensor:
    if isinstance(backbone, EncoderDecoder):
        seq2seq: Tensor = backbone.model(
            inputs_embeds=embeds,
            decoder_input_ids=torch.tensor([[backbone.decoder_start_id, *tokens]]),
        ).logits[0, -1]
        return seq2seq
    written = backbone.embedding(torch.tensor([tokens], dtype=torch.long))
    logits: Tensor = backbone.model(inputs_embeds=torch.cat([embeds, written], dim=1)).logits[0, -1]
    return logits


def test_the_model_stays_frozen(backbone: Backbone) -> None:
    def digest() -> str:
        return hashlib.sha256(
            b"".join(p.detach().numpy().tobytes() for p in backbone.model.parameters())
        ).hexdigest()

    before, prompt = digest(), torch.randn(2, 4, 32, requires_grad=True)
    text = backbone.embed_rows(backbone.tokenise(["one", "two"], 20))
    optimizer = torch.optim.AdamW(
        [prompt, *backbone.model.parameters()], lr=0.1
    )  # even if somebody hands it all to an optimiser
    for _ in range(3):
        with backbone.training_mode(torch.full((2,), 0.1), torch.arange(2)):
            backbone.losses(prompt, text, backbone.tokenise_targets(LABELS)).nll.sum().backward()
        optimizer.step()
    assert digest() == before
    assert all(p.grad is None for p in backbone.model.parameters())
    assert prompt.grad is not None
    assert bool(prompt.grad.abs().sum() > 0)


def test_after_bos_needs_a_bos() -> None:
    with pytest.raises(UserError, match="adds no token before a text"):
        random_model("t5").check_place("after-bos")
    random_model("bart").check_place("after-bos")


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_is_loaded_as_its_family(kind: str, tmp_path: Path) -> None:
    saved = random_model(kind)
    saved.model.save_pretrained(tmp_path)
    saved.tokenizer.save_pretrained(tmp_path)
    loaded = load_backbone(str(tmp_path), device="cpu")
    assert type(loaded) is type(saved)
    assert loaded.fingerprint == saved.fingerprint
    assert (
        loaded.default_head(LABELS)
        == saved.default_head(LABELS)
        == ("linear" if kind == "minilm" else "words")
    )
    assert loaded.max_positions == {"t5": None, "mt5": None}.get(kind, 128)
    assert len(loaded.blocks()) == (4 if isinstance(loaded, EncoderDecoder) else 2)


@pytest.mark.parametrize("kind", KINDS)
def test_every_preset_learns(kind: str, toy_csv: Path) -> None:
    settings = {"steps": 32, "batch_size": 8, "evaluate_every": 8, "max_length": 64, "lr": 0.03}
    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    backbone = random_model(kind)
    runs = {}
    for preset in ("mixture", "prompt-tuning", "residual", "smop", "p-tuning"):
        config = run_config(
            {"preset": preset, "task": task, "tuning": settings, "prompt": {"length": 4}}
        )
        runs[preset] = Run(config, load_task(config.task), backbone)
    Cohort([*runs.values()], [None] * len(runs)).train()
    for preset, run in runs.items():
        assert run.history[-1]["loss"] < run.history[0]["loss"], preset
    assert all(p.grad is None for p in backbone.model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_the_router_sees_the_text_but_not_the_target(kind: str, toy_csv: Path) -> None:
    """Runs on the same texts with different label words give the prompt, and so every route,
    bit-identical inputs."""
    backbone = random_model(kind)
    seen: list[list[Tensor]] = []
    for words in (
        {"positive": "positive", "negative": "negative"},
        {"positive": "was", "negative": "it"},
    ):
        task = {"train": str(toy_csv), "text": "review", "label": "mood", "labels": words}
        config = run_config(
            {
                "preset": "smop",
                "task": task,
                "tuning": {"batch_size": 8, "steps": 3, "max_length": 64},
            }
        )
        run = Run(config, load_task(config.task), backbone)
        inputs: list[Tensor] = []
        run.prompt.register_forward_pre_hook(
            lambda prompt, arguments, inputs=inputs: inputs.extend(
                [*arguments[:2], prompt.router_probabilities(*arguments[:2]).argmax(-1)]
            )
        )
        Cohort([run], [None]).step()
        seen.append(inputs)
    assert len(seen[0]) == 3
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama", "gemma2", "bert", "minilm"])
@pytest.mark.parametrize("place", ["suffix", "after-bos"])
def test_a_prompt_keeps_its_place(kind: str, place: Place, toy_csv: Path, tmp_path: Path) -> None:
    """In training, evaluation, saving and loading."""
    backbone = random_model(kind)
    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    settings = {"steps": 4, "batch_size": 8, "max_length": 64, "lr": 0.1}
    config = run_config(
        {
            "preset": "prompt-tuning",
            "task": task,
            "tuning": settings,
            "prompt": {"length": 4, "place": place},
        }
    )
    if place == "after-bos" and not backbone.special_token_counts[0]:
        with pytest.raises(UserError, match="adds no token before a text"):
            tune_config(config, None, backbone=backbone)
        return
    run = Run(config, load_task(config.task), backbone)
    rows = run.batches[0]
    vectors = run.prompt.fold().table.detach().expand(len(rows), -1, -1)
    view = run.backbone_with_head
    with torch.no_grad():
        by_place = [
            view.losses(
                vectors,
                view.embed_rows(run.inputs.read(rows), where),
                run.targets.read(rows),
            )
            for where in (place, "prefix")
        ]
    Cohort([run], [None]).step()
    check_losses([run])
    expected, other = (float(losses.nll.sum() / losses.tokens.sum()) for losses in by_place)
    assert run.pending[0] == pytest.approx(expected, rel=1e-4)
    assert abs(other - expected) > 1e-5, "the place matters"
    tuned = tune_config(config, tmp_path, backbone=backbone)
    texts = [text for text, _ in TOY]
    again = load(tmp_path, backbone=random_model(kind))
    assert again.prompt.config.place == place
    assert again.probabilities(texts) == tuned.probabilities(texts)
    again.prompt.config = dataclasses.replace(again.prompt.config, place="prefix")
    assert again.probabilities(texts) != tuned.probabilities(texts)


def test_a_checkpoint_with_missing_weights_is_an_error(tmp_path: Path) -> None:
    saved = random_model("t5")
    saved.model.save_pretrained(tmp_path)
    saved.tokenizer.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["encoder.block.1.layer.0.SelfAttention.q.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    transformers.utils.logging.set_verbosity_error()
    with pytest.raises(UserError, match="lacks 1 weights"):
        load_backbone(str(tmp_path), device="cpu")


def test_rows_of_a_text() -> None:
    text = Text(
        torch.randn(3, 4, 2), torch.ones(3, 4), torch.tensor([1, 2, 3]), torch.arange(12).view(3, 4)
    )
    some = text.rows([2, 0])
    assert some.insert_at is not None
    assert some.insert_at.tolist() == [3, 1]
    assert torch.equal(some.embeds, text.embeds[[2, 0]])
