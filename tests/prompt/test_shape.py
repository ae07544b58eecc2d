"""Shapes against the official residual network, and the promises every shape makes."""

from typing import Any

import pytest
import torch

from softprompts.config import Choice, shapes
from softprompts.prompt.shape import Encoder, Residual, ResidualNetwork

from ..conftest import golden

CASES = golden("residual")["cases"]


def residual(case: dict[str, Any]) -> ResidualNetwork:
    """Our module with the official module's weights."""
    official = case["kwargs"]
    names = {"relu": "relu", "tanh": "tanh", "sigm": "sigmoid"}
    length = len(case["input"])
    options = Residual(
        bottleneck=official["bottleneck_size"],
        activation=names[official.get("nonlinearity", "relu")],
        depth=2 if "MLP2" in case["name"] else 1,
        layer_norm=official.get("layer_norm", True),
        dropout=official.get("dropout", 0.0),
        skip=official.get("residual", True),
    )
    shape = ResidualNetwork(options, 1, length, official["emb_dimension"], torch.Generator())
    weights = {name: torch.tensor(value) for name, value in case["weights"].items()}
    norm = "module.4" if "Dropout" in case["class_order"] else "module.3"
    shape.down.weight.data[0], shape.down.bias.data[0] = (
        weights["module.0.weight"],
        weights["module.0.bias"],
    )
    shape.up.weight.data[0], shape.up.bias.data[0] = (
        weights["module.2.weight"],
        weights["module.2.bias"],
    )
    if shape.gain is not None and shape.shift is not None:
        shape.gain.data[0], shape.shift.data[0] = weights[f"{norm}.weight"], weights[f"{norm}.bias"]
    return shape


@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_residual_matches_the_official_network(case: dict[str, Any]) -> None:
    shape = residual(case).eval()
    table = torch.tensor(case["input"])[None].requires_grad_()
    output = shape(table)
    torch.testing.assert_close(output[0], torch.tensor(case["output"]), rtol=1e-5, atol=1e-6)
    loss = (output[0] * torch.tensor(case["grad_probe"])).sum()
    loss.backward()
    assert loss.item() == pytest.approx(case["loss"], rel=1e-5)
    assert table.grad is not None
    torch.testing.assert_close(
        table.grad[0], torch.tensor(case["grad_input"]), rtol=1e-4, atol=1e-5
    )
    assert shape.down.weight.grad is not None
    torch.testing.assert_close(
        shape.down.weight.grad[0],
        torch.tensor(case["grad_weights"]["module.0.weight"]),
        rtol=1e-4,
        atol=1e-5,
    )


def test_one_network_per_token_treats_tokens_separately() -> None:
    shape = Residual(bottleneck=4, shared=False).build(1, 3, 8, torch.Generator())
    table = torch.randn(1, 1, 8).expand(1, 3, 8)
    output = shape(table)
    assert not torch.allclose(output[0, 0], output[0, 1])
    alone = Residual(bottleneck=4).build(1, 1, 8, torch.Generator())
    with torch.no_grad():
        for mine, theirs in zip(alone.parameters(), shape.parameters(), strict=True):
            mine.copy_(theirs[1:2])
    torch.testing.assert_close(alone(table[:, :1])[0, 0], output[0, 1])


def test_dropout_needs_training_and_comes_from_the_runs_generator() -> None:
    shape = Residual(bottleneck=16, dropout=0.5).build(1, 4, 8, torch.Generator())
    table = torch.randn(1, 4, 8)
    quiet = shape.eval()(table, torch.Generator().manual_seed(1))
    assert torch.equal(quiet, shape.eval()(table))
    shape.train()
    one, same, other = (shape(table, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("network", ["mlp", "lstm"])
def test_encoders_train_all_their_parameters(network: Any) -> None:
    shape = Encoder(network, width=5).build(2, 3, 8, torch.Generator().manual_seed(0))
    shape(torch.randn(2, 3, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in shape.parameters())


def test_making_a_shape_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    Encoder("lstm").build(1, 3, 8, torch.Generator())
    assert torch.equal(torch.rand(3), expected)


KINDS = [
    {"kind": "direct"},
    {"kind": "residual"},
    {"kind": "residual", "layer_norm": False},
    {"kind": "residual", "skip": False},
    {"kind": "residual", "shared": False},
    {"kind": "encoder"},
    {"kind": "encoder", "network": "lstm"},
]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_reproduce_gives_the_source_to_the_bit_and_can_still_learn(kind: dict[str, Any]) -> None:
    shape: Any = shapes.make(Choice.of(kind)).build(2, 3, 8, torch.Generator().manual_seed(0))
    wanted = torch.randn(2, 3, 8)
    table = shape.reproduce(wanted).requires_grad_()
    output = shape(table)
    rounding = (
        1e-6 if "lstm" in str(kind) else 0
    )  # torch's LSTM has another kernel where gradients are wanted
    torch.testing.assert_close(output, wanted, rtol=0, atol=rounding)
    (output * torch.randn(2, 3, 8)).sum().backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in [table, *shape.parameters()])
