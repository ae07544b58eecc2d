"""Starts: where numbers come from, and that a seed fixes them."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from softprompts.backbone import Backbone
from softprompts.config import Choice, PromptConfig
from softprompts.errors import UserError
from softprompts.prompt import Material, Source
from softprompts.prompt.prompt import build_prompt
from softprompts.prompt.start import (
    Labels,
    Normal,
    SampledVocabulary,
    Text,
    TrainedPrompt,
    Uniform,
    weighted_mean,
)

from ..conftest import golden


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows_of(table: torch.Tensor, backbone: Backbone) -> list[int]:
    """The vocabulary row each vector [N, H] is, exactly."""
    every = backbone.input_embeddings(torch.arange(backbone.vocab_size))
    return [int(torch.nonzero((every == vector).all(1))[0]) for vector in table]


def test_uniform_is_the_papers_range_and_the_codes_is_an_option(t5: Backbone) -> None:
    paper = Uniform().build(Material(t5), 2, 500, rng()).vectors
    assert paper.shape == (2, 500, 32)
    assert -0.5 <= paper.min() < -0.49
    assert 0.49 < paper.max() <= 0.5
    code = Uniform(low=0).build(Material(t5), 1, 500, rng()).vectors
    assert 0 <= code.min() < 0.01


def test_normal_has_the_requested_spread(t5: Backbone) -> None:
    assert Normal(std=3.0).build(Material(t5), 1, 500, rng()).vectors.std() == pytest.approx(
        3.0, rel=0.05
    )


def test_vocabulary_draws_common_usable_tokens_without_replacement(t5: Backbone) -> None:
    drawn = rows_of(SampledVocabulary().build(Material(t5), 4, 30, rng()).vectors.flatten(0, 1), t5)
    assert len(set(drawn)) == 120, "no word twice, not even across the prompts of a mixture"
    assert set(drawn) <= set(t5.common_pieces(5000).tolist())
    assert not set(drawn) & set(t5.tokenizer.all_special_ids)
    few = rows_of(SampledVocabulary(population=10).build(Material(t5), 1, 10, rng()).vectors[0], t5)
    assert sorted(few) == sorted(t5.common_pieces(10).tolist())
    small = SampledVocabulary(population=40).build(Material(t5), 4, 30, rng()).vectors
    assert [len(set(rows_of(prompt, t5))) for prompt in small] == [30] * 4, "no word twice in one"
    assert SampledVocabulary(population=3).build(Material(t5), 1, 8, rng()).vectors.shape == (
        1,
        8,
        32,
    ), "more tokens than words: words repeat"


def test_the_whole_vocabulary_is_an_option(t5: Backbone) -> None:
    drawn = rows_of(
        SampledVocabulary(population=0).build(Material(t5), 1, 200, rng()).vectors[0], t5
    )
    assert max(drawn) > max(t5.common_pieces(5000).tolist())


def test_labels_average_their_subwords_and_vocabulary_fills_the_rest(t5: Backbone) -> None:
    assert len(t5.pieces("not_entailment")) > 1
    begun = Labels().build(Material(t5, ["entailment", "not_entailment"]), 2, 5, rng()).vectors
    for row, label in enumerate(["entailment", "not_entailment"]):
        mean = t5.input_embeddings(torch.tensor(t5.pieces(label))).mean(0)
        assert torch.equal(begun[0, row], mean)
        assert torch.equal(begun[1, row], mean)
    assert set(rows_of(begun[:, 2:].flatten(0, 1), t5)) <= set(t5.common_pieces(5000).tolist())
    assert Labels().build(Material(t5, ["a", "b", "c"]), 1, 2, rng()).vectors.shape == (1, 2, 32), (
        "surplus labels are dropped"
    )
    with pytest.raises(UserError, match="no class labels"):
        Labels().build(Material(t5), 1, 5, rng())


def test_text_gives_its_tokens_in_order_and_is_not_repeated(t5: Backbone) -> None:
    ids = t5.pieces("classify the review")
    begun = Text(text="classify the review").build(Material(t5), 1, len(ids) + 3, rng()).vectors[0]
    assert rows_of(begun[: len(ids)], t5) == ids
    assert rows_of(begun[len(ids) :], t5) != ids[:3]
    with pytest.raises(UserError, match="empty"):
        Text(text=" ").build(Material(t5), 1, 4, rng())


@pytest.mark.parametrize("kind", ["uniform", "normal", "vocabulary", "labels", "text"])
def test_the_same_seed_gives_the_same_prompt(t5: Backbone, kind: str) -> None:
    options = {"text": "some words"} if kind == "text" else {}
    config = PromptConfig(length=9, count=2, start=Choice(kind, options), route=Choice("top1"))
    one, same, other = (
        build_prompt(config, Material(t5, ["yes", "no"]), seed, t5.unit).table for seed in (3, 3, 4)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_source_of_another_length_has_a_rule(t5: Backbone) -> None:
    source = torch.randn(1, 6, 32)
    material = Material(t5, fetch=lambda name: Source(source))
    shorter = TrainedPrompt(sources=["a"]).build(material, 1, 4, rng()).vectors
    assert torch.equal(shorter, source[:, :4])
    longer = TrainedPrompt(sources=["a"]).build(material, 1, 9, rng()).vectors
    assert torch.equal(longer[:, :6], source)
    assert set(rows_of(longer[0, 6:], t5)) <= set(t5.common_pieces(5000).tolist())
    copies = TrainedPrompt(sources=["a"]).build(material, 3, 6, rng()).vectors
    assert torch.equal(copies, source.expand(3, 6, 32))


def test_a_mixture_of_another_count_is_refused_or_one_is_picked(t5: Backbone) -> None:
    mixture = Source(torch.randn(4, 6, 32), {"weight": torch.randn(4, 32)}, Choice("top1"))
    material = Material(t5, fetch=lambda name: mixture)
    with pytest.raises(UserError, match="mixture of 4 prompts"):
        TrainedPrompt(sources=["a"]).build(material, 2, 6, rng())
    picked = TrainedPrompt(sources=["a"], index=2).build(material, 1, 6, rng())
    assert torch.equal(picked.vectors, mixture.vectors[2:3])
    with pytest.raises(UserError, match="no prompt 4"):
        TrainedPrompt(sources=["a"], index=4).build(material, 1, 6, rng())


def test_mixtures_are_not_averaged(t5: Backbone) -> None:
    material = Material(
        t5,
        fetch=lambda name: Source(
            torch.randn(4, 6, 32), {"weight": torch.randn(4, 32)}, Choice("top1")
        ),
    )
    with pytest.raises(UserError, match="Mixtures cannot be averaged"):
        TrainedPrompt(sources=["a", "b"]).build(material, 4, 6, rng())
    assert TrainedPrompt(sources=["a", "b"], index=1).build(
        material, 1, 6, rng()
    ).vectors.shape == (1, 6, 32)


def test_weighted_mean_matches_spot() -> None:
    reference = golden("spot_similarity")
    prompts = torch.tensor(reference["prompts"], dtype=torch.float64)
    for by in reference["retrieval"].values():
        for k in ("k=1", "k=2", "k=3"):
            case = by[k]
            similar = [by["similarity_to_target"][i] for i in case["sources"]]
            mean = weighted_mean(case["sources"], [prompts[i] for i in case["sources"]], similar)
            torch.testing.assert_close(
                mean,
                torch.tensor(case["weighted_average"], dtype=torch.float64),
                rtol=0,
                atol=1e-12,
            )


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=5))
def test_a_mean_of_equal_prompts_is_that_prompt(weights: list[float]) -> None:
    one = torch.arange(12.0).view(3, 4)
    torch.testing.assert_close(
        weighted_mean(list("abcde"[: len(weights)]), [one] * len(weights), weights), one
    )


@pytest.mark.parametrize(
    ("weights", "why"),
    [([1.0], "one weight per source"), ([1.0, -1.0], "non-negative"), ([0.0, 0.0], "positive sum")],
)
def test_bad_weights_are_refused(weights: list[float], why: str) -> None:
    with pytest.raises(UserError, match=why):
        weighted_mean(["a", "b"], [torch.ones(2, 3)] * 2, weights)


def test_prompts_of_different_sizes_cannot_be_averaged() -> None:
    with pytest.raises(UserError, match="differ"):
        weighted_mean(["a", "b"], [torch.ones(2, 3), torch.ones(3, 3)], None)
