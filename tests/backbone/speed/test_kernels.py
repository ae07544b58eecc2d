"""The GPU's attention, against plain mathematics: on a GPU where there is one, and by Triton's interpreter where Triton is installed.

Run as a program, this file is what the interpreter's test runs in a process of its own.
"""

import importlib
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import Tensor

from softprompts.backbone.speed import kernels

LENGTHS = [1, 5, 63, 64, 65, 215, 356]
gpu = pytest.mark.skipif(
    not torch.cuda.is_available() or kernels.triton is None, reason="needs a GPU and Triton"
)


class Case:
    """Rows with queries, keys, values and a gradient of what they see, and `tail` places of no row after them."""

    def __init__(
        self,
        lengths: list[int],
        heads: int,
        size: int,
        dtype: torch.dtype,
        device: str,
        tail=37,
        seed=0,
        biased=torch.float32,
    ) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.lengths, self.scale = lengths, 0.3
        self.places = sum(lengths) + tail
        self.parts = [
            torch.randn(1, self.places, heads * size, generator=draw).to(device, dtype)
            for _ in range(3)
        ]
        self.gradient = torch.randn(1, self.places, heads, size, generator=draw).to(device, dtype)
        self.heads, self.size = heads, size
        self.narrow = torch.randn(heads, 2 * 128 + 1, generator=draw).to(device, biased).float()
        self.table = kernels.widen(self.narrow, max(lengths)).to(biased)
        room = kernels.room(self.places, len(lengths))
        self.tiles = torch.from_numpy(kernels.tiles(np.array(lengths), kernels.TILE, room)).to(
            device
        )

    def seen(self, attend=kernels.ragged_attention) -> list[Tensor]:
        """The output [N, heads * D], and the gradients by query, key and value."""
        leaves = [part.detach().requires_grad_() for part in self.parts]
        split = [
            leaf.view(1, self.places, self.heads, self.size).transpose(1, 2) for leaf in leaves
        ]
        out = attend(*split, self.table, self.tiles, self.scale)
        return [
            part.detach()[0].reshape(self.places, -1)
            for part in (out, *torch.autograd.grad(out, leaves, self.gradient))
        ]

    def plain(self) -> list[Tensor]:
        """The same in float64, row by row."""
        leaves = [part.detach().double().requires_grad_() for part in self.parts]
        query, key, value = (
            leaf.view(self.places, self.heads, self.size).transpose(0, 1) for leaf in leaves
        )
        found, begin = [], 0
        for length in self.lengths:
            own = slice(begin, begin + length)
            at = torch.arange(length, device=self.narrow.device)
            bias = self.narrow.double()[:, (at[None] - at[:, None]).clamp(-128, 128) + 128]
            weights = (query[:, own] @ key[:, own].transpose(1, 2) * self.scale + bias).softmax(-1)
            found.append((weights @ value[:, own]).transpose(0, 1))
            begin += length
        out = torch.cat(
            [*found, torch.zeros(self.places - begin, self.heads, self.size).to(found[0])]
        )
        gradients = torch.autograd.grad(out, leaves, self.gradient[0].double())
        return [out.detach().flatten(1), *(gradient[0] for gradient in gradients)]

    def check(self, attend=kernels.ragged_attention) -> None:
        within = 5e-5 if self.gradient.dtype == torch.float32 else 0.02
        for got, wanted in zip(self.seen(attend), self.plain(), strict=True):
            assert not got[sum(self.lengths) :].any(), "places of no row are not 0"
            begin = 0
            for length in self.lengths:
                own = slice(begin, begin + length)
                off = (
                    (got[own] - wanted[own]).norm()
                    / wanted[own].norm().clamp(min=0.1 * self.size**0.5)
                ).item()
                assert off < within, f"a row of {length} is off by {off}"
                begin += length


def check_nan(device: str, dtype: torch.dtype) -> None:
    """A row of nothing but NaN, and NaN in the tail, change nothing else."""
    lengths = [70, 5, 129, 64, 3]
    clean, ruined = (Case(lengths, 2, 32, dtype, device, seed=3) for _ in range(2))
    for part in (*ruined.parts, ruined.gradient):
        part[:, 75:204] = torch.nan
        part[:, sum(lengths) :] = torch.nan
    for got, wanted in zip(ruined.seen(), clean.seen(), strict=True):
        assert got[75:204].isnan().all()
        got[75:204] = wanted[75:204]
        assert torch.equal(got, wanted)


def mend() -> None:
    """Triton 3.6's interpreter multiplies bfloat16 as if they were integers, and counts up to an array of one number, unlike NumPy 2.4."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    patch, dot = interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot

    def patch_mended(tensor, *scope) -> None:
        patch(tensor, *scope)
        tensor.__index__ = lambda self: self.handle.data.item()

    def wide(handle):
        if handle.dtype.scalar != kernels.tl.bfloat16:
            return handle
        return interpreter.TensorHandle(
            (handle.data.astype(np.uint32) << 16).view(np.float32), kernels.tl.float32
        )

    def dot_mended(self, left, right, *more):
        return dot(self, wide(left), wide(right), *more)

    interpreter._patch_lang_tensor, interpreter.InterpreterBuilder.create_dot = (
        patch_mended,
        dot_mended,
    )


def interpret() -> None:
    """What the interpreter is asked: it is slow, so sizes are few."""
    mend()
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


def test_tiles():
    found = kernels.tiles(np.array([5, 0, 300, 128]), 128, 8)
    assert found.dtype == np.int32
    assert found.tolist() == [
        [5, 300, 0],
        [5, 300, 128],
        [5, 300, 256],
        [305, 128, 0],
        [0, 5, 0],
        [433, 0, 0],
        [561, 0, 0],
        [689, 0, 0],
    ]
    with pytest.raises(ValueError, match="do not fit"):
        kernels.tiles(np.array([5, 300]), 128, 3)


@pytest.mark.parametrize("seed", range(20))
def test_tiles_and_tail_fit_in_the_room(seed):
    """Every place is in exactly one tile, whatever the rows."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(1, 300, draw.integers(1, 60))
    places = int(lengths.sum() + draw.integers(0, 400))
    room = kernels.room(places, len(lengths))
    count = np.zeros(places + room * 128, int)
    for start, length, offset in kernels.tiles(lengths, 128, room):
        end = min(offset + 128, length) if length else 128
        count[start + offset : start + end] += 1
    assert (count[:places] == 1).all()


def test_widen():
    narrow = torch.arange(7.0)[None]
    wide = kernels.widen(narrow, 100)
    assert wide.shape == (1, 257)
    assert wide[0, 124:133].tolist() == [0, 0, 1, 2, 3, 4, 5, 6, 6]
    assert (wide[0, :125] == 0).all()
    assert (wide[0, 132:] == 6).all()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")
def test_interpreted():
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
def test_like_plain_mathematics(heads, size, dtype):
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
def test_nan_stays_in_its_row(dtype):
    check_nan("cuda", dtype)


@gpu
def test_the_same_every_time():
    case = Case(LENGTHS * 8, 12, 64, torch.bfloat16, "cuda")
    once, twice = case.seen(), case.seen()
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
    """A graph recorded for some rows serves others in as many places."""
    first = Case([100, 356, 44], 4, 64, torch.bfloat16, "cuda", tail=55)
    second = Case([5, 250, 300], 4, 64, torch.bfloat16, "cuda", tail=0, seed=1)
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        first.seen()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = first.seen()
    held, new = ([*case.parts, case.gradient, case.tiles, case.table] for case in (first, second))
    for old, other in zip(held, new, strict=True):
        old.copy_(other)
    graph.replay()
    for got, wanted in zip(made, second.seen(), strict=True):
        assert torch.equal(got, wanted)


if __name__ == "__main__":
    interpret()
