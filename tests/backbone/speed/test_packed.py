"""T5 on packed rows: the losses and gradients of transformers' own forward on a padded batch."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from transformers.activations import NewGELUActivation

from softprompts.backbone import Backbone, EncoderDecoder, Text
from softprompts.backbone.speed import graphs, kernels
from softprompts.backbone.speed.layout import (
    MAX_WASTE,
    bucket,
    bucketed_layout,
    group_by_length,
    round_up,
)
from softprompts.backbone.speed.packed import PackedT5, _decoder_layer, _encoder_layer
from softprompts.backbone.speed.row_layout import grouped_layout

from ...models import random_model, random_t5

SIZES = [3, 40, 1, 17, 2, 90, 8, 8]


def rows(backbone: Backbone, sizes: list[int] = SIZES) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [[*rng.integers(5, 400, size).tolist(), 1] for size in sizes]


def padded(
    backbone: EncoderDecoder,
    vectors: Tensor,
    text: Text,
    targets: list[list[int]],
    *weights: Tensor,
) -> tuple[Tensor, Tensor]:
    """The padded way, which every other family takes."""
    return Backbone.padded_gradients(backbone, vectors, text, targets, *weights)


def check(backbone: EncoderDecoder, vectors: Tensor, text: Text, targets: list[list[int]]) -> None:
    weight, z = torch.rand(len(vectors)), torch.rand(len(vectors)) * 0.01
    ours = backbone.gradients(vectors, text, targets, weight, z)
    plain = padded(backbone, vectors, text, targets, weight, z)
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-5, atol=1e-5)
    # by norm, because numbers near zero are rounding errors
    assert float((ours[1] - plain[1]).norm() / plain[1].norm()) < 1e-3


@pytest.fixture(params=["t5", "mt5"])
def backbone(request: pytest.FixtureRequest) -> EncoderDecoder:
    model = random_model(request.param)
    assert isinstance(model, EncoderDecoder)
    assert model.packs_rows
    return model


@pytest.mark.parametrize("place", ["prefix", "suffix"])
@pytest.mark.parametrize("longest", [1, 30], ids=["short targets", "long targets"])
def test_losses_and_gradients_are_those_of_a_padded_batch(
    backbone: EncoderDecoder, place: Any, longest: int
) -> None:
    rng = np.random.default_rng(1)
    targets = [
        [*rng.integers(5, 400, int(rng.integers(1, longest + 1))).tolist(), 1] for _ in SIZES
    ]
    text, vectors = (
        backbone.embed_rows(rows(backbone), place),
        torch.randn(len(SIZES), 20, backbone.hidden),
    )
    check(backbone, vectors, text, targets)
    check(
        backbone,
        vectors,
        text._replace(prompt_lengths=torch.tensor([1, 20, 5, 0, 20, 7, 19, 3])),
        targets,
    )


def test_the_bias_is_constant_beyond_the_table(tiny: EncoderDecoder) -> None:
    """The table ends at T5's own maximum; rows here are several times as long."""
    text = tiny.embed_rows(rows(tiny, [400, 150, 3]))
    check(tiny, torch.randn(3, 100, tiny.hidden), text, [[7, 1], [8, 9, 1], [7, 1]])


def test_a_diverged_row_does_not_affect_others(backbone: EncoderDecoder) -> None:
    text, targets = backbone.embed_rows(rows(backbone)), [[5, 1]] * len(SIZES)
    weight, z = torch.ones(len(SIZES)), torch.zeros(len(SIZES))
    good = torch.randn(len(SIZES), 6, backbone.hidden)
    before = backbone.gradients(good, text, targets, weight, z)
    for ruin in (float("nan"), float("inf"), 1e30):
        bad = good.clone()
        bad[3, 2, 5] = ruin
        after = backbone.gradients(bad, text, targets, weight, z)
        others = [row for row in range(len(SIZES)) if row != 3]
        assert not bool(after[0][3].isfinite())
        torch.testing.assert_close(after[0][others], before[0][others])
        torch.testing.assert_close(after[1][others], before[1][others])


def test_the_registered_attention_is_the_models_own(backbone: EncoderDecoder) -> None:
    """One layer of the encoder: each row alone by transformers, all rows packed by ours."""
    packed = backbone.packed
    assert packed is not None
    text, block = backbone.embed_rows(rows(backbone)), packed.encoder.block[0]
    layout = grouped_layout(text, 0)
    joined = text.embeds.flatten(0, 1)[layout.source][None]
    with torch.no_grad(), packed._packed_attention():
        ours = _encoder_layer(block, joined, packed._bias(layout, joined))[0]
    begin = 0
    for row in layout.rows.tolist():
        size = SIZES[row] + 1
        with torch.no_grad():
            alone = block(text.embeds[row : row + 1, :size])[0][0]
        torch.testing.assert_close(ours[begin : begin + size], alone, rtol=1e-5, atol=1e-5)
        begin += size


@pytest.mark.parametrize("place", ["prefix", "suffix"])
@pytest.mark.parametrize(
    "prompt_lengths", [None, [1, 20, 5, 0, 20, 7, 19, 3]], ids=["one length", "lengths"]
)
@pytest.mark.parametrize("empty", [0, 3])
def test_the_layout_of_recorded_steps(
    tiny: EncoderDecoder, place: Any, prompt_lengths: list[int] | None, empty: int
) -> None:
    """Against a loop over the rows; empty rows come after them and have no positions."""
    text = tiny.embed_rows(rows(tiny), place)._replace(
        prompt_lengths=None if prompt_lengths is None else torch.tensor(prompt_lengths)
    )
    columns_of_step, width, batch = 192, text.mask.shape[1], len(SIZES)
    layout = bucketed_layout(text, 20, columns_of_step, batch + empty)
    source, positions, columns = [], [], []
    for row, size in enumerate(SIZES):
        length, insert_at = (
            20 if prompt_lengths is None else prompt_lengths[row],
            0 if text.insert_at is None else int(text.insert_at[row]),
        )
        tokens = [batch * 20 + row * width + column for column in range(size + 1)]
        begin = len(source)
        source += [
            *tokens[:insert_at],
            *(row * 20 + vector for vector in range(length)),
            *tokens[insert_at:],
        ]
        positions.append(
            [begin + insert_at + vector if vector < length else begin for vector in range(20)]
        )
        columns.append([min(begin + column, len(source) - 1) for column in range(columns_of_step)])
        assert layout.masks[0][row].sum() == len(source) - begin
        assert layout.inverse[begin : len(source)].tolist() == [
            row * columns_of_step + column for column in range(len(source) - begin)
        ]
    assert layout.source.tolist() == source + [0] * (bucket(len(source), tiny.hidden) - len(source))
    assert (
        layout.prompt_positions.tolist(),
        layout.padded.view(-1, columns_of_step)[:batch].tolist(),
    ) == (
        positions,
        columns,
    )
    assert layout.rows.tolist() == list(range(batch + empty))
    assert not layout.masks[0][batch:].any()
    assert 0 <= int(layout.padded.min()) <= int(layout.padded.max()) < len(source)


def by_tiles(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tiles: tuple[Tensor, Tensor],
    scale: float,
    table: Tensor,
) -> Tensor:
    """What the GPU's kernel computes, row by row."""
    output, middle = torch.zeros_like(query), table.shape[1] // 2
    for start, length, inside, *_ in tiles[0].tolist():
        if length and not inside:
            own, at = slice(start, start + length), torch.arange(length)
            scores = (
                query[0, :, own] @ key[0, :, own].transpose(1, 2) * scale
                + table[:, at[None] - at[:, None] + middle]
            )
            output = output.index_copy(2, start + at, (scores.softmax(-1) @ value[0, :, own])[None])
    return output.transpose(1, 2)


@pytest.mark.parametrize("count", [8, 19])
def test_padding_to_a_bucket_changes_nothing(
    backbone: EncoderDecoder, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU's path, but neither compiled nor recorded; 19 rows become 20, 5 target tokens 6."""
    packed = backbone.packed
    assert packed is not None
    sizes = [*SIZES, *SIZES, 30, 4, 60][:count]
    text, vectors = (
        backbone.embed_rows(rows(backbone, sizes)),
        torch.randn(count, 20, backbone.hidden),
    )
    targets = [[5, 6, 7, 8, 1], [9, 1]] + [[5, 1]] * (count - 2)
    arguments = (vectors, text, targets, torch.rand(count), torch.rand(count) * 0.01)
    plain = backbone.gradients(*arguments)
    shapes: list[list[int]] = []

    def run(layout: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        shapes.append([*inputs[0].shape[:2], *inputs[1].shape])
        return packed._run(layout, *inputs)

    monkeypatch.setattr(kernels, "ragged_attention", by_tiles)
    monkeypatch.setattr(PackedT5, "_layers", (_encoder_layer, _decoder_layer))
    monkeypatch.setattr(packed, "_replay", run)
    monkeypatch.setattr(packed, "recorded", True)
    monkeypatch.setattr(packed, "compiled", True)
    padded_to_bucket = backbone.gradients(*arguments)
    tokens = sum(sizes) + 21 * count
    assert shapes == [[1, bucket(tokens, backbone.hidden), {8: 8, 19: 20}[count], 6]]
    torch.testing.assert_close(padded_to_bucket[0], plain[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        padded_to_bucket[1], plain[1], rtol=1e-3, atol=1e-4 * float(plain[1].abs().max())
    )


def test_layers_of_the_decoder_are_compiled_once_for_all_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, again when rows need more columns, and once for targets so long that the encoder's keys
    are computed."""
    backbone = random_t5(d_kv=32)
    packed, compiled = backbone.packed, []
    assert packed is not None

    def compiler(graph: Any, example: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(kernels, "ragged_attention", lambda query, *rest: query.transpose(1, 2))
    monkeypatch.setattr(
        PackedT5, "_layers", (_encoder_layer, torch.compile(_decoder_layer, backend=compiler))
    )
    monkeypatch.setattr(packed, "_replay", packed._run)
    monkeypatch.setattr(packed, "recorded", True)
    monkeypatch.setattr(packed, "compiled", True)
    before = backbone.compile_counts()["compiled"]
    counts = []
    batches = [
        (SIZES, 2),
        ([5] * 3, 1),
        ([70, 3], 6),
        (SIZES[::-1], 3),
        ([150] * 40, 4),
        ([30] * 7, 9),
        ([30] * 9, 40),
        ([9], 20),
    ]
    for sizes, columns in batches:
        text, targets = backbone.embed_rows(rows(backbone, sizes)), [[5] * columns] * len(sizes)
        backbone.gradients(
            torch.randn(len(sizes), 20, backbone.hidden),
            text,
            targets,
            torch.ones(len(sizes)),
            torch.zeros(len(sizes)),
        )
        counts.append(len(compiled))
    assert counts == [1, 1, 1, 1, 2, 3, 3, 3]
    assert backbone.compile_counts()["compiled"] == before + 3, "as the cost of training records"


def test_the_least_recently_used_graph_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        graph = type("Graph", (), {"pool": staticmethod(lambda: None)})

        def __init__(self, step: Any, inputs: Any, *rest: Any) -> None:
            self.step = step

        def __call__(self, inputs: Any) -> Any:
            return self.step(*inputs)

    monkeypatch.setattr(graphs, "_Graph", Fake)
    steps, sizes = graphs.StepGraphs(most=3), []
    for size in (1, 2, 3, 1, 4, 1, 2, 4):
        outputs = steps(lambda tensor: (tensor, tensor + 1), [torch.zeros(size)])
        assert outputs[1].shape == (size,)
        sizes.append([key[1][0] for key in steps.graphs])
    assert sizes[3:] == [[2, 3, 1], [3, 1, 4], [3, 4, 1], [4, 1, 2], [1, 2, 4]]
    assert steps.recorded == 5, "1, 2, 3, 4, and 2 again"
    steps.clear()
    assert not steps.graphs


def test_the_model_is_left_unchanged(backbone: EncoderDecoder) -> None:
    text = backbone.embed_rows(rows(backbone))
    before = backbone.losses(
        torch.zeros(len(SIZES), 2, backbone.hidden), text, [[5, 1]] * len(SIZES)
    ).nll
    backbone.gradients(
        torch.zeros(len(SIZES), 2, backbone.hidden),
        text,
        [[5, 1]] * len(SIZES),
        torch.ones(8),
        torch.zeros(8),
    )
    after = backbone.losses(
        torch.zeros(len(SIZES), 2, backbone.hidden), text, [[5, 1]] * len(SIZES)
    ).nll
    assert torch.equal(before, after)
    assert all("forward" not in vars(part) for part in backbone.model.modules())


def test_groups_and_buckets_waste_little() -> None:
    lengths = sorted(np.random.default_rng(0).integers(5, 300, 500).tolist(), reverse=True)
    groups = group_by_length(lengths)
    assert sum(rows for rows, _ in groups) == 500
    assert sum(rows * columns for rows, columns in groups) < MAX_WASTE * sum(lengths)
    assert len(groups) < 40
    for hidden, count, waste in ((2**25, 16, 1.0625), (8, 8, 1.125)):
        assert len({bucket(tokens, hidden) for tokens in range(4096, 8192)}) <= count + 1
        assert all(
            tokens <= bucket(tokens, hidden) <= tokens * waste + 128
            for tokens in range(1, 70_000, 37)
        )
    assert [round_up(columns, 2) for columns in range(1, 18)] == [
        *(1, 2, 3, 4, 6, 6, 8, 8),
        *(12, 12, 12, 12, 16, 16, 16, 16, 24),
    ]


def test_tanh_gelus_are_fused(backbone: EncoderDecoder) -> None:
    states = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(
        nn.GELU(approximate="tanh")(states), NewGELUActivation()(states), rtol=1e-5, atol=1e-6
    )
    assert not any(isinstance(part, NewGELUActivation) for part in backbone.model.modules())


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns a lot on a GPU
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="compiled layers and recorded steps need a GPU"
)
def test_compiled_and_recorded_steps_give_the_same_results() -> None:
    backbone = random_t5(d_kv=32)
    assert isinstance(backbone, EncoderDecoder)
    backbone.model.to("cuda")
    packed = backbone.packed
    assert isinstance(packed, PackedT5)
    counters.clear()
    for seed, (sizes, columns) in enumerate(
        [(SIZES, 2), ([5] * 3, 3), ([70, 3, 3, 9], 6), (SIZES[::-1], 2), ([200] * 40, 4)]
    ):
        text = backbone.embed_rows(rows(backbone, sizes))
        vectors = torch.randn(
            len(sizes),
            20,
            backbone.hidden,
            device="cuda",
            generator=torch.Generator("cuda").manual_seed(seed),
        )
        targets = [[*[5] * (columns - 1), 1]] * len(sizes)
        arguments = (
            vectors,
            text,
            targets,
            torch.ones(len(sizes), device="cuda"),
            torch.zeros(len(sizes), device="cuda"),
        )
        backbone.accelerate(False)
        plain = backbone.gradients(*arguments)
        backbone.accelerate(compile=True)
        assert packed.compiled
        for _ in range(2):
            fast = backbone.gradients(*arguments)
            torch.testing.assert_close(fast[0], plain[0], rtol=1e-3, atol=1e-3)
            assert float((fast[1] - plain[1]).norm() / plain[1].norm()) < 1e-2
    assert counters["stats"]["unique_graphs"] <= 6, "layers are not compiled for every size"
