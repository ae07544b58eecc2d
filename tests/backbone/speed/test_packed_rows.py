"""Decoder-only and encoder-only models on packed rows: the losses and gradients of transformers'
own forward on a padded batch, for every architecture that is packed."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor
from torch._dynamo.utils import counters

from softprompts.backbone import Backbone, Causal, Masked, Text
from softprompts.backbone.speed import kernels
from softprompts.backbone.speed.packed_rows import (
    CAUSAL_TYPES,
    COMPOSITE_TYPES,
    MASKED_TYPES,
    PackedRows,
)
from softprompts.backbone.speed.row_layout import row_layout
from softprompts.config import Choice, heads
from softprompts.prompt.head import LinearHead

from ...models import byte_tokenizer, random_model, word_tokenizer

SIZES = [3, 40, 1, 17, 2, 90, 8, 8]
OWNERS = [0, 0, 1, 0, 2, 1, 0, 2]
PROMPT_LENGTHS = [7, 7, 5, 7, 3, 5, 7, 3]
COMMON = {"vocab_size": 400, "pad_token_id": 0, "initializer_range": 0.3}
WIDTHS = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
GROUPED = {"num_key_value_heads": 2}
SPECIAL: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 32},
    "mistral": {"sliding_window": 20},
    "qwen2": {"sliding_window": 20, "use_sliding_window": True, "max_window_layers": 1},
    "qwen3": {"head_dim": 24},
    "gemma": {"head_dim": 32},
    "gemma2": {
        "head_dim": 32,
        "sliding_window": 20,
        "attn_logit_softcapping": 2.0,
        "attn_implementation": "eager",  # the fused one caps no scores before transformers 5.20
    },
    "gemma3_text": {
        "head_dim": 32,
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "smollm3": {"no_rope_layers": [1, 0, 1]},
    "distilbert": {"dim": 64, "hidden_dim": 96, "n_layers": 3, "n_heads": 4},
    "modernbert": {"local_attention": 16, "global_attn_every_n_layers": 2},
    "electra": {"embedding_size": 32},
    "granite": {"attention_multiplier": 0.25},
    "bert": {"hidden_act": "gelu"},
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


@cache
def random_backbone(kind: str) -> Backbone:
    """A small random model of this type, with whatever makes its attention special."""
    torch.manual_seed(0)
    causal = kind not in MASKED_TYPES
    sizes = WIDTHS | (GROUPED if causal else {})
    text_kind = f"{kind}_text" if kind in COMPOSITE_TYPES else kind
    special = {"bos_token_id": 1, "eos_token_id": 2} | SPECIAL.get(text_kind, {})
    config = transformers.AutoConfig.for_model(text_kind, **(COMMON | sizes | special))
    if kind in COMPOSITE_TYPES:
        config = transformers.AutoConfig.for_model(
            kind, text_config=config.to_dict(), vision_config=VISION, mm_tokens_per_image=1
        )
    if causal:
        model = transformers.AutoModelForCausalLM.from_config(config)
        return Causal(model, byte_tokenizer(), f"random-{kind}")
    model = transformers.AutoModelForMaskedLM.from_config(config)
    return Masked(model, word_tokenizer(), f"random-{kind}")


def inputs(backbone: Backbone, seed: int = 0, sizes: list[int] = SIZES) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    rows = [draw.integers(5, 90, size).tolist() for size in sizes]
    mask = backbone.tokenizer.mask_token_id
    return rows if backbone.generates else [[*row, mask, 6] for row in rows]


def answers(count: int = len(SIZES), longest: int = 4) -> list[list[int]]:
    draw = np.random.default_rng(1)
    return [draw.integers(5, 90, int(draw.integers(1, longest + 1))).tolist() for _ in range(count)]


def check(
    backbone: Backbone,
    vectors: Tensor,
    text: Text,
    targets: list[list[int]],
    trained: list[LinearHead] | None = None,
) -> None:
    """Packed rows against the padded way, which every other model takes."""
    device, results = vectors.device, []
    draw = torch.Generator().manual_seed(2)
    weight, z = (torch.rand(len(targets), generator=draw).to(device) for _ in range(2))
    for way in (type(backbone).gradients, Backbone.padded_gradients):
        nll, gradient = way(backbone, vectors, text, targets, weight, z * 0.01)
        of_heads = [part.grad for head in trained or [] for part in head.parameters()]
        results.append([nll, gradient, *of_heads])
        for head in trained or []:
            head.zero_grad()
    for ours, plain in zip(*results, strict=True):
        # by norm, because numbers near zero are rounding errors; beyond a window, all are zero
        assert float((ours - plain).norm()) <= 1e-4 * float(plain.norm())


@pytest.mark.parametrize("kind", sorted(CAUSAL_TYPES | COMPOSITE_TYPES))
@pytest.mark.parametrize("place", ["prefix", "suffix"])
def test_decoder_only_models(kind: str, place: Any) -> None:
    backbone = random_backbone(kind)
    assert backbone.packs_rows
    text, targets = backbone.embed_rows(inputs(backbone), place), answers()
    own = torch.randn(len(SIZES), 7, backbone.hidden) * backbone.unit
    check(backbone, own, text, targets)
    mixed = text._replace(prompt_lengths=torch.tensor(PROMPT_LENGTHS))
    check(backbone, own, mixed, targets)
    if place == "prefix":
        check(backbone, own[:3], mixed._replace(prompt_of=torch.tensor(OWNERS)), targets)
        shared = text._replace(prompt_of=torch.zeros(len(SIZES), dtype=torch.long))
        check(backbone, own[:1], shared, targets)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "mistral"])
def test_text_before_a_prompt_is_read_without_gradients(
    kind: str, recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass with gradients has the prompts, what follows them, and the targets."""
    backbone = random_backbone(kind)
    assert isinstance(backbone.packed, PackedRows)
    text = backbone.embed_rows(inputs(backbone))
    rest = [min(2, size - 1) for size in SIZES]  # special tokens after the prompt
    text = text._replace(insert_at=torch.tensor(SIZES) - torch.tensor(rest))
    targets, vectors = answers(), torch.randn(len(SIZES), 5, backbone.hidden) * backbone.unit
    lengths = [1, 5, 2, 5, 3, 4, 5, 1]
    sizes, run = list[int](), PackedRows._run

    def counted(packed: PackedRows, rows: Any, batch: Any, *rest: Any) -> Any:
        sizes.append(batch.embeds.shape[1])
        return run(packed, rows, batch, *rest)

    monkeypatch.setattr(PackedRows, "_run", counted)
    mixed = text._replace(prompt_lengths=torch.tensor(lengths))
    with backbone.training_mode(recompute=recompute):
        check(backbone, vectors, mixed, targets)
        few = mixed._replace(insert_at=torch.ones(len(SIZES), dtype=torch.long))
        check(backbone, vectors, few, targets)
    last = sum(len(target) - 1 for target in targets)
    assert sizes == [
        sum(lengths) + sum(rest) + last,
        sum(lengths) + sum(SIZES) + last,  # too little text comes first
    ]
    without = text._replace(prompt_lengths=torch.tensor([0, *lengths[1:]]))
    check(backbone, vectors, without, targets)  # a row's text predicts its target itself
    assert sizes[2] == sizes[1] - lengths[0]


@pytest.mark.parametrize("kind", sorted(MASKED_TYPES))
@pytest.mark.parametrize("place", ["prefix", "after-bos", "suffix"])
def test_encoder_only_models(kind: str, place: Any) -> None:
    backbone = random_backbone(kind)
    assert backbone.packs_rows
    text = backbone.embed_rows(inputs(backbone), place)
    vectors = torch.randn(len(SIZES), 7, backbone.hidden) * backbone.unit
    check(backbone, vectors, text, answers(longest=1))
    mixed = text._replace(prompt_lengths=torch.tensor(PROMPT_LENGTHS))
    check(backbone, vectors, mixed, answers(longest=1))


def linear_head(backbone: Backbone, classes: int, pool: str, device: str = "cpu") -> LinearHead:
    draw = torch.Generator().manual_seed(classes)
    head = heads.make(Choice("linear", {"pool": pool})).build(classes, backbone.feature_size, draw)
    torch.nn.init.normal_(head.weight)
    return head.to(device)


@pytest.mark.parametrize("kind", ["bert", "roberta", "minilm"])
@pytest.mark.parametrize("pool", ["mean", "first"])
def test_heads(kind: str, pool: str) -> None:
    """One head, and one for each of two runs; a head's gradient adds to what is there."""
    backbone = random_model(kind)
    assert isinstance(backbone, Masked)
    vectors = torch.randn(len(SIZES), 7, backbone.hidden) * backbone.unit
    text = backbone.embed_rows(inputs(backbone))
    both = [linear_head(backbone, classes, pool) for classes in (3, 2)]
    alone = backbone.with_head(both[0], ["a", "b", "c"])
    check(alone, vectors, text, [[row % 3] for row in range(len(SIZES))], both[:1])
    targets = [[row % 2] for row in range(len(SIZES))]
    check(alone.with_heads(both, [5, 3]), vectors, text, targets, both)
    weight, z = torch.ones(len(SIZES)), torch.zeros(len(SIZES))
    for _ in range(2):
        alone.gradients(vectors, text, targets, weight, z)
    twice = both[0].weight.grad
    both[0].zero_grad()
    alone.gradients(vectors, text, targets, weight, z)
    torch.testing.assert_close(twice, 2 * both[0].weight.grad)


def test_models_that_cannot_be_packed_are_padded() -> None:
    backbone = random_model("deberta")
    assert not backbone.packs_rows
    assert backbone.packed is None


def test_the_kernels_fit_the_heads_of_a_text_model_beside_a_vision_tower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernels, "AVAILABLE", True)
    backbone = random_backbone("gemma3")
    assert not hasattr(backbone.model.config, "head_dim")
    assert type(backbone)._has_kernels.func(backbone)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_a_diverged_prompt_does_not_affect_others(kind: str) -> None:
    backbone = random_backbone(kind)
    text, targets = backbone.embed_rows(inputs(backbone)), answers(longest=1)
    weight, z = torch.ones(len(SIZES)), torch.zeros(len(SIZES))
    good = torch.randn(3, 6, backbone.hidden) * backbone.unit
    owners = torch.tensor(OWNERS)
    if kind == "llama":
        text = text._replace(prompt_of=owners)
    expand = kind == "bert"
    before = backbone.gradients(good[owners] if expand else good, text, targets, weight, z)
    for ruin in (float("nan"), float("inf"), 1e30):
        bad = good.clone()
        bad[1, 2, 5] = ruin
        after = backbone.gradients(bad[owners] if expand else bad, text, targets, weight, z)
        ruined = owners == 1
        assert not bool(after[0][ruined].isfinite().any())
        torch.testing.assert_close(after[0][~ruined], before[0][~ruined])
        fine = ~ruined if expand else torch.tensor([True, False, True])
        torch.testing.assert_close(after[1][fine], before[1][fine])


def test_a_prompt_is_read_once() -> None:
    """P + B T tokens, where each row with its own prompt would make B (P + T)."""
    backbone = random_backbone("llama")
    text = backbone.embed_rows(inputs(backbone))
    once = text._replace(prompt_of=torch.zeros(len(SIZES), dtype=torch.long))
    targets = [2] * len(SIZES)
    tokens = sum(SIZES) + len(SIZES)  # a target's last token is not read
    assert len(row_layout(once, (1, 20), True, targets, 2).source) == 20 + tokens
    assert len(row_layout(text, (8, 20), True, targets, 2).source) == 20 * 8 + tokens


@pytest.mark.parametrize("kind", ["llama", "gemma3", "modernbert"])
def test_the_model_is_left_unchanged(kind: str) -> None:
    backbone = random_backbone(kind)
    configs = [module.config for module in backbone.model.modules() if hasattr(module, "config")]
    implementations = [config._attn_implementation for config in configs]
    text = backbone.embed_rows(inputs(backbone))
    backbone.gradients(
        torch.zeros(len(SIZES), 2, backbone.hidden),
        text,
        answers(longest=1),
        torch.ones(len(SIZES)),
        torch.zeros(len(SIZES)),
    )
    assert [config._attn_implementation for config in configs] == implementations
    assert all("forward" not in vars(part) for part in backbone.model.modules())


# -- on a GPU --------------------------------------------------------------------------------------

gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or not kernels.AVAILABLE, reason="needs a GPU and Triton"
)
BATCHES = [SIZES, [5] * 3, [70, 3, 3, 9], SIZES[::-1], [200] * 8, SIZES]


@gpu
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns a lot on a GPU
@pytest.mark.parametrize("kind", sorted(CAUSAL_TYPES | COMPOSITE_TYPES | MASKED_TYPES))
@pytest.mark.parametrize("compiled", [False, True], ids=["recorded", "compiled"])
def test_recorded_and_compiled_steps(kind: str, compiled: bool) -> None:
    backbone = random_backbone(kind)
    backbone.model.to("cuda")
    packed = backbone.packed
    assert isinstance(packed, PackedRows)
    torch._dynamo.reset()
    counters.clear()
    try:
        backbone.accelerate(compile=compiled)
        assert packed.recorded
        for seed, sizes in enumerate(BATCHES):
            text = backbone.embed_rows(inputs(backbone, seed, sizes))
            owners = torch.arange(len(sizes)) % 2
            vectors = torch.randn(len(sizes), 20, backbone.hidden) * backbone.unit
            if backbone.generates:
                text = text._replace(prompt_of=owners)
                vectors = vectors[:2]
            targets = answers(len(sizes), 3 if backbone.generates else 1)
            check(backbone, vectors.cuda(), text, targets)
        if compiled:
            assert counters["stats"]["unique_graphs"] <= 6, "not compiled for every size"
    finally:
        backbone.accelerate(False)
        backbone.free_memory()
        backbone.model.to("cpu")


@gpu
@pytest.mark.parametrize("pool", ["mean", "first"])
def test_recorded_heads(pool: str) -> None:
    """Recorded steps use the heads' present weights, and tell apart how rows are shared out."""
    backbone = random_backbone("bert")
    backbone.model.to("cuda")
    both = [linear_head(backbone, classes, pool, "cuda") for classes in (3, 2)]
    try:
        backbone.accelerate()
        combined = backbone.with_head(both[0], ["a", "b", "c"])
        vectors = (torch.randn(len(SIZES), 7, backbone.hidden) * backbone.unit).cuda()
        text = backbone.embed_rows(inputs(backbone))
        targets = [[row % 2] for row in range(len(SIZES))]
        for counts in ([5, 3], [2, 6], [5, 3]):
            check(combined.with_heads(both, counts), vectors, text, targets, both)
            torch.nn.init.normal_(both[0].weight)
    finally:
        backbone.accelerate(False)
        backbone.free_memory()
        backbone.model.to("cpu")
