"""Frozen weights in 8 and 4 bits."""

import math

import pytest
import torch
import transformers
from torch import nn
from transformers.pytorch_utils import Conv1D

from softprompts import load, load_backbone, tune
from softprompts.backbone import Backbone
from softprompts.backbone.quantized import (
    QuantizedLinear,
    four_bit_levels,
    quantize,
    quantize_model,
    restore,
)
from softprompts.errors import UserError

from ..models import random_model

CPU = torch.device("cpu")


def test_the_levels_of_four_bits() -> None:
    """NF4's, as published (Dettmers 2023, appendix E)."""
    published = [
        *(-1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0),
        *(0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0),
    ]
    torch.testing.assert_close(four_bit_levels(CPU), torch.tensor(published), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("bits", "error"), [(8, 0.01), (4, 0.1)])
@pytest.mark.parametrize("shape", [(96, 64), (130, 200), (5, 2), (40, 65), (3, 1)])
def test_matrices_are_nearly_restored(bits: int, error: float, shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.02
    levels = four_bit_levels(CPU) if bits == 4 else None
    integers, scale = quantize(matrix, levels)
    restored = restore(integers, scale, levels, torch.float32, shape[1])
    assert float((restored - matrix).norm() / matrix.norm()) < error
    row_bytes = math.ceil(shape[1] * bits / 8)
    assert integers.numel() * integers.element_size() == shape[0] * row_bytes
    zeros = restore(*quantize(torch.zeros(shape), levels), levels, torch.float32, shape[1])
    assert not zeros.any()


@pytest.mark.parametrize("bits", [8, 4])
def test_products_and_gradients_are_those_of_the_restored_matrix(bits: int) -> None:
    torch.manual_seed(0)
    layers = (nn.Linear(64, 32), nn.Linear(64, 32, bias=False), Conv1D(32, 64), nn.Linear(65, 32))
    for layer in layers:
        quantized = QuantizedLinear(layer, bits, CPU)  # type: ignore[arg-type]
        states = torch.randn(3, 5, quantized.columns, requires_grad=True)
        expected = nn.functional.linear(states, quantized.weight, layer.bias)
        output = quantized(states)
        torch.testing.assert_close(output, expected)
        for actual, plain in zip(
            torch.autograd.grad(output.sum(), states),
            torch.autograd.grad(expected.sum(), states),
            strict=True,
        ):
            torch.testing.assert_close(actual, plain)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("kind", ["t5", "bart", "llama", "gpt2", "bert"])
def test_packed_rows_are_those_of_the_quantised_model(kind: str, bits: int) -> None:
    backbone = random_model(kind)
    quantize_model(backbone.model, bits, CPU)  # type: ignore[arg-type]
    assert any(isinstance(part, QuantizedLinear) for part in backbone.model.modules())
    mask = [] if backbone.generates else [backbone.tokenizer.mask_token_id]
    text = backbone.embed_rows([[5, 6, 7, *mask], [8, *mask], [9] * 20 + mask])
    vectors = torch.randn(3, 4, backbone.hidden) * backbone.unit
    arguments = (vectors, text, [[5], [6], [7]], torch.ones(3), torch.zeros(3))
    ours, plain = backbone.gradients(*arguments), Backbone.padded_gradients(backbone, *arguments)
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-4, atol=1e-4)
    assert float((ours[1] - plain[1]).norm() / plain[1].norm()) < 1e-3


def test_a_model_that_would_stay_almost_as_large_is_refused() -> None:
    """Mixtral's experts are tensors of three dimensions."""
    config = transformers.MixtralConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    with pytest.raises(UserError, match="weights of mixtral models are not plain matrices"):
        quantize_model(model, 8, CPU)
    assert not any(isinstance(part, QuantizedLinear) for part in model.modules())


def test_a_quantised_backbone_has_the_exact_ones_fingerprint() -> None:
    exact = load_backbone("t5-tiny", "fp32", "cpu")
    sizes = {}
    for dtype in ("int8", "int4"):
        backbone = load_backbone("t5-tiny", dtype, "cpu")
        assert backbone.dtype == dtype
        assert (backbone.fingerprint, backbone.unit) == (exact.fingerprint, exact.unit)
        tensors = (*backbone.model.parameters(), *backbone.model.buffers())
        sizes[dtype] = sum(part.numel() * part.element_size() for part in tensors)
    full = sum(part.numel() * part.element_size() for part in exact.model.parameters())
    assert sizes["int4"] < sizes["int8"] < full


def test_a_prompt_remembers_the_precision_it_was_tuned_on(tmp_path) -> None:
    rows = [{"text": f"good {n}", "label": "yes"} for n in range(6)]
    rows += [{"text": f"bad {n}", "label": "no"} for n in range(6)]
    tuned = tune(
        train=rows, text="text", label="label", dtype="int8", steps=2, batch_size=4,
        output=tmp_path / "run", device="cpu", verbose=False,
    )  # fmt: skip
    assert tuned.card.backbone.dtype == "int8"
    again = load(tmp_path / "run", device="cpu")
    assert again.backbone.dtype == "int8"
    texts = ["good 7", "bad 8", "neither"]
    assert again.predict(texts) == tuned.predict(texts)
    exact = load(tmp_path / "run", dtype="fp32", device="cpu")
    assert exact.backbone.dtype == "fp32"
    assert len(exact.predict(texts)) == 3


def test_a_quantised_model_is_not_tuned_itself(tmp_path) -> None:
    with pytest.raises(UserError, match="fp32"):
        tune(
            train=(["good", "bad"] * 4, ["yes", "no"] * 4), preset="model-tuning", dtype="int4",
            steps=1, device="cpu", verbose=False, output=tmp_path / "run",
        )  # fmt: skip
