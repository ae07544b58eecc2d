"""T5 over rows laid end to end: the same losses and gradients as transformers' own forward over a padded batch."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from softprompts.backbone import Backbone, EncoderDecoder, Text
from softprompts.backbone.speed import kernels, recorded
from softprompts.backbone.speed.layout import FEW, WASTE, bucket, group, lay, lay_wide, rounded
from softprompts.backbone.speed.packed import Packed, _read, _write

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
    """The plain way, which every other family goes."""
    return Backbone.gradients(backbone, vectors, text, targets, *weights)


def check(backbone: EncoderDecoder, vectors: Tensor, text: Text, targets: list[list[int]]) -> None:
    weight, z = torch.rand(len(vectors)), torch.rand(len(vectors)) * 0.01
    ours = backbone.gradients(vectors, text, targets, weight, z)
    plain = padded(backbone, vectors, text, targets, weight, z)
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-5, atol=1e-5)
    assert (
        float((ours[1] - plain[1]).norm() / plain[1].norm()) < 1e-3
    )  # by length: numbers near zero are rounding


@pytest.fixture(params=["t5", "mt5"])
def backbone(request: pytest.FixtureRequest) -> EncoderDecoder:
    made = random_model(request.param)
    assert isinstance(made, EncoderDecoder)
    assert made.packs
    return made


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
        backbone, vectors, text._replace(given=torch.tensor([1, 20, 5, 0, 20, 7, 19, 3])), targets
    )


def test_distances_beyond_the_table_are_told_apart_no_more(tiny: EncoderDecoder) -> None:
    """The table ends at T5's own maximum; rows here are several times as long."""
    text = tiny.embed_rows(rows(tiny, [400, 150, 3]))
    check(tiny, torch.randn(3, 100, tiny.hidden), text, [[7, 1], [8, 9, 1], [7, 1]])


def test_a_row_that_is_no_number_touches_no_other(backbone: EncoderDecoder) -> None:
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
    """One layer of the encoder by itself, each row alone through transformers against all rows end to end through ours."""
    packed = backbone.packed
    assert packed is not None
    text, block = backbone.embed_rows(rows(backbone)), packed.encoder.block[0]
    layout = lay(text, 0)
    joined = text.embeds.flatten(0, 1)[layout.order][None]
    with torch.no_grad(), packed._apart():
        ours = _read(block, joined, packed._sight(layout, joined))[0]
    begin = 0
    for row in layout.rows.tolist():
        size = SIZES[row] + 1
        with torch.no_grad():
            alone = block(text.embeds[row : row + 1, :size])[0][0]
        torch.testing.assert_close(ours[begin : begin + size], alone, rtol=1e-5, atol=1e-5)
        begin += size


@pytest.mark.parametrize("place", ["prefix", "suffix"])
@pytest.mark.parametrize(
    "given", [None, [1, 20, 5, 0, 20, 7, 19, 3]], ids=["one length", "lengths"]
)
@pytest.mark.parametrize("empty", [0, 3])
def test_the_layout_of_recorded_steps_puts_every_row_in_order(
    tiny: EncoderDecoder, place: Any, given: list[int] | None, empty: int
) -> None:
    """What stands at each place, by going through the rows one by one; empty ones come after them and stand nowhere."""
    text = tiny.embed_rows(rows(tiny), place)._replace(
        given=None if given is None else torch.tensor(given)
    )
    room, width, batch = 192, text.mask.shape[1], len(SIZES)
    layout = lay_wide(text, 20, room, batch + empty)
    order, back, columns = [], [], []
    for row, size in enumerate(SIZES):
        own, at = 20 if given is None else given[row], 0 if text.at is None else int(text.at[row])
        words = [batch * 20 + row * width + column for column in range(size + 1)]
        begin = len(order)
        order += [*words[:at], *(row * 20 + vector for vector in range(own)), *words[at:]]
        back.append([begin + at + vector if vector < own else begin for vector in range(20)])
        columns.append([min(begin + column, len(order) - 1) for column in range(room)])
        assert layout.masks[0][row].sum() == len(order) - begin
        assert layout.inverse[begin : len(order)].tolist() == [
            row * room + column for column in range(len(order) - begin)
        ]
    assert layout.order.tolist() == order + [0] * (bucket(len(order), FEW) - len(order))
    assert (layout.back.tolist(), layout.padded.view(-1, room)[:batch].tolist()) == (back, columns)
    assert layout.rows.tolist() == list(range(batch + empty))
    assert not layout.masks[0][batch:].any()
    assert 0 <= int(layout.padded.min()) <= int(layout.padded.max()) < len(order)


def by_tiles(
    query: Tensor, key: Tensor, value: Tensor, table: Tensor, tiles: Tensor, scale: float
) -> Tensor:
    """What the GPU's kernel computes, row by row."""
    found, middle = torch.zeros_like(query), table.shape[1] // 2
    for start, length, inside in tiles.tolist():
        if length and not inside:
            own, at = slice(start, start + length), torch.arange(length)
            scores = (
                query[0, :, own] @ key[0, :, own].transpose(1, 2) * scale
                + table[:, at[None] - at[:, None] + middle]
            )
            found = found.index_copy(2, start + at, (scores.softmax(-1) @ value[0, :, own])[None])
    return found.transpose(1, 2)


@pytest.mark.parametrize("many", [8, 19])
def test_rows_and_columns_that_fill_a_recorded_step_change_nothing(
    backbone: EncoderDecoder, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of a GPU, but neither compiled nor recorded; 19 rows come to 20, and targets of 5 tokens to 6."""
    packed = backbone.packed
    assert packed is not None
    sizes = [*SIZES, *SIZES, 30, 4, 60][:many]
    text, vectors = (
        backbone.embed_rows(rows(backbone, sizes)),
        torch.randn(many, 20, backbone.hidden),
    )
    targets = [[5, 6, 7, 8, 1], [9, 1]] + [[5, 1]] * (many - 2)
    asked = (vectors, text, targets, torch.rand(many), torch.rand(many) * 0.01)
    plain = backbone.gradients(*asked)
    shapes: list[list[int]] = []

    def run(layout: Any, *given: Tensor) -> tuple[Tensor, Tensor]:
        shapes.append([*given[0].shape[:2], *given[1].shape])
        return packed._run(layout, *given)

    monkeypatch.setattr(kernels, "ragged_attention", by_tiles)
    monkeypatch.setattr(Packed, "_layers", (_read, _write))
    monkeypatch.setattr(packed, "_replayed", run)
    monkeypatch.setattr(packed, "fast", True)
    filled = backbone.gradients(*asked)
    count = sum(sizes) + 21 * many
    assert shapes == [[1, bucket(count, FEW), {8: 8, 19: 20}[many], 6]]
    torch.testing.assert_close(filled[0], plain[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        filled[1], plain[1], rtol=1e-3, atol=1e-4 * float(plain[1].abs().max())
    )


def test_layers_of_the_decoder_are_compiled_once_for_all_sizes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once, again when rows outgrow their room, and once for targets so long that the encoder's keys are made."""
    backbone = random_t5(d_kv=32)
    packed, compiled = backbone.packed, []
    assert packed is not None

    def compiler(graph: Any, example: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    torch._dynamo.reset()
    monkeypatch.setattr(kernels, "ragged_attention", lambda query, *rest: query.transpose(1, 2))
    monkeypatch.setattr(Packed, "_layers", (_read, torch.compile(_write, backend=compiler)))
    monkeypatch.setattr(packed, "_replayed", packed._run)
    monkeypatch.setattr(packed, "fast", True)
    before = backbone.effort()["compiled"]
    found = []
    many = [
        (SIZES, 2),
        ([5] * 3, 1),
        ([70, 3], 6),
        (SIZES[::-1], 3),
        ([150] * 40, 4),
        ([30] * 7, 9),
        ([30] * 9, 40),
        ([9], 20),
    ]
    for sizes, columns in many:
        text, targets = backbone.embed_rows(rows(backbone, sizes)), [[5] * columns] * len(sizes)
        backbone.gradients(
            torch.randn(len(sizes), 20, backbone.hidden),
            text,
            targets,
            torch.ones(len(sizes)),
            torch.zeros(len(sizes)),
        )
        found.append(len(compiled))
    assert found == [1, 1, 1, 1, 2, 3, 3, 3]
    assert backbone.effort()["compiled"] == before + 3, "as the cost of training tells"


def test_the_last_steps_that_were_used_stay_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        graph = type("Graph", (), {"pool": staticmethod(lambda: None)})

        def __init__(self, step: Any, given: Any, *rest: Any) -> None:
            self.step = step

        def __call__(self, given: Any) -> Any:
            return self.step(*given)

    monkeypatch.setattr(recorded, "_Graph", Fake)
    monkeypatch.setattr(recorded, "GRAPHS", 3)
    steps, sizes = recorded.Recorded(), []
    for size in (1, 2, 3, 1, 4, 1, 2, 4):
        made = steps(lambda held: (held, held + 1), [torch.zeros(size)])
        assert made[1].shape == (size,)
        sizes.append([key[0] for key in steps.graphs])
    assert sizes[3:] == [[2, 3, 1], [3, 1, 4], [3, 4, 1], [4, 1, 2], [1, 2, 4]]
    assert steps.made == 5, "1, 2, 3, 4, and 2 again"
    steps.forget()
    assert not steps.graphs


def test_nothing_of_the_model_stays_changed(backbone: EncoderDecoder) -> None:
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
    groups = group(lengths)
    assert sum(many for many, _ in groups) == 500
    assert sum(many * columns for many, columns in groups) < WASTE * sum(lengths)
    assert len(groups) < 40
    for many, waste in ((16, 1.0625), (8, 1.125)):
        assert len({bucket(tokens, many) for tokens in range(4096, 8192)}) <= many + 1
        assert all(
            tokens <= bucket(tokens, many) <= tokens * waste + 128
            for tokens in range(1, 70_000, 37)
        )
    assert [rounded(columns, 2) for columns in range(1, 18)] == [
        1,
        2,
        3,
        4,
        6,
        6,
        8,
        8,
        12,
        12,
        12,
        12,
        16,
        16,
        16,
        16,
        24,
    ]


def test_the_tanh_form_of_gelu_is_one_operation(backbone: EncoderDecoder) -> None:
    from transformers.activations import NewGELUActivation

    states = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(
        nn.GELU(approximate="tanh")(states), NewGELUActivation()(states), rtol=1e-5, atol=1e-6
    )
    assert not any(isinstance(part, NewGELUActivation) for part in backbone.model.modules())


@pytest.mark.filterwarnings("ignore")  # a GPU's compiler warns of much
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="compiled layers and recorded steps need a GPU"
)
def test_compiled_and_recorded_steps_give_the_same() -> None:
    backbone = random_t5(d_kv=32)
    assert isinstance(backbone, EncoderDecoder)
    backbone.model.to("cuda")
    packed = backbone.packed
    assert isinstance(packed, Packed)
    from torch._dynamo.utils import counters

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
        asked = (
            vectors,
            text,
            targets,
            torch.ones(len(sizes), device="cuda"),
            torch.zeros(len(sizes), device="cuda"),
        )
        backbone.hurry(False)
        plain = backbone.gradients(*asked)
        backbone.hurry()
        assert packed.fast
        for _ in range(2):
            fast = backbone.gradients(*asked)
            torch.testing.assert_close(fast[0], plain[0], rtol=1e-3, atol=1e-3)
            assert float((fast[1] - plain[1]).norm() / plain[1].norm()) < 1e-2
    assert counters["stats"]["unique_graphs"] <= 6, (
        "sizes that come and go are not compiled one by one"
    )
