"""Frozen models on a CPU: the same numbers as torch's own modules."""

import copy
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from softprompts.backbone import EncoderDecoder, Masked
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


def conv1d(inputs: int, outputs: int) -> nn.Module:
    """GPT-2's linear layer."""
    return Conv1D(outputs, inputs)


@needs_onednn
@pytest.mark.parametrize("kept", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("make", [nn.Linear, partial(nn.Linear, bias=False), conv1d])
def test_linear_layers_by_onednn(make: Any, kept: tuple[bool, bool], monkeypatch: Any) -> None:
    monkeypatch.setattr(cpu, "MAX_PACKED", 2**20 * kept[0])
    monkeypatch.setattr(cpu, "MAX_PACKED_TRANSPOSES", 2**20 * kept[1])
    plain = make(192, 320).requires_grad_(False)
    module = copy.deepcopy(plain)
    cpu.speed_up(module)
    assert isinstance(module, cpu.OneDnn)
    assert isinstance(module, type(plain)), "code that looks for linear layers finds it"
    for shape in ((37, 192), (2, 5, 192), (1, 192)):
        states = torch.randn(shape, requires_grad=True)
        saved: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda none: none):
            ours = module(states)
        assert saved == [], "an input would be for the gradient of the matrix"
        expected = plain(states)
        torch.testing.assert_close(ours, expected)
        with torch.no_grad():
            torch.testing.assert_close(module(states), expected)
        upstream = torch.randn_like(expected)
        torch.testing.assert_close(
            torch.autograd.grad(ours, states, upstream),
            torch.autograd.grad(expected, states, upstream),
        )
    assert module(torch.empty(0, 192)).shape == (0, 320)
    names = ["matrix", "transpose"][: sum(kept)]
    assert list(module.__dict__.get("_copies", {})) == names
    assert "_copies" not in vars(copy.deepcopy(module))
    cpu.speed_up(module)  # again, as when two backbones are made of one model
    cpu.slow_down(module)
    assert type(module) is type(plain)
    assert module.state_dict().keys() == plain.state_dict().keys()


@needs_onednn
def test_copies_of_a_matrix_follow_it() -> None:
    module = nn.Linear(192, 200).requires_grad_(False)
    cpu.speed_up(module)
    states = torch.randn(3, 192)
    module(states)
    module.load_state_dict({name: 2 * value for name, value in module.state_dict().items()})
    torch.testing.assert_close(module(states), nn.Linear.forward(module, states))
    module.requires_grad_()(states)
    assert "_copies" not in vars(module), "they are of no use to a trained matrix, which changes"


@needs_onednn
def test_gradients_of_gradients_are_refused() -> None:
    module = nn.Linear(192, 200).requires_grad_(False)
    cpu.speed_up(module)
    states = torch.randn(3, 192, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(states).square().sum(), states, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


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
def test_feed_forward_layers_are_faster(backbone: EncoderDecoder) -> None:
    layer = backbone.model.get_encoder().block[0].layer[-1].DenseReluDense
    assert isinstance(layer, cpu.GatedGelu)
    parts = layer.wi_0, layer.wi_1, layer.wo, backbone.model.lm_head
    assert all(isinstance(part, cpu.OneDnn) for part in parts)
    states = torch.randn(7, backbone.hidden)
    with_gradient = layer(states.requires_grad_()).detach()
    with torch.no_grad():
        without = layer(states)
        cpu.slow_down(backbone.model)
        plain = layer(states)
    torch.testing.assert_close(with_gradient, plain)
    torch.testing.assert_close(without, plain)


@needs_onednn
def test_a_model_can_be_pickled(backbone: EncoderDecoder) -> None:
    ids = torch.tensor([[5, 7, 9, 1]])
    copied = pickle.loads(pickle.dumps(backbone.model))
    for model in (copied, copy.deepcopy(backbone.model)):
        assert len(fast_modules(model)) == len(fast_modules(backbone.model)) > 0
        with torch.no_grad():
            answers = [
                m(input_ids=ids, decoder_input_ids=ids).logits for m in (model, backbone.model)
            ]
        torch.testing.assert_close(*answers)


def fast_modules(model: nn.Module) -> list[nn.Module]:
    return [part for part in model.modules() if isinstance(part, cpu.OneDnn | cpu.GatedGelu)]


@needs_onednn
@pytest.mark.parametrize("kind", ["t5", "llama", "gpt2", "bert", "bart", "deberta-v2", "bloom"])
def test_every_family_answers_and_learns_the_same(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "MIN_WIDTH", 1)
    backbone = random_model(kind)
    linears = [p for p in backbone.model.modules() if isinstance(p, nn.Linear | Conv1D)]
    assert linears
    assert set(linears) <= set(fast_modules(backbone.model))
    rows = [[5, 7, 9, 4], [6, 8], [9, 9, 7]]
    if isinstance(backbone, Masked):
        rows = [[*row, backbone.tokenizer.mask_token_id] for row in rows]
    text = backbone.embed_rows(rows)
    vectors = torch.randn(3, 4, backbone.hidden, generator=torch.Generator().manual_seed(0))
    targets, weight = [[5], [6], [7]], torch.ones(3)

    def numbers() -> tuple[Tensor, Tensor, Tensor]:
        scores = backbone.scores(vectors, text, [[[5], [6]]] * 3)
        nll, gradient = backbone.gradients(vectors, text, targets, weight, weight * 0)
        return scores, nll, gradient

    ours = numbers()
    cpu.slow_down(backbone.model)
    assert fast_modules(backbone.model) == []
    scores, *plain = numbers()
    torch.testing.assert_close(ours[0], scores, rtol=1e-5, atol=1e-5)
    assert_close(ours[1:], (plain[0], plain[1]))


def test_trained_narrow_and_bf16_models_are_left_alone(
    backbone: EncoderDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = backbone.model
    assert bool(fast_modules(model)) == cpu.HAS_ONEDNN
    monkeypatch.setattr(cpu, "_product", None)  # a call would fail
    states = torch.randn(2, backbone.hidden)
    backbone.unfreeze()
    model.lm_head(states).sum().backward()
    assert model.lm_head.weight.grad is not None
    backbone.refreeze()
    model.to(torch.bfloat16).lm_head(states.bfloat16())
    cpu.slow_down(model)
    cpu.speed_up(model)
    assert fast_modules(model) == []
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "MIN_WIDTH", 192)
        cpu.speed_up(model.float())
    assert fast_modules(model) == []


@needs_onednn
def test_the_included_model_is_fast(tiny: EncoderDecoder) -> None:
    """All its matrices, and all its feed-forward layers."""
    linears = [part for part in tiny.model.modules() if isinstance(part, nn.Linear)]
    assert len(fast_modules(tiny.model)) == len(linears) + len(tiny.blocks())
    assert set(linears) < set(fast_modules(tiny.model))


def test_modules_with_a_forward_of_their_own_are_left_alone(backbone: EncoderDecoder) -> None:
    """As those of a model that is spread over devices have."""
    cpu.slow_down(backbone.model)
    own = backbone.model.lm_head
    own.forward = partial(nn.Linear.forward, own)
    cpu.speed_up(backbone.model)
    assert own not in fast_modules(backbone.model)


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
