"""The GPU's attention against a plain reference: on a GPU if there is one, and in Triton's
interpreter if Triton is installed.

Run as a program, this file is what the interpreter's test runs in its row process.
"""

import importlib
import importlib.util
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from softprompts.backbone.batch import Text
from softprompts.backbone.speed import kernels, triton_attention
from softprompts.backbone.speed.row_layout import row_layout

LENGTHS = [1, 5, 63, 64, 65, 215, 356]
gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or not kernels.AVAILABLE, reason="needs a GPU and Triton"
)


class Case:
    """Packed queries, keys, values and an output gradient; `tail` empty positions at the end.

    `lengths` are the queries of each row; each has as many keys, after those of its `prefix`.
    """

    def __init__(
        self,
        lengths: list[int],
        heads: int,
        size: int,
        dtype: torch.dtype,
        device: str,
        tail=37,
        seed=0,
        biased: torch.dtype | None = torch.float32,
        prefix: list[int] | None = None,
        key_heads: int | None = None,
        causal=False,
        window: int | None = None,
        softcap: float | None = None,
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.lengths, self.scale = lengths, 0.3
        prefix = prefix or [0] * len(lengths)
        self.keys = [sum(pair) for pair in zip(lengths, prefix, strict=True)]
        self.causal, self.window, self.softcap = causal, window, softcap
        self.heads, self.size, self.key_heads = heads, size, key_heads or heads
        positions = [sum(counts) + tail for counts in (lengths, self.keys, self.keys)]
        shapes = list(zip(positions, (heads, self.key_heads, self.key_heads), strict=True))
        self.shapes = [(count, own, size) for count, own in shapes]
        self.parts = [
            torch.randn(1, count, own * size, generator=draw).to(device, dtype)
            for count, own in shapes
        ]
        self.positions = positions[0]
        self.gradient = torch.randn(1, self.positions, heads, size, generator=draw).to(
            device, dtype
        )
        self.narrow, self.table = torch.zeros(heads, 2 * 128 + 1, device=device), None
        if biased is not None:
            self.narrow = torch.randn(heads, 2 * 128 + 1, generator=draw).to(device, biased).float()
            self.table = kernels.extend_table(self.narrow, max(lengths)).to(biased)
        sides = [(lengths, self.keys, positions[0]), (self.keys, lengths, positions[1])]
        self.tiles = [
            torch.from_numpy(kernels.tiles(np.array(own), count, np.array(others))).to(device)
            for own, others, count in sides
        ]

    def computed(self, attend=kernels.ragged_attention) -> list[Tensor]:
        """The output [N, heads * D], and the gradients of query, key and value."""
        leaves = [part.detach().requires_grad_() for part in self.parts]
        split = [
            leaf.view(1, *shape).transpose(1, 2)
            for leaf, shape in zip(leaves, self.shapes, strict=True)
        ]
        options = self.table, self.window, self.softcap, self.causal
        out = attend(*split, tuple(self.tiles), self.scale, *options)
        return [
            part.detach()[0].flatten(1)
            for part in (out, *torch.autograd.grad(out, leaves, self.gradient))
        ]

    def expected(self) -> list[Tensor]:
        """The same in float64, row by row."""
        leaves = [part.detach().double().requires_grad_() for part in self.parts]
        query, key, value = (
            leaf.view(shape).transpose(0, 1)
            for leaf, shape in zip(leaves, self.shapes, strict=True)
        )
        repeats = self.heads // self.key_heads
        key, value = (part.repeat_interleave(repeats, 0) for part in (key, value))
        outputs, begin, key_begin = [], 0, 0
        for length, keys in zip(self.lengths, self.keys, strict=True):
            row, own = slice(begin, begin + length), slice(key_begin, key_begin + keys)
            at = torch.arange(keys, device=self.narrow.device)
            distance = at[None] - at[keys - length :, None]
            scores = query[:, row] @ key[:, own].transpose(1, 2) * self.scale
            if self.softcap is not None:
                scores = self.softcap * (scores / self.softcap).tanh()
            scores = scores + self.narrow.double()[:, distance.clamp(-128, 128) + 128]
            if self.causal:
                scores = scores.masked_fill(distance > 0, -torch.inf)
            if self.window is not None:
                scores = scores.masked_fill(distance.abs() > self.window, -torch.inf)
            outputs.append((scores.softmax(-1) @ value[:, own]).transpose(0, 1))
            begin, key_begin = begin + length, key_begin + keys
        out = torch.cat(
            [*outputs, torch.zeros(self.positions - begin, self.heads, self.size).to(outputs[0])]
        )
        gradients = torch.autograd.grad(out, leaves, self.gradient[0].double())
        return [out.detach().flatten(1), *(gradient[0] for gradient in gradients)]

    def check(self, attend=kernels.ragged_attention) -> None:
        tolerance = 5e-5 if self.gradient.dtype == torch.float32 else 0.02
        sides = [self.lengths, self.lengths, self.keys, self.keys]
        for counts, actual, expected in zip(
            sides, self.computed(attend), self.expected(), strict=True
        ):
            assert not actual[sum(counts) :].any(), "empty positions are 0"
            begin = 0
            for length in counts:
                row = slice(begin, begin + length)
                error = (
                    (actual[row] - expected[row]).norm()
                    / expected[row].norm().clamp(min=0.1 * self.size**0.5)
                ).item()
                assert error < tolerance, f"a row of {length} is off by {error}"
                begin += length


VARIANTS: dict[str, dict[str, Any]] = {
    "causal": {"causal": True},
    "prompts": {"causal": True, "prefix": [20, 0, 100, 3, 3, 64, 129]},
    "grouped heads": {"causal": True, "prefix": [20] * 7, "key_heads": 2},
    "window": {"causal": True, "prefix": [20, 0, 100, 3, 3, 64, 129], "window": 40},
    "window both ways": {"window": 16},
    "capped": {"causal": True, "prefix": [7] * 7, "softcap": 2.0},
    "everything": {
        "causal": True,
        "prefix": [20, 0, 100, 3, 3, 64, 129],
        "key_heads": 1,
        "window": 70,
        "softcap": 3.0,
    },
}
"""What decoder-only and encoder-only models need."""


class SharedCase:
    """Three prompts and five rows, each of which attends to its prompt before itself. No row uses
    the last prompt. Laid out as in training."""

    rows, owners, used = [130, 5, 64, 1, 70], [1, 0, 1, 1, 0], [20, 17, 20, 3, 20]

    def __init__(self, dtype: torch.dtype, device: str, size=32, length=20, **options: Any) -> None:
        self.heads, self.key_heads = 4, options.pop("key_heads", 2)
        self.options, self.length = options, length
        self.used = [min(length, count + (length > 20) * 80) for count in SharedCase.used]
        text = Text(
            torch.empty(len(self.rows), max(self.rows), 64, device="meta"),
            torch.ones(len(self.rows), max(self.rows), device=device),
            lengths=torch.tensor(self.rows),
            prompt_lengths=torch.tensor(self.used),
            prompt_of=torch.tensor(self.owners),
        )
        layout = row_layout(text, (3, length), causal=True, tiled=True, buckets=True)
        self.layout, self.positions = layout.rows, len(layout.source)
        draw = torch.Generator().manual_seed(0)
        self.parts = [
            torch.randn(1, heads, self.positions, size, generator=draw).to(device, dtype)
            for heads in (self.heads, self.key_heads, self.key_heads)
        ]
        self.end = 3 * length + sum(self.rows)
        gradient = torch.randn(1, self.positions, self.heads, size, generator=draw)
        gradient[:, self.end :] = 0  # nothing depends on the positions after the last row
        self.gradient = gradient.to(device, dtype)

    def computed(self) -> list[Tensor]:
        leaves = [part.detach().requires_grad_() for part in self.parts]
        assert self.layout.tiles is not None
        out = kernels.ragged_attention(
            *leaves, self.layout.tiles, 0.3, None, causal=True, users=self.layout.users,
            **self.options,
        )  # fmt: skip
        return [out.detach(), *torch.autograd.grad(out, leaves, self.gradient)]

    def expected(self) -> list[Tensor]:
        """In float64, segment by segment."""
        leaves = [part.detach().double().requires_grad_() for part in self.parts]
        query, key, value = (leaf[0] for leaf in leaves)
        sizes = [self.length] * 3 + self.rows
        firsts = [0] * 3 + [owner * self.length for owner in self.owners]
        outputs, begin = [], 0
        for size, first, prefix in zip(sizes, firsts, [0] * 3 + self.used, strict=True):
            own = slice(begin, begin + size)
            keys, values = (
                torch.cat([part[:, first : first + prefix], part[:, own]], dim=1).repeat_interleave(
                    self.heads // self.key_heads, 0
                )
                for part in (key, value)
            )
            at = torch.arange(prefix + size, device=keys.device)
            distance = at[None] - at[prefix:, None]
            scores = query[:, own] @ keys.transpose(1, 2) * 0.3
            if (softcap := self.options.get("softcap")) is not None:
                scores = softcap * (scores / softcap).tanh()
            hidden = distance > 0
            if (window := self.options.get("window")) is not None:
                hidden |= distance.abs() > window
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            outputs.append((weights @ values).transpose(0, 1))
            begin += size
        out = torch.cat([*outputs, query.new_zeros(self.positions - begin, *outputs[0].shape[1:])])
        return [out.detach()[None], *torch.autograd.grad(out[None], leaves, self.gradient.double())]

    def check(self) -> None:
        tolerance = 5e-5 if self.gradient.dtype == torch.float32 else 0.02
        (out, *gradients), (plain, *expected) = self.computed(), self.expected()
        results = [out.transpose(1, 2), *gradients], [plain.transpose(1, 2), *expected]
        ends = np.cumsum([self.length] * 3 + self.rows)
        for actual, right in zip(*results, strict=True):
            assert not actual[:, :, self.end :].any(), "empty positions are 0"
            for begin, end in zip([0, *ends], ends, strict=False):
                error = (actual[:, :, begin:end] - right[:, :, begin:end]).norm()
                assert error < tolerance * right[:, :, begin:end].norm(), f"{begin} to {end}"


SHARED: dict[str, dict[str, Any]] = {
    "one head for each": {"key_heads": 4},
    "grouped heads": {},
    "long prompts": {"length": 150},
    "window": {"window": 40},
    "capped": {"softcap": 2.0, "key_heads": 1},
}


def check_nan(device: str, dtype: torch.dtype) -> None:
    """A row of NaNs, and NaNs in the tail, change nothing else."""
    lengths = [70, 5, 129, 64, 3]
    clean, with_nan = (Case(lengths, 2, 32, dtype, device, seed=3) for _ in range(2))
    for part in (*with_nan.parts, with_nan.gradient):
        part[:, 75:204] = torch.nan
        part[:, sum(lengths) :] = torch.nan
    for actual, expected in zip(with_nan.computed(), clean.computed(), strict=True):
        assert actual[75:204].isnan().all()
        actual[75:204] = expected[75:204]
        assert torch.equal(actual, expected)


def patch_interpreter() -> None:
    """Patch Triton 3.6's interpreter, which multiplies bfloat16 as if they were integers, and uses
    arrays of one number as indices, which NumPy 2.4 rejects."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    patch, dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patch_with_index(tensor, *scope) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    def wide(handle):
        if handle.dtype.scalar != triton_attention.tl.bfloat16:
            return handle
        return interpreter.TensorHandle(
            (handle.data.astype(np.uint32) << 16).view(np.float32), triton_attention.tl.float32
        )

    def dot_in_float32(self, left, right, *more):
        return dot(self, wide(left), wide(right), *more)

    interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot = (
        patch_with_index,
        dot_in_float32,
    )


def interpret() -> None:
    """The cases for the interpreter: few, because it is slow."""
    patch_interpreter()
    for dtype in (torch.float32, torch.bfloat16):
        Case(LENGTHS, 1, 64, dtype, "cpu").check()
        Case(
            [1, 5, 63, 130],
            3,
            32,
            dtype,
            "cpu",
            tail=300,
            biased=torch.bfloat16 if dtype == torch.bfloat16 else torch.float32,
        ).check()
        Case([65, 5, 64], 2, 128, dtype, "cpu", tail=0).check()
        check_nan("cpu", dtype)
    for variant in VARIANTS.values():
        Case(LENGTHS, 2, 32, torch.float32, "cpu", biased=None, **variant).check()
    Case(LENGTHS[:4], 2, 20, torch.float32, "cpu", biased=None, causal=True).check()
    for variant in SHARED.values():
        SharedCase(torch.float32, "cpu", **variant).check()
    SharedCase(torch.bfloat16, "cpu", size=64).check()


def test_tiles():
    tiles = kernels.tiles(np.array([5, 0, 300, 128]), 440)
    assert tiles.dtype == np.int32
    assert tiles.tolist() == [
        [5, 300, 0, 5, 300],
        [5, 300, 128, 5, 300],
        [5, 300, 256, 5, 300],
        [305, 128, 0, 305, 128],
        [0, 5, 0, 0, 5],
        [433, 0, 0, 0, 0],
        [561, 0, 0, 0, 0],
        [689, 0, 0, 0, 0],
    ]
    after_prompts = kernels.tiles(np.array([5, 130]), 135, np.array([25, 150]))
    assert after_prompts.tolist() == [
        [5, 130, 0, 25, 150],
        [5, 130, 128, 25, 150],
        [0, 5, 0, 0, 25],
        [135, 0, 0, 0, 0],
    ]


def test_tiles_of_rows_that_share_keys():
    """A prompt of 20, a row of 5 after 15 of it, and one of 130 after all."""
    lengths, prefix, starts = np.array([20, 5, 130]), np.array([0, 15, 20]), np.zeros(3, int)
    by_query, by_key = kernels.shared_tiles(lengths, 160, prefix, starts, 128)
    assert by_query.tolist() == [
        [25, 130, 0, 25, 150, 20, 0, 15],
        [25, 130, 128, 25, 150, 20, 0, 15],
        [0, 20, 0, 0, 20, 0, 0, 0],
        [20, 5, 0, 20, 20, 15, 0, 0],
        [155, *[0] * 7],
    ]
    assert by_key.tolist() == [
        [25, 150, 0, 25, 130, 20, 0, 15],
        [25, 150, 128, 25, 130, 20, 0, 15],
        [0, 20, 0, 0, 20, 0, 0, 0],
        [20, 20, 0, 20, 5, 15, 0, 0],
        [155, *[0] * 7],
        [283, *[0] * 7],
    ]


def test_the_slots_of_a_shared_key_are_those_of_its_rows():
    case = SharedCase(torch.float32, "cpu")
    users, (by_query, by_key) = case.layout.users, case.layout.tiles
    assert users.shape == (3 * 20, 3)
    empty = (len(by_key) - len(by_query)) * kernels.TILE
    assert empty == 128, "5 rows of 20, up to a tile, however many rows a prompt has"
    used = users[users < empty]
    assert sorted(used.tolist()) == list(range(sum(case.used)))
    assert (users[2 * 20 :] == empty).all(), "no row uses the last prompt"
    slots = {tuple(tile[[0, 5, 6, 7]].tolist()) for tile in by_key if tile[5]}
    for start, count, prompt, slot in slots:
        row = np.cumsum([60, *case.rows]).tolist().index(start)
        assert (count, prompt) == (case.used[row], 20 * case.owners[row])
        for vector in range(count):
            assert slot + vector in users[prompt + vector]


@pytest.mark.parametrize("seed", range(20))
def test_every_position_is_in_exactly_one_tile(seed):
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 300, draw.integers(1, 60))
    positions = int(lengths.sum() + draw.integers(0, 400))
    tiles = kernels.tiles(lengths, positions)
    count = np.zeros(positions + len(tiles) * 128, int)
    for start, length, offset, *_ in tiles:
        end = min(offset + 128, length) if length else 128
        count[start + offset : start + end] += 1
    assert (count[:positions] == 1).all()


def test_the_bias_is_constant_beyond_the_table():
    narrow = torch.arange(7.0)[None]
    wide = kernels.extend_table(narrow, 100)
    assert wide.shape == (1, 257)
    assert wide[0, 124:133].tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 6]
    assert (wide[0, :125] == 0).all()
    assert (wide[0, 132:] == 6).all()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_in_the_interpreter():
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": paths,
        "CUDA_VISIBLE_DEVICES": "",
    }
    subprocess.run([sys.executable, __file__], env=environment, check=True, timeout=600)


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("heads", "size"), [(12, 64), (3, 32), (5, 128), (1, 64)])
def test_against_the_reference(heads, size, dtype):
    Case(LENGTHS, heads, size, dtype, "cuda").check()
    Case(
        [512, 3, 200, 1],
        heads,
        size,
        dtype,
        "cuda",
        tail=0,
        biased=torch.bfloat16 if heads == 1 else torch.float32,
    ).check()


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("size", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_against_the_reference(variant, size, dtype):
    Case(LENGTHS, 4, size, dtype, "cuda", biased=None, **VARIANTS[variant]).check()


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("size", [32, 64, 80, 128, 256])
@pytest.mark.parametrize("variant", SHARED)
def test_shared_prompts_against_the_reference(variant, size, dtype):
    case = SharedCase(dtype, "cuda", size=size, **SHARED[variant])
    case.check()
    once, twice = case.computed(), case.computed()
    assert all(torch.equal(*pair) for pair in zip(once, twice, strict=True))


@gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_nan_stays_in_its_row(dtype):
    check_nan("cuda", dtype)


@gpu
def test_results_are_deterministic():
    case = Case(LENGTHS * 8, 12, 64, torch.bfloat16, "cuda")
    once, twice = case.computed(), case.computed()
    assert all(torch.equal(*pair) for pair in zip(once, twice, strict=True))


@gpu
@pytest.mark.filterwarnings("default")
def test_compiled():
    attend = torch.compile(
        lambda *given: kernels.ragged_attention(*given) * 1.0, dynamic=True, fullgraph=True
    )
    for lengths in (LENGTHS, [30, 500, 77], [64] * 9):
        Case(lengths, 4, 64, torch.bfloat16, "cuda").check(attend)


@gpu
def test_recorded():
    """A graph recorded for some rows works for others with as many positions."""
    first = Case([100, 356, 44], 4, 64, torch.bfloat16, "cuda", tail=55)
    second = Case([5, 250, 300], 4, 64, torch.bfloat16, "cuda", tail=0, seed=1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        first.computed()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = first.computed()
    held, new = ([*case.parts, case.gradient, *case.tiles, case.table] for case in (first, second))
    for old, other in zip(held, new, strict=True):
        old.copy_(other)
    graph.replay()
    for actual, expected in zip(made, second.computed(), strict=True):
        assert torch.equal(actual, expected)


if __name__ == "__main__":
    interpret()
