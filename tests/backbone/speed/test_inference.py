"""Passes that servers record: the scores and states of the plain model, for every type of model."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from softprompts.backbone import Backbone, Generative, PromptCache, Text
from softprompts.backbone.speed import inference
from softprompts.backbone.speed.graphs import Step, StepGraphs
from softprompts.backbone.speed.inference import InferencePasses, passes_for
from softprompts.backbone.speed.packed_rows import CAUSAL_TYPES

from ...models import random_model
from .test_packed_rows import SIZES, inputs, random_backbone

KINDS = ["t5", "mt5", *sorted(CAUSAL_TYPES)]
FEW = [[[7, 8, 9], [11], [12, 13]], [[20], [21, 22, 23, 24, 25]]]
"""Candidates of several lengths, more of one row than of another."""

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def run_directly(step: Step, tensors: Sequence[Tensor], kind: object) -> tuple[Tensor, ...]:
    return step(*tensors)


def model(kind: str) -> Generative:
    backbone: Backbone = random_model(kind) if kind.endswith("t5") else random_backbone(kind)
    assert isinstance(backbone, Generative)
    return backbone


def passes(backbone: Backbone, record: Any = run_directly) -> InferencePasses:
    found = passes_for(backbone, record)
    assert found is not None
    return found


def batch(backbone: Backbone, sizes: Sequence[int], seed: int = 0) -> tuple[Tensor, Text]:
    """Prompts of two lengths, and texts of several."""
    text = backbone.embed_rows(inputs(backbone, seed, list(sizes)))
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(len(sizes), 7, backbone.hidden, generator=generator)
    lengths = torch.tensor([7, 4] * len(sizes))[: len(sizes)]
    return vectors.to(backbone.device), text._replace(prompt_lengths=lengths)


def check(backbone: Generative, recorded: InferencePasses, prompt: Any, text: Text) -> None:
    candidates = [FEW[row % 2] for row in range(len(text.mask))]
    with torch.no_grad():
        expected, state = backbone.scores(prompt, text, candidates), backbone.prefill(prompt, text)
        scores, got = recorded.scores(prompt, text, candidates), recorded.prefill(prompt, text)
        assert scores is not None
        assert got is not None
        torch.testing.assert_close(scores, expected, atol=2e-4, rtol=2e-4)
        torch.testing.assert_close(got.logits, state.logits, atol=2e-4, rtol=2e-4)
        after = torch.tensor([[30], [40]] * len(text.mask), device=backbone.device)
        after = after[: len(text.mask)]
        torch.testing.assert_close(
            backbone.extend(got, after), backbone.extend(state, after), atol=2e-4, rtol=2e-4
        )


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_states_are_those_of_the_plain_model(kind: str) -> None:
    backbone = model(kind)
    for sizes in (SIZES, [5], [70, 3]):
        check(backbone, passes(backbone), *batch(backbone, sizes))


def cached(backbone: Backbone) -> tuple[PromptCache, Text]:
    vectors, text = batch(backbone, SIZES)
    lengths = text.prompt_lengths
    assert lengths is not None
    cache = backbone.cache_prompts(vectors, lengths.to(backbone.device))
    assert cache is not None
    return cache, text._replace(prompt_lengths=None)


@pytest.mark.parametrize("kind", ["llama", "gpt2", "opt", "qwen3"])
def test_prompts_that_the_model_has_read(kind: str) -> None:
    backbone = model(kind)
    check(backbone, passes(backbone), *cached(backbone))


@pytest.mark.parametrize("kind", ["t5", "llama"])
def test_large_passes_are_not_recorded(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = model(kind)
    prompt, text = batch(backbone, SIZES)
    recorded = passes(backbone)
    monkeypatch.setattr(inference, "MAX_LOGITS", backbone.vocab_size * 16)
    assert recorded.scores(prompt, text, [[[7, 8, 9], [7]]] * len(SIZES)) is None
    assert recorded.fits(8, 97)
    monkeypatch.setattr(inference, "MAX_WORK", 8 * 128 * backbone.hidden**2)
    assert recorded.fits(8, 128)
    assert not recorded.fits(8, 129)
    monkeypatch.setattr(inference, "MAX_SCORES", 8 * 64 * 64)
    assert recorded.fits(8, 3)
    assert not recorded.fits(8, 65)


@pytest.mark.parametrize("kind", ["gpt2", "opt"])
def test_pads_need_no_positions(kind: str) -> None:
    """Candidates are padded to a power of two, beyond which there may be no position."""
    backbone = model(kind)
    longest = backbone.max_positions
    assert longest is not None
    text = backbone.embed_rows(inputs(backbone, 0, [longest - 3 - 5]))
    prompt = torch.randn(1, 3, backbone.hidden)
    candidates = [[[7, 8, 9, 10, 11], [12]]]
    with torch.no_grad():
        expected = backbone.scores(prompt, text, candidates)
        scores = passes(backbone).scores(prompt, text, candidates)
    assert scores is not None
    torch.testing.assert_close(scores, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("kind", ["bart", "bert"])
def test_other_models_have_no_recorded_passes(kind: str) -> None:
    assert passes_for(random_model(kind), run_directly) is None


@gpu
@pytest.mark.parametrize("kind", KINDS)
def test_recorded_passes(kind: str) -> None:
    backbone, graphs = model(kind), StepGraphs()
    backbone.model.to("cuda")
    try:
        recorded = passes(backbone, graphs)
        for seed, sizes in enumerate((SIZES, [5] * 8, [70, 3], SIZES[::-1])):
            check(backbone, recorded, *batch(backbone, sizes, seed))
        assert graphs.recorded == 6
        if kind == "llama":
            check(backbone, recorded, *cached(backbone))
    finally:
        backbone.model.to("cpu")
