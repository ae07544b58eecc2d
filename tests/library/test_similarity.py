"""SPoT's two similarities, to the numbers of its formulas."""

import pytest
import torch

from softprompts.library.search import SIMILARITIES, summary

from ..conftest import golden

SPOT = golden("spot_similarity")


@pytest.mark.parametrize("name", sorted(SIMILARITIES))
def test_similarities_match(name: str) -> None:
    prompts = torch.tensor(SPOT["prompts"], dtype=torch.float64)
    target = torch.tensor(SPOT["target_prompt"], dtype=torch.float64)
    for i, one in enumerate(prompts):
        for j, other in enumerate(prompts):
            assert SIMILARITIES[name](one, other) == pytest.approx(SPOT[name][i][j], abs=1e-12)
    found = [SIMILARITIES[name](target, prompt) for prompt in prompts]
    assert found == pytest.approx(SPOT["retrieval"][name]["similarity_to_target"], abs=1e-12)
    assert sorted(range(len(found)), key=lambda i: -found[i]) == SPOT["retrieval"][name]["ranking"]


def test_dot_products_of_summaries_match() -> None:
    rows = torch.stack(
        [summary(torch.tensor(prompt, dtype=torch.float64)) for prompt in SPOT["prompts"]], 1
    )
    for name, one in zip(SIMILARITIES, rows, strict=True):
        assert (one @ one.T).tolist() == [pytest.approx(row, abs=1e-12) for row in SPOT[name]]


def test_lengths_may_differ() -> None:
    one = torch.randn(4, 8)
    for similarity in SIMILARITIES.values():
        assert similarity(one, one.repeat(3, 1)) == pytest.approx(similarity(one, one), abs=1e-6)
