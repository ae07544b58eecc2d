"""Frozen models on a CPU: the same numbers as torch's own modules."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from softprompts.backbone import EncoderDecoder
from softprompts.backbone.speed import cpu
from softprompts.backbone.speed.row_layout import grouped_layout

from ...models import random_model

SIZES = [3, 40, 1, 17, 2, 90, 8, 8]
needs_onednn = pytest.mark.skipif(not cpu.HAS_ONEDNN, reason="needs oneDNN on an x86 CPU")


@pytest.fixture(params=["t5", "mt5"])
def backbone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> EncoderDecoder:
    """A narrow model that is treated as a wide one."""
    monkeypatch.setattr(cpu, "MIN_WIDTH", 1)
    model = random_model(request.param)
    assert isinstance(model, EncoderDecoder)
    return model


def gradients(backbone: EncoderDecoder, place: Any = "prefix") -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(0)
    rows = [[*rng.integers(5, 400, size).tolist(), 1] for size in SIZES]
    text = backbone.embed_rows(rows, place)._replace(
        prompt_lengths=torch.tensor([1, 20, 5, 0, 20, 7, 19, 4])
    )
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(len(SIZES), 20, backbone.hidden, generator=generator)
    weight = torch.linspace(0.5, 1, len(SIZES))
    targets = [[5, 6, 1], [7, 1]] * 4
    return backbone.gradients(vectors, text, targets, weight, weight * 0.01)


def assert_close(ours: tuple[Tensor, Tensor], plain: tuple[Tensor, Tensor]) -> None:
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-5, atol=1e-5)
    # by norm, because numbers near zero are rounding errors
    assert float((ours[1] - plain[1]).norm() / plain[1].norm()) < 1e-3


# -- modules ---------------------------------------------------------------------------------------


@needs_onednn
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_linear_layers_by_onednn(packed: bool, bias: bool) -> None:
    module = nn.Linear(48, 80, bias=bias).requires_grad_(False)
    forward = cpu.frozen_linear(module, packed)
    for shape in ((37, 48), (2, 5, 48), (1, 48)):
        states = torch.randn(shape, requires_grad=True)
        saved: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda none: none):
            ours = forward(states)
        assert saved == [], "an input would be for the gradient of the matrix"
        plain = module(states)
        torch.testing.assert_close(ours, plain)
        upstream = torch.randn_like(plain)
        torch.testing.assert_close(
            torch.autograd.grad(ours, states, upstream),
            torch.autograd.grad(plain, states, upstream),
        )


def test_gated_gelus_are_as_exact_as_torchs() -> None:
    draw = torch.Generator().manual_seed(0)
    *inputs, upstream = torch.randn(3, 500, 64, dtype=torch.float64, generator=draw) * 4

    def plain(states: Tensor, gate: Tensor) -> Tensor:
        return nn.functional.gelu(states, approximate="tanh") * gate

    def output_and_gradients(product: Any, dtype: torch.dtype) -> Tensor:
        parts = [part.to(dtype).requires_grad_() for part in inputs]
        output = product(*parts)
        by_part = torch.autograd.grad(output, parts, upstream.to(dtype))
        return torch.stack([output.detach(), *by_part])

    exact = output_and_gradients(plain, torch.float64)
    ours, torchs = (
        (output_and_gradients(product, torch.float32) - exact).abs().max()
        for product in (cpu._GatedGelu.apply, plain)
    )
    assert float(ours) < 3 * float(torchs) < 1e-3


@needs_onednn
def test_feed_forward_layers_are_replaced(backbone: EncoderDecoder) -> None:
    layer = backbone.model.get_encoder().block[0].layer[-1].DenseReluDense
    forwards = {id(module): forward for module, forward in cpu.fast_forwards(backbone.model)}
    assert {id(layer), id(layer.wi_0), id(layer.wo), id(backbone.model.lm_head)} <= set(forwards)
    states = torch.randn(7, backbone.hidden)
    torch.testing.assert_close(forwards[id(layer)](states), layer(states))


@needs_onednn
@pytest.mark.parametrize("most", [0, 2**25], ids=["not packed", "packed"])
def test_matrices_of_large_models_are_not_copied(
    backbone: EncoderDecoder, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = gradients(backbone)
    copied: list[bool] = []
    linear = cpu.frozen_linear

    def counted(module: nn.Linear, packed: bool) -> cpu.Forward:
        copied.append(packed)
        return linear(module, packed)

    monkeypatch.setattr(cpu, "MAX_PACKED", most)
    monkeypatch.setattr(cpu, "frozen_linear", counted)
    monkeypatch.setattr(backbone.packed, "_fast", None)
    assert_close(gradients(backbone), plain)
    assert set(copied) == {most > 0}


def test_trained_narrow_and_bf16_models_are_left_alone(
    backbone: EncoderDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = backbone.model
    assert bool(cpu.fast_forwards(model)) == cpu.HAS_ONEDNN
    backbone.unfreeze()
    assert cpu.fast_forwards(model) == []
    backbone.refreeze()
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "MIN_WIDTH", 192)
        assert cpu.fast_forwards(model) == []
    assert cpu.fast_forwards(model.to(torch.bfloat16)) == []


@needs_onednn
def test_the_included_model_is_fast(tiny: EncoderDecoder) -> None:
    """All its matrices, and all its feed-forward layers."""
    modules = [module for module, _ in cpu.fast_forwards(tiny.model)]
    linears = [part for part in tiny.model.modules() if isinstance(part, nn.Linear)]
    assert modules[: len(linears)] == linears
    assert len(modules) == len(linears) + len(tiny.blocks())
    ours = gradients(tiny)
    packed = tiny.packed
    assert packed is not None
    before = packed._fast
    packed._fast = (packed.model.device, packed.model.dtype), []
    plain = gradients(tiny)
    packed._fast = before
    assert_close(ours, plain)


def test_modules_with_a_forward_of_their_own_are_left_alone(backbone: EncoderDecoder) -> None:
    """As those of a model that is spread over devices have."""
    own = backbone.model.lm_head
    own.forward = partial(nn.Linear.forward, own)
    assert own not in [module for module, _ in cpu.fast_forwards(backbone.model)]
    del own.forward


def test_a_model_may_change_its_precision(backbone: EncoderDecoder) -> None:
    """What was prepared for the other precision is not used."""
    in_fp32 = gradients(backbone)
    backbone.model.to(torch.bfloat16)
    in_bf16 = gradients(backbone)
    assert not torch.equal(in_bf16[0], in_fp32[0])
    torch.testing.assert_close(in_bf16[0], in_fp32[0], rtol=0.05, atol=0.05)


# -- attention -------------------------------------------------------------------------------------


def test_attention_is_that_of_each_row_alone(backbone: EncoderDecoder) -> None:
    heads, size, scaling = 4, 8, 0.3
    text = backbone.embed_rows([[5] * length for length in SIZES])
    layout = grouped_layout(text, 0)
    cells = cpu.attention_cells(layout, heads)
    assert cells is not None
    assert len(cells.shapes) > 2, "rows of several lengths, padded and not"
    assert len(layout.source) > layout.used == sum(SIZES), "some positions are not used"
    inputs = torch.randn(3, len(layout.source), heads, size).unbind(0)
    upstream, table = torch.randn_like(inputs[0]), torch.randn(heads, 100, 100)
    biases = [
        table[:, :width, :width] + torch.where(mask, 0.0, -1e30)[:, None, None]
        for (_, width), mask in zip(layout.groups, layout.masks, strict=True)
    ]
    for part in inputs:
        part.requires_grad_()
    ours = cpu.attention(inputs, cells, biases, scaling)
    by_ours = torch.autograd.grad(ours, inputs, upstream)
    begin = 0
    for row in layout.rows.tolist():
        own = slice(begin, begin + SIZES[row])
        begin = own.stop
        alone = [part[own].detach().requires_grad_() for part in inputs]
        query, key, value = (part.transpose(0, 1) for part in alone)
        scores = query @ key.transpose(1, 2) * scaling + table[:, : SIZES[row], : SIZES[row]]
        plain = (scores.softmax(-1) @ value).transpose(0, 1)
        torch.testing.assert_close(ours[own], plain, rtol=1e-4, atol=1e-5)
        by_plain = torch.autograd.grad(plain, alone, upstream[own])
        for ours_of_row, plain_of_row in zip(by_ours, by_plain, strict=True):
            torch.testing.assert_close(ours_of_row[own], plain_of_row, rtol=1e-4, atol=1e-5)


def test_weights_of_long_rows_are_not_kept(
    backbone: EncoderDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = gradients(backbone)
    monkeypatch.setattr(cpu, "MAX_COLUMNS", 50)
    monkeypatch.setattr(cpu, "attention", None)
    assert_close(gradients(backbone), kept)
