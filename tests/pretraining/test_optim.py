"""Muon against torch's own, and the schedules."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from softprompts.pretraining.config import PretrainConfig
from softprompts.pretraining.optim import Muon, learning_rate, orthogonal


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
def test_muon_matches_torch() -> None:
    torch.manual_seed(0)
    shapes = [(8, 16), (8, 16), (16, 8), (12, 12)]
    start = [torch.randn(shape) for shape in shapes]
    ours, theirs = ([torch.nn.Parameter(value.clone()) for value in start] for _ in range(2))
    reference: Any = torch.optim.Muon(
        theirs, lr=0.02, momentum=0.95, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    muon = Muon(ours, lr=0.02, momentum=0.95, weight_decay=0.1)
    for _ in range(4):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.randn_like(a)
            b.grad = a.grad.clone()
        muon.step()
        reference.step()
    for a, b, initial in zip(ours, theirs, start, strict=True):
        assert (a - b).abs().max() < 0.02 * (b - initial).abs().max()  # bf16 on both sides


@pytest.mark.parametrize("shape", [(3, 16, 40), (2, 40, 16), (1, 24, 24)])
def test_orthogonal_brings_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    values = torch.linalg.svdvals(
        orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(0))).float()
    )
    assert values.max() < 1.3
    assert values.median() > 0.6


def test_schedules(make_config: Callable[..., PretrainConfig]) -> None:
    def rates(**settings: Any) -> list[float]:
        config = make_config(steps=100, warmup=10, lr=1.0, **settings)
        return [learning_rate(config, step) for step in range(100)]

    for kind in ("constant", "linear", "cosine", "wsd", "rsqrt"):
        assert rates(schedule=kind)[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert rates(schedule="constant")[99] == 1
    assert rates(schedule="linear")[99] == pytest.approx(1 / 90)
    assert rates(schedule="cosine")[55] == pytest.approx(0.5)
    assert rates(schedule="wsd", decay=0.2)[80] == 1
    assert rates(schedule="wsd", decay=0.2)[90] == pytest.approx(0.5)
    assert rates(schedule="rsqrt")[39] == pytest.approx(0.5)
