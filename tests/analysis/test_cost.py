"""What methods cost: the formula against torch's own counter, and against the papers' tables."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import softprompts
from softprompts.analysis.cost import Cost, Shape, kept_activations, prompt_flops
from softprompts.analysis.flops import Architecture
from softprompts.config import run_config
from softprompts.errors import UserError
from softprompts.prompt.prompt import empty_prompt

from ..models import random_model

ROWS, PROMPT, TEXT, TARGET = 3, 5, 11, 4
LESTER = {
    "t5-small": {
        1: (512, 76_961_664, 0.00067),
        5: (2_560, 76_963_712, 0.00333),
        20: (10_240, 76_971_392, 0.01330),  # printed: 10,420 and 76,971,572
        50: (25_600, 76_986_752, 0.03325),
        100: (51_200, 77_012_352, 0.06648),
        150: (76_800, 77_037_952, 0.09969),
    },
    "t5-base": {
        1: (768, 247_578_624, 0.00031),
        5: (3_840, 247_581_696, 0.00155),
        20: (15_360, 247_593_216, 0.00620),
        50: (38_400, 247_616_256, 0.01551),
        100: (76_800, 247_654_656, 0.03101),
        150: (115_200, 247_693_056, 0.04651),
    },
    "t5-large": {
        1: (1_024, 783_151_104, 0.00013),
        5: (5_120, 783_155_200, 0.00065),
        20: (20_480, 783_170_560, 0.00262),
        50: (51_200, 783_201_280, 0.00654),
        100: (102_400, 783_252_480, 0.01307),  # printed: 0.01907
        150: (153_600, 783_303_680, 0.01961),
    },
    "t5-xl": {
        1: (2_048, 2_849_759_232, 0.00007),
        5: (10_240, 2_849_767_424, 0.00036),
        20: (40_960, 2_849_798_144, 0.00143),  # the share is 0.001437
        50: (102_400, 2_849_859_584, 0.00359),
        100: (204_800, 2_849_961_984, 0.00718),  # the share is 0.007186
        150: (307_200, 2_850_064_384, 0.01078),
    },
    "t5-xxl": {
        1: (4_096, 11_135_336_448, 0.00004),
        5: (20_480, 11_135_352_832, 0.00018),
        20: (81_920, 11_135_414_272, 0.00074),
        50: (204_800, 11_135_537_152, 0.00184),  # printed: 11,137,380,352
        100: (409_600, 11_135_741_952, 0.00368),
        150: (614_400, 11_135_946_752, 0.00552),
    },
}
"""Lester 2021, Table 4: trained and all parameters, and the first in percent of the second."""


def counted(call: Any) -> tuple[int, Any]:
    with FlopCounterMode(display=False) as counter:
        result = call()
    return counter.get_total_flops(), result


@pytest.mark.parametrize("trains_model", [False, True])
@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama", "bert", "roberta"])
def test_the_formula_is_what_torch_counts_in_a_training_step(kind: str, trains_model: bool) -> None:
    backbone = random_model(kind)
    backbone.model.set_attn_implementation("eager")
    if trains_model:
        backbone.unfreeze()
    architecture = Architecture.of(backbone.model, backbone.family)
    length = 0 if trains_model else PROMPT
    prompt = torch.randn(ROWS, length, backbone.hidden, requires_grad=not trains_model)
    target = TARGET if backbone.generates else 1
    ids = [[*range(10, 10 + TEXT)]] * ROWS
    if not backbone.generates:
        ids = [[*row[:-1], backbone.tokenizer.mask_token_id] for row in ids]
    targets = [[*range(20, 20 + target)]] * ROWS
    forward, losses = counted(
        lambda: backbone.losses(prompt, backbone.embed_rows(ids), targets).nll.sum()
    )
    backward, _ = counted(losses.backward)
    assert forward == ROWS * architecture.forward(length + TEXT, target).total
    assert forward + backward == ROWS * architecture.step(length + TEXT, target, trains_model)


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama"])
def test_the_formula_is_what_torch_counts_in_an_answer(kind: str) -> None:
    backbone = random_model(kind)
    backbone.model.set_attn_implementation("eager")
    architecture = Architecture.of(backbone.model, backbone.family)
    prompt = torch.randn(1, PROMPT, backbone.hidden)
    text = backbone.embed_rows([[*range(10, 10 + TEXT)]])
    total, ids = counted(lambda: backbone.generate(prompt, text, TARGET))
    assert ids.shape[1] == TARGET, "or the model stopped earlier"
    assert total == architecture.answer(PROMPT + TEXT, TARGET).total


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_formula_is_what_torch_counts_when_a_mask_is_filled(kind: str) -> None:
    backbone = random_model(kind)
    backbone.model.set_attn_implementation("eager")
    architecture = Architecture.of(backbone.model, backbone.family)
    prompt = torch.randn(1, PROMPT, backbone.hidden)
    ids = [*range(10, 9 + TEXT), backbone.tokenizer.mask_token_id]
    text, labels = backbone.embed_rows([ids]), [[[20], [21], [22]]]
    total, scores = counted(lambda: backbone.scores(prompt, text, labels))
    assert scores.shape == (1, 3)
    assert total == architecture.answer(PROMPT + TEXT, 1).total


@pytest.mark.parametrize(
    ("preset", "prompt"),
    [
        ("prompt-tuning", {}),
        ("smop", {}),
        ("mixture", {"length": 3}),
        ("residual", {"shape": {"depth": 2}}),
        ("residual", {"shape": {"shared": False}}),
        ("p-tuning", {}),
        ("smop", {"route": "stochastic"}),
    ],
)
def test_the_formula_is_what_torch_counts_in_a_prompt(preset: str, prompt: dict[str, Any]) -> None:
    config = run_config({"preset": preset, "prompt": prompt}).prompt
    module = empty_prompt(config, 32).train()
    embeds, mask = torch.randn(ROWS, TEXT, 32), torch.ones(ROWS, TEXT)
    rng = torch.Generator().manual_seed(0)
    forward, vectors = counted(lambda: module(embeds, mask, rng))
    backward, _ = counted(vectors.square().sum().backward)
    per_row, per_step = prompt_flops(module, training=True)
    assert forward + backward == ROWS * per_row + per_step
    folded = module.fold()
    assert counted(lambda: folded(embeds, mask))[0] == ROWS * prompt_flops(module)[0]


def test_lesters_table_of_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softprompts.analysis.cost.kept_activations", lambda *_: 0)  # for time
    lengths = list(LESTER["t5-base"])
    settings: dict[str, Any] = {"preset": "prompt-tuning", "prompt": {"length": lengths}}
    rows = softprompts.cost(list(LESTER), text=1, target=1, batch_size=1, **settings)
    found = {(row.model, row.length): row for row in rows}
    assert len(found) == 30
    for model, table in LESTER.items():
        for length, (trained, everything, percent) in table.items():
            row = found[model, length]
            assert (row.trained, row.parameters + row.trained) == (trained, everything)
            assert row.percent == pytest.approx(percent, abs=1.1e-5), "rounded or cut off"
            assert row.stored == trained


def test_smops_table_of_costs() -> None:
    settings: dict[str, Any] = {"text": 256, "batch_size": 1}
    base, large = (
        softprompts.cost(model, preset=presets, **settings)
        + softprompts.cost(model, preset="prompt-tuning", prompt={"length": lengths}, **settings)
        for model, presets, lengths in (
            ("t5-v1.0-base", "smop", [20, 100]),
            ("t5-v1.0-large", "smop,model-tuning", [5, 20, 100]),
        )
    )

    def saved(rows: list[Cost], name: str) -> float:
        smop, *_, longest = rows
        return 100 * (1 - float(getattr(smop, name)) / float(getattr(longest, name)))

    smop, full, five, twenty, hundred = large
    assert (smop.trained, twenty.trained) == (24_576, 20_480), "the paper's 20 % more parameters"
    assert (base[0].trained, base[1].trained) == (18_432, 15_360)
    assert saved(large, "inference_flops") == pytest.approx(27.2, abs=0.5)
    assert saved(base, "inference_flops") == pytest.approx(27.2, abs=1.0)
    assert saved(large, "activations") > saved(large, "inference_flops"), "attention is quadratic"
    # full fine-tuning needs the fewest operations for an answer, SMoP the fewest on top
    order = [full, five, smop, twenty, hundred]
    flops = [row.inference_flops for row in order]
    assert flops == sorted(flops)
    assert full.stored == full.parameters


@pytest.mark.parametrize(("batch", "percent"), [(8, 20.3), (16, 25.2), (32, 28.6)])
def test_the_memory_that_smop_saves_grows_with_the_batch(batch: int, percent: float) -> None:
    """The numbers in docs/cost.md, at T5-large's width and 256 text tokens."""
    settings: dict[str, Any] = {"text": 256, "batch_size": batch}
    smop, plain = (
        softprompts.cost("t5-v1.0-large", **method, **settings)[0]
        for method in ({"preset": "smop"}, {"preset": "prompt-tuning", "prompt": {"length": 100}})
    )
    assert 100 * (1 - smop.memory / plain.memory) == pytest.approx(percent, abs=0.05)


@pytest.mark.parametrize("kind", ["t5", "llama", "bert"])
@pytest.mark.parametrize("trains_model", [False, True])
def test_activations_are_those_that_autograd_keeps(
    kind: str, trains_model: bool, tmp_path: Path
) -> None:
    backbone = random_model(kind)
    backbone.model.save_pretrained(tmp_path)
    shape = Shape.load(str(tmp_path))
    real = dataclasses.replace(shape, backbone=backbone)
    backbone.model.set_attn_implementation("eager")
    model, kept = backbone.model.requires_grad_(trains_model), dict[int, int]()
    own = {part.untyped_storage().data_ptr() for part in (*model.parameters(), *model.buffers())}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = real.forward(2, 9, 3, torch.device("cpu"))
    assert output is not None
    assert sum(kept.values()) == kept_activations(shape, 2, 9, 3, trains_model)


@pytest.mark.parametrize("name", ["t5-small", "t5-v1.0-small", "llama-135m", "modernbert-base"])
def test_the_formula_fits_the_known_shapes(name: str) -> None:
    Shape.load(name).check_formula()


def test_a_model_that_the_formula_does_not_fit_is_refused(tmp_path: Path) -> None:
    random_model("deberta").model.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"The formula does not fit .* deberta-v2"):
        softprompts.cost(str(tmp_path), preset="smop")


def test_weights_in_fewer_bits_and_a_linear_head() -> None:
    fp32, int4 = (
        softprompts.cost("bert-base", preset="residual-bert", dtype=dtype, classes=3)[0]
        for dtype in ("fp32", "int4")
    )
    assert fp32.weights == 4 * fp32.parameters
    assert fp32.weights / 8 < int4.weights < fp32.weights / 2, "the embeddings stay in bf16"
    assert int4.activations < fp32.activations
    assert fp32.stored == 10 * 768 + 3 * 769
    assert fp32.trained > fp32.stored, "the network folds away"
    with pytest.raises(UserError, match="takes at most 512 tokens, and a row has 610"):
        softprompts.cost("bert-base", preset="residual-bert", text=600)


def test_a_step_is_timed_on_request() -> None:
    settings: dict[str, Any] = {"preset": "smop", "text": 4, "batch_size": 2, "device": "cpu"}
    (row,) = softprompts.cost("t5-tiny", measure=True, **settings)
    assert row.step is not None
    assert 0 < row.step["p10"] <= row.step["median"] <= row.step["p90"]
    assert row.plain()["memory"] == row.memory > row.weights
