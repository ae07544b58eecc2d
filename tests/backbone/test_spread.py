"""Models whose layers are on several devices: the same losses, gradients and answers.

Without GPUs, some layers are on disk and are loaded where they are used, which takes the same way
through accelerate.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from softprompts.backbone import Backbone, load_backbone
from softprompts.config import run_config
from softprompts.config.run import SPREADS
from softprompts.errors import UserError
from softprompts.tasks import load_task
from softprompts.tuning import Cohort, Run
from softprompts.tuning.run import check_losses
from softprompts.tuning.team import Parallel

from ..models import random_causal, random_masked, random_t5

KINDS = {
    "t5": random_t5,
    "llama": lambda: random_causal("llama"),
    "bert": lambda: random_masked("bert"),
}
LABELS = ["positive", "negative"]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def device_map(backbone: Backbone, first: Any, second: Any) -> dict[str, Any]:
    """Everything on the first device but the second half of the layers."""
    names = {module: name for name, module in backbone.model.named_modules()}
    layers = [names[layer] for layer in backbone.blocks()]
    spread = {
        name: second if number >= len(layers) / 2 else first for number, name in enumerate(layers)
    }
    for name, module in backbone.model.named_modules():
        inside = any(name == layer or name.startswith(f"{layer}.") for layer in layers)
        if not inside and next(module.parameters(recurse=False), None) is not None:
            spread[name] = first
    return spread


@pytest.fixture(scope="module", params=sorted(KINDS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random model on the CPU, and a function that loads it with its layers elsewhere."""
    random, folder = KINDS[request.param](), tmp_path_factory.mktemp("model")
    random.model.save_pretrained(folder)
    random.tokenizer.save_pretrained(folder)

    def spread(first: Any, second: Any, dtype: str = "fp32") -> Backbone:
        return load_backbone(str(folder), dtype, device_map(random, first, second))

    return load_backbone(str(folder), "fp32", "cpu"), spread


def results(backbone: Backbone) -> list[Tensor]:
    """Losses and gradients, plain, recomputed and with dropout; scores and answers."""
    rows = backbone.tokenise(["the food was great", "never again, dull and long"], 40)
    draw = torch.Generator().manual_seed(0)
    vectors = torch.randn(2, 3, backbone.hidden, generator=draw).to(backbone.device)
    weight = torch.ones(2, device=backbone.device)
    text, targets = backbone.embed_rows(rows), backbone.tokenise_targets(LABELS)
    results: list[Tensor] = []
    for dropout in (None, torch.tensor([0.1, 0.2])):
        seeds = None if dropout is None else torch.tensor([1, 2])
        for recompute in (False, True):
            with backbone.training_mode(dropout, seeds, recompute):
                results += backbone.gradients(vectors, text, targets, weight, 0 * weight)
    results.append(backbone.scores(vectors, text, [targets] * 2))
    if backbone.generates:
        results.append(backbone.generate(vectors, text, 4))
    return [result.cpu() for result in results]


def check(plain: Backbone, spread: Backbone, tolerance: float = 1e-4) -> None:
    assert spread.is_spread
    assert not plain.is_spread
    assert not spread.packs_rows, "accelerate moves states only where the model calls its layers"
    assert (spread.fingerprint, spread.unit) == (plain.fingerprint, plain.unit)
    for ours, theirs in zip(results(spread), results(plain), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance / 10)


def test_layers_on_disk(pair: Any) -> None:
    plain, spread = pair
    check(plain, spread("cpu", "disk"))
    check(plain, spread("cpu", "disk"))  # nothing of the first is left behind


@two_gpus
def test_layers_on_two_gpus(pair: Any) -> None:
    plain, spread = pair
    check(plain, spread(0, 1), 1e-3)
    assert spread(0, 1, "int8").is_spread


def test_quantised_layers(pair: Any) -> None:
    plain, spread = pair
    quantized = spread("cpu", "cpu", "int8")
    whole = load_backbone(plain.name, "int8", "cpu")
    assert quantized.fingerprint == plain.fingerprint
    assert quantized.dtype == "int8"
    for ours, theirs in zip(results(quantized), results(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_cohort_learns_the_same(pair: Any, toy_csv: Path) -> None:
    """Prompts of several places and methods, with dropout and recomputation, and their answers."""
    settings = {"task": {"train": str(toy_csv), "text": "review", "label": "mood"}}
    tuning = {"steps": 3, "batch_size": 4, "chat": False, "scoring": "labels"}
    configs = [
        {"preset": "prompt-tuning", "prompt": {"length": 4}},
        {"preset": "smop", "prompt": {"length": 2, "count": 2}, "tuning": {"recompute": True}},
        {"preset": "prompt-tuning", "prompt": {"length": 3, "place": "suffix"}},
        {"preset": "prompt-tuning", "prompt": {"length": 3}, "tuning": {"dropout": 0.1}},
    ]
    plain, spread = pair
    losses, answers = [], []
    for backbone in (plain, spread("cpu", "disk")):
        members = [run_config(settings, {"tuning": tuning}, config) for config in configs]
        task = load_task(members[0].task)
        runs = [Run(config, task, backbone) for config in members]
        cohort = Cohort(runs, [None] * len(runs))
        for _ in range(3):
            cohort.step()
        check_losses(runs)
        losses.append([loss for run in runs for loss in run.pending])
        answers.append(cohort.evaluate(runs))
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("device", SPREADS)
def test_without_gpus_a_spread_model_is_on_the_cpu(device: str) -> None:
    backbone = load_backbone("t5-tiny", "fp32", device)
    if not torch.cuda.is_available():
        assert backbone.device.type == "cpu"
        assert backbone.packs_rows, "as fast as on one device, because it is on one"


def test_several_processes_do_not_spread_a_model() -> None:
    parallel = object.__new__(Parallel)
    with pytest.raises(UserError, match="over the GPUs of one process"):
        parallel.load("t5-tiny", "fp32", "balanced", False)
