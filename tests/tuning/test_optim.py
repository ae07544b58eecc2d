"""Adafactor to T5X's numbers, and schedules."""

from typing import Any

import pytest
import torch

from softprompts.backbone import Backbone
from softprompts.config import Choice, PromptConfig, TuningConfig
from softprompts.prompt import Material
from softprompts.prompt.prompt import build_prompt
from softprompts.tuning.optim import Adafactor, AdamW, learning_rate, make_optimizer, step_all

from ..conftest import golden

T5X = golden("adafactor_t5x")


@pytest.mark.parametrize("case", T5X["cases"])
def test_adafactor_matches_t5x_step_by_step(case: str) -> None:
    expected = T5X["cases"][case]
    parameter = torch.nn.Parameter(torch.tensor(T5X["initial_param"]))
    optimizer = Adafactor([parameter], lr=0.3, weight_decay=1e-5, start_step=expected["start_step"])
    for gradient, after in zip(T5X["gradients"], expected["params_after_each_step"], strict=True):
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        torch.testing.assert_close(parameter.data, torch.tensor(after), rtol=2e-5, atol=2e-6)
    torch.testing.assert_close(
        optimizer.state[parameter]["v"], torch.tensor(expected["final_v"]), rtol=1e-5, atol=1e-7
    )


def by_the_formula(
    parameter: torch.Tensor, gradients: list[torch.Tensor], start: int
) -> torch.Tensor:
    """Adafactor's paper in float64 for one matrix, factored when both sides reach 128."""
    rows = torch.zeros(parameter.shape[0], 1, dtype=torch.float64)
    columns = torch.zeros(1, parameter.shape[1], dtype=torch.float64)
    whole = torch.zeros_like(parameter)
    for count, gradient in enumerate(gradients, start + 1):
        beta2 = 1 - count**-0.8
        squared = gradient.square() + 1e-30
        rows = beta2 * rows + (1 - beta2) * squared.mean(1, keepdim=True)
        columns = beta2 * columns + (1 - beta2) * squared.mean(0, keepdim=True)
        whole = beta2 * whole + (1 - beta2) * squared
        moment = rows * columns / rows.mean() if min(parameter.shape) >= 128 else whole
        update = gradient / moment.sqrt()
        update = update / max(1.0, float(update.square().mean().sqrt()))
        parameter = (1 - 1e-5) * parameter - 0.3 * update
    return parameter


@pytest.mark.parametrize("size", [(150, 768), (768, 150), (100, 768), (127, 128), (128, 128)])
def test_the_second_moment_is_factored_only_where_both_sides_reach_128(
    size: tuple[int, int],
) -> None:
    rng = torch.Generator().manual_seed(0)
    begin = torch.randn(size, generator=rng, dtype=torch.float64)
    gradients = [
        torch.randn(size, generator=rng, dtype=torch.float64)
        * torch.rand(size[0], 1, generator=rng)
        for _ in range(6)
    ]
    parameter = torch.nn.Parameter(begin.float()[None])  # [K, P, H] with K = 1, as a prompt's table
    optimizer = Adafactor([parameter], lr=0.3)
    for gradient in gradients:
        parameter.grad = gradient.float()[None]
        optimizer.step()
    assert ("v_row" in optimizer.state[parameter]) == (min(size) >= 128)
    torch.testing.assert_close(
        parameter.data[0].double(), by_the_formula(begin, gradients, 0), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("size", [(4, 150, 768), (150, 5, 768)])
def test_a_mixtures_table_is_never_factored(size: tuple[int, ...]) -> None:
    parameter = torch.nn.Parameter(torch.randn(size))
    parameter.grad = torch.randn(size)
    optimizer = Adafactor([parameter])
    optimizer.step()
    assert set(optimizer.state[parameter]) == {"step", "v"}


def test_zero_rows_beside_huge_gradients_stay_finite() -> None:
    parameter = torch.nn.Parameter(torch.randn(150, 256))
    gradient = 3e6 * torch.randn(150, 256)
    gradient[:3], gradient[:, :5] = 0, 0
    parameter.grad = gradient
    Adafactor([parameter], start_step=1_100_000).step()
    assert bool(torch.isfinite(parameter).all())


def test_from_step_1_100_000_every_step_is_clipped() -> None:
    parameter = torch.nn.Parameter(torch.zeros(6, 8))
    optimizer = Adafactor([parameter], lr=0.3, weight_decay=0.0, start_step=1_100_000)
    for gradient in T5X["gradients"][:10]:
        before = parameter.detach().clone()
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        assert (parameter - before).square().mean().sqrt().item() == pytest.approx(0.3, rel=1e-4)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"schedule": "constant", "warmup": 0}, [1, 1, 1, 1]),
        ({"schedule": "linear", "warmup": 0}, [1, 0.75, 0.5, 0.25]),
        ({"schedule": "cosine", "warmup": 0}, [1, 0.853553, 0.5, 0.146447]),
        ({"schedule": "constant", "warmup": 2}, [0.5, 1, 1, 1]),
        ({"schedule": "linear", "warmup": 0.5}, [0.5, 1, 1, 0.5]),
    ],
)
def test_schedules(settings: dict[str, Any], expected: list[float]) -> None:
    config = TuningConfig(**settings)
    assert [learning_rate(config, step, 4) for step in range(4)] == pytest.approx(
        expected, abs=1e-5
    )


def test_table_shape_and_router_have_their_own_rates(t5: Backbone) -> None:
    prompt = build_prompt(
        PromptConfig(4, 2, Choice("normal"), Choice("residual", {"bottleneck": 4}), Choice("top1")),
        Material(t5),
        0,
    )
    rates = [
        group["lr"]
        for group in make_optimizer(
            prompt.groups(), TuningConfig(lr=0.3, shape_lr=0.01, route_lr=0.002)
        ).param_groups
    ]
    assert rates == [0.3, 0.01, 0.002]
    rates = [
        group["lr"]
        for group in make_optimizer(
            prompt.groups(),
            TuningConfig(lr=0.3, shape_lr=None, route_lr=None, optimizer="adafactor"),
        ).param_groups
    ]
    assert rates == [0.3, 0.3, 0.3]


def test_adamw_equals_torchs_for_many_runs_at_once() -> None:
    """To the bit: with changing rates, a run that joins later, one with another optimiser, and a
    parameter without a gradient."""
    torch.manual_seed(0)
    starts = [torch.randn(5, 3), torch.randn(2, 4, 8), torch.randn(7)]
    settings = [
        {"lr": 0.3, "weight_decay": 1e-2},
        {"lr": 1e-3, "weight_decay": 0.0},
        {"lr": 0.05, "betas": (0.8, 0.99), "eps": 1e-6},
    ]
    ours = [torch.nn.Parameter(start.clone()) for start in starts]
    theirs = [torch.nn.Parameter(start.clone()) for start in starts]
    left, factored = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3, 2))
    mine: list[torch.optim.Optimizer] = [
        AdamW([parameter], **own) for parameter, own in zip(ours, settings, strict=True)
    ]
    mine[0].add_param_group({"params": [left]})
    peers = [
        torch.optim.AdamW([parameter], **own)
        for parameter, own in zip(theirs, settings, strict=True)
    ]
    for step in range(6):
        active = [0, 1, 2] if step >= 2 else [0, 1]
        for number in active:
            ours[number].grad = theirs[number].grad = torch.randn_like(starts[number]) * 10.0 ** (
                step - 3
            )
            mine[number].param_groups[0]["lr"] = peers[number].param_groups[0]["lr"] = settings[
                number
            ]["lr"] / (step + 1)
            peers[number].step()
        factored.grad = torch.randn(3, 2)
        step_all([*(mine[number] for number in active), Adafactor([factored])])
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    assert torch.equal(left, torch.ones(2))
    assert not torch.equal(factored, torch.ones(3, 2))
    for own, peer in zip(mine, peers, strict=True):
        (state,), (like,) = (
            [*optimizer.state_dict()["state"].values()] for optimizer in (own, peer)
        )
        assert state.keys() == like.keys()
        assert all(torch.equal(state[name], like[name]) for name in like)
