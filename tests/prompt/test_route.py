"""Routes against SMoP's formulas, and that no row ever sees another."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from softprompts.config import Choice, PromptConfig, routes
from softprompts.prompt.prompt import folded_prompt, mean_embedding

from ..conftest import golden

SMOP = golden("smop")


def route(kind: str, count: int = 4, hidden: int = 8, **options: Any) -> Any:
    return routes.make(Choice(kind, options)).build(count, hidden, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("case", ["top1", "top2"])
def test_matches_smop_with_gradients(case: str) -> None:
    module = route(case).eval()
    module.router.weight.data = torch.tensor(SMOP["router_weight"])
    prompts = torch.tensor(SMOP["prompts"]).requires_grad_()
    embeds = torch.tensor(SMOP["inputs_embeds"]).requires_grad_()
    text = mean_embedding(embeds, torch.tensor(SMOP["attention_mask"]))
    torch.testing.assert_close(text, torch.tensor(SMOP["mean_embedding"]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        module.router(text).softmax(-1), torch.tensor(SMOP["router_probs"]), rtol=1e-5, atol=1e-6
    )
    routed = module(prompts, text)
    torch.testing.assert_close(
        routed, torch.tensor(SMOP[case]["routed_prompts"]), rtol=1e-5, atol=1e-6
    )
    (routed * torch.tensor(SMOP["grad_probe"])).sum().backward()
    expected = SMOP[case].get("gradients_summed_over_official_batch_of_one_runs", SMOP[case])
    for found, name in (
        (module.router.weight.grad, "router_weight"),
        (prompts.grad, "prompts"),
        (embeds.grad, "inputs_embeds"),
    ):
        torch.testing.assert_close(
            found, torch.tensor(expected[f"grad_{name}"]), rtol=1e-4, atol=1e-5
        )


def test_the_official_batch_sum_is_not_reproduced() -> None:
    module = route("top1").eval()
    module.router.weight.data = torch.tensor(SMOP["router_weight"])
    text = torch.tensor(SMOP["mean_embedding"])
    routed = module(torch.tensor(SMOP["prompts"]), text)
    assert not torch.allclose(
        routed, torch.tensor(SMOP["official_top1_buggy"]["routed_prompts"]), atol=1e-3
    )


@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(sorted(routes)),
    rows=st.integers(1, 6),
    seed=st.integers(0, 1000),
    training=st.booleans(),
)
def test_rows_never_see_each_other(kind: str, rows: int, seed: int, training: bool) -> None:
    module = route(kind, 1 if kind == "single" else 4).train(training)
    rng = torch.Generator().manual_seed(seed)
    prompts, text = (
        torch.randn(1 if kind == "single" else 4, 3, 8, generator=rng),
        torch.randn(rows, 8, generator=rng),
    )
    noise = (
        torch.randint(4, (rows,), generator=rng)
        if kind == "stochastic"
        else torch.randn(rows, 4, generator=rng)
    )
    whole = module(prompts, text, noise=noise)
    order = torch.randperm(rows, generator=rng)
    torch.testing.assert_close(module(prompts, text[order], noise=noise[order]), whole[order])
    for row in range(rows):
        torch.testing.assert_close(
            module(prompts, text[row : row + 1], noise=noise[row : row + 1])[0], whole[row]
        )


def test_perturbation_is_multiplicative_detached_and_for_training_only() -> None:
    module = route("top1")
    prompts, text, noise = torch.randn(4, 3, 8), torch.randn(5, 8), torch.randn(5, 4)
    logits = module.router(text)
    perturbed = logits * (1 + noise)
    best = perturbed.argmax(-1)
    expected = perturbed.softmax(-1).gather(-1, best[:, None])[..., None] * prompts[best]
    torch.testing.assert_close(module(prompts, text, noise=noise), expected)
    module(prompts, text, noise=noise).sum().backward()
    with_noise = module.router.weight.grad
    module.router.weight.grad = None
    shifted = logits + (noise * logits).detach()
    (shifted.softmax(-1).gather(-1, best[:, None])[..., None] * prompts[best]).sum().backward()
    torch.testing.assert_close(with_noise, module.router.weight.grad)
    assert torch.equal(module.eval()(prompts, text, noise=noise), module(prompts, text))


def test_without_noise_training_equals_evaluation() -> None:
    module = route("top1", noise=0)
    prompts, text = torch.randn(4, 3, 8), torch.randn(5, 8)
    assert torch.equal(module.train()(prompts, text), module.eval()(prompts, text))


def test_gumbel_has_weight_one_passes_gradients_and_has_no_noise_in_evaluation() -> None:
    module = route("gumbel")
    prompts, text = torch.randn(4, 3, 8), torch.randn(64, 8)
    drawn = module(prompts, text, torch.Generator().manual_seed(0))
    chosen = (drawn[:, None] == prompts).all(-1).all(-1)
    assert bool((chosen.sum(1) == 1).all()), "every row gets one prompt, unscaled"
    assert len(set(chosen.int().argmax(1).tolist())) > 1
    drawn.square().sum().backward()
    grad = module.router.weight.grad
    assert grad is not None
    assert grad.abs().sum() > 0
    assert torch.equal(module.eval()(prompts, text), prompts[module.router(text).argmax(-1)])


def test_stochastic_draws_in_training_and_averages_in_evaluation() -> None:
    module = route("stochastic")
    prompts, text = torch.randn(4, 3, 8), torch.randn(64, 8)
    chosen = (
        (module(prompts, text, torch.Generator().manual_seed(0))[:, None] == prompts)
        .all(-1)
        .all(-1)
        .int()
        .argmax(1)
    )
    assert set(chosen.tolist()) == {0, 1, 2, 3}
    torch.testing.assert_close(module.eval()(prompts, text)[7], prompts.mean(0))


def test_the_router_starts_orthogonal() -> None:
    weight = route("top1").router.weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(4), rtol=0, atol=1e-5)


def test_a_levelled_router_is_exactly_uniform_yet_distinguishes_inputs() -> None:
    module = route("top1").eval()
    assert module.level(4) == 4
    text = torch.randn(200, 8)
    logits = module.router(text)
    assert torch.equal(logits.softmax(-1), torch.full((200, 4), 0.25))
    assert len(set(logits.argmax(-1).tolist())) == 4


def test_a_folded_mixture_keeps_its_routes() -> None:
    vectors, router = torch.randn(4, 3, 8), torch.randn(4, 8)
    prompt = folded_prompt(
        vectors, {"weight": router}, PromptConfig(count=len(vectors), route=Choice("top1"))
    )
    embeds, mask = torch.randn(6, 5, 8), torch.ones(6, 5)
    chosen = prompt.router_probabilities(embeds, mask).argmax(-1)
    assert chosen.tolist() == (embeds.mean(1) @ router.T).argmax(-1).tolist()
