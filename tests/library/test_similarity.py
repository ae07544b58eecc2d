"""SPoT's two similarities against reference numbers, and how prompts are ranked by them."""

from typing import get_args

import pytest
import torch

from softprompts.library import Similarity
from softprompts.library.search import SIMILARITIES, rank, summary

from ..conftest import golden

SPOT = golden("spot_similarity")


@pytest.mark.parametrize("name", sorted(SIMILARITIES))
def test_similarities_match(name: str) -> None:
    prompts = torch.tensor(SPOT["prompts"], dtype=torch.float64)
    target = torch.tensor(SPOT["target_prompt"], dtype=torch.float64)
    for i, prompt in enumerate(prompts):
        for j, other in enumerate(prompts):
            assert SIMILARITIES[name](prompt, other) == pytest.approx(SPOT[name][i][j], abs=1e-12)
    to_target = [SIMILARITIES[name](target, prompt) for prompt in prompts]
    expected = SPOT["retrieval"][name]
    assert to_target == pytest.approx(expected["similarity_to_target"], abs=1e-12)
    ranking = rank({("prompt", index): value for index, value in enumerate(to_target)})
    assert [index for _, index in ranking] == expected["ranking"]


def test_dot_products_of_summaries_match() -> None:
    rows = torch.stack(
        [summary(torch.tensor(prompt, dtype=torch.float64)) for prompt in SPOT["prompts"]], 1
    )
    for name, summaries in zip(SIMILARITIES, rows, strict=True):
        assert (summaries @ summaries.T).tolist() == [
            pytest.approx(row, abs=1e-12) for row in SPOT[name]
        ]


def test_lengths_may_differ() -> None:
    prompt = torch.randn(4, 8)
    for similarity in SIMILARITIES.values():
        itself = similarity(prompt, prompt)
        assert similarity(prompt, prompt.repeat(3, 1)) == pytest.approx(itself, abs=1e-6)


def test_equally_similar_prompts_are_ranked_by_name() -> None:
    """Similarities that differ by no more than rounding in float32 are equal."""
    assert rank({"b": 0.5, "a": 0.5 - 1e-8, "d": 0.4, "c": 0.6}) == ["c", "a", "b", "d"]
    assert rank({("t", 1): 0.5, ("s", 2): 0.5, ("s", 1): 0.5}) == [("s", 1), ("s", 2), ("t", 1)]


def test_every_similarity_has_a_name_in_the_settings() -> None:
    assert set(get_args(Similarity)) == set(SIMILARITIES)
