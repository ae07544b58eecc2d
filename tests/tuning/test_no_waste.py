"""What a step does not do: read a prompt twice, compute logits that no loss needs, wait for the
device, or store what only the gradient of a frozen weight would need."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from transformers import masking_utils

from softprompts.backbone import Backbone, EncoderDecoder, load_backbone
from softprompts.backbone.speed import kernels
from softprompts.backbone.speed.layout import bucketed_layout
from softprompts.tuning import Cohort, Run
from softprompts.tuning.optim import make_optimizer
from softprompts.tuning.run import CHECK_EVERY

from ..models import random_model
from .test_cohort import MIXED, gpu, make

LONG = [settings for settings in MIXED if settings["preset"] != "p-tuning"]
"""Runs of many kinds, none of which ends before its losses are checked."""
UNCHECKED = 3
"""Steps before that check."""


def long_runs(csv: Path, backbone: Backbone, **tuning: Any) -> list[Run]:
    runs = make(
        csv, backbone, *LONG, steps=2 * CHECK_EVERY, evaluate_every=2 * CHECK_EVERY, **tuning
    )
    for run in runs:
        run.step = CHECK_EVERY - 1 - UNCHECKED
    return runs


def check_reads_nothing(runs: Sequence[Run]) -> None:
    """On the meta device, which has shapes but no numbers, reading one is an error.

    Only the step that checks the losses raises it.
    """
    runs[0].backbone.model.to("meta")
    for run in runs:
        run.prompt.to("meta")
        run.optimizer = make_optimizer(run._parameter_groups(), run.config.tuning)
    cohort = Cohort(runs, [None] * len(runs))
    for _ in range(UNCHECKED):
        cohort.step()
    with pytest.raises(NotImplementedError, match="Cannot copy out of meta tensor"):
        cohort.step()
    assert {run.step for run in runs} == {CHECK_EVERY}


def test_a_step_reads_nothing_from_the_device(
    toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """t5-tiny with packed rows. What is on the CPU, such as lengths, may be read."""
    monkeypatch.setattr(EncoderDecoder, "packs_rows", True)
    check_reads_nothing(long_runs(toy_csv, load_backbone(dtype="fp32", device="cpu")))


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama", "bert", "deberta", "minilm"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_step_over_padded_rows_reads_nothing_from_the_device(
    kind: str, dropout: float, toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our code reads nothing; transformers would ask whether a mask masks anything."""
    for name in ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa"):
        monkeypatch.setattr(masking_utils, name, lambda *_: False)
    check_reads_nothing(long_runs(toy_csv, random_model(kind), dropout=dropout))


@pytest.mark.parametrize("place", ["prefix", "suffix"])
@pytest.mark.parametrize("given", [None, [1, 20, 5]], ids=["one length", "lengths"])
def test_the_layout_of_recorded_steps_reads_nothing(place: Any, given: list[int] | None) -> None:
    backbone = random_model("t5")
    backbone.model.to("meta")
    text = backbone.embed_rows([[5, 6, 7, 1], [8, 1], [9] * 60], place)._replace(
        prompt_lengths=None if given is None else torch.tensor(given)
    )
    assert bucketed_layout(text, 20, 128).source.is_meta


@gpu
@pytest.mark.filterwarnings(
    "ignore"
)  # a GPU's compiler warns of much; waiting is an error, no warning
@pytest.mark.parametrize("recorded", [False, True], ids=["layer by layer", "recorded"])
def test_a_step_does_not_wait_for_a_gpu(
    recorded: bool, toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers are compiled and steps recorded first; the second time, waiting is an error."""
    if recorded and not kernels.AVAILABLE:
        pytest.skip("recorded steps need Triton")
    monkeypatch.setattr(EncoderDecoder, "packs_rows", True)
    backbone = load_backbone(dtype="fp32", device="cuda")
    backbone.accelerate(recorded, compile=True)
    try:
        for mode in ("default", "error"):
            runs = long_runs(toy_csv, backbone)
            cohort = Cohort(runs, [None] * len(runs))
            torch.cuda.set_sync_debug_mode(mode)
            for _ in range(UNCHECKED):
                cohort.step()
        with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
            cohort.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Products(TorchFunctionMode):
    """Records what operations on frozen matrices store for the backward pass."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.matrices = {
            _storage(weight): name for name, weight in model.named_parameters() if weight.dim() > 1
        }
        self.used: set[str] = set()
        self.other_tensors: list[tuple[Any, torch.Size]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tensors = [part for part in tree_leaves((args, kwargs or {})) if isinstance(part, Tensor)]
        if not any(_storage(part) in self.matrices for part in tensors):
            return func(*args, **(kwargs or {}))

        def store(tensor: Tensor) -> Tensor:
            if _storage(tensor) in self.matrices:
                self.used.add(self.matrices[_storage(tensor)])
            else:
                self.other_tensors.append((func, tensor.shape))
            return tensor

        with saved_tensors_hooks(store, lambda tensor: tensor):
            return func(*args, **(kwargs or {}))


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("kind", ["t5", "bart", "gpt2", "llama", "bert"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_nothing_is_stored_for_a_frozen_weights_gradient(
    kind: str, dropout: float, toy_csv: Path
) -> None:
    """A product with a matrix stores the matrix for the gradient of its input.

    It would store its input for the gradient of the matrix, which is not needed.
    """
    backbone = random_model(kind)
    runs = make(toy_csv, backbone, *MIXED, dropout=dropout)
    with Products(backbone.model) as products:
        Cohort(runs, [None] * len(runs)).step()
    assert products.other_tensors == []
    for block in backbone.blocks()[1::2]:  # the last of each stack of two
        assert {
            products.matrices[_storage(weight)] for weight in block.parameters() if weight.dim() > 1
        } <= products.used
    assert all(weight.grad is None for weight in backbone.model.parameters())


PROMPTS: list[dict[str, Any]] = [
    {"preset": "prompt-tuning", "prompt": {"length": 20}, "seed": seed} for seed in range(3)
]


@pytest.mark.parametrize("count", [1, 3])
def test_a_prompt_is_read_once_per_run_and_step(
    count: int, toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P + sum(T) tokens pass through a decoder-only model for each run, not sum(P + T)."""
    runs = make(toy_csv, random_model("llama"), *PROMPTS[:count])
    batches, passed, next_batches = list[Any](), list[int](), Run.micro_batches

    def kept(run: Run) -> Any:
        batches.extend(next_batches(run))
        return batches[-1:]

    def count_tokens(module: Any, args: Any, inputs: dict[str, Any]) -> None:
        passed.append(inputs["inputs_embeds"].shape[:2].numel())

    monkeypatch.setattr(Run, "micro_batches", kept)
    model = runs[0].backbone.model.base_model
    hook = model.register_forward_pre_hook(count_tokens, with_kwargs=True)
    Cohort(runs, [None] * count).step()
    hook.remove()
    assert len(batches) == count
    assert all(len(batch.inputs) == 8 for batch in batches)
    texts = sum(len(ids) for batch in batches for ids in batch.inputs)
    read = sum(len(ids) - 1 for batch in batches for ids in batch.targets)  # all but the last
    assert sum(passed) == 20 * count + texts + read


@pytest.mark.parametrize(
    ("kind", "columns"), [("llama", 2), ("gpt2", 2), ("opt", 2), ("gemma2", 2), ("bert", 1)]
)
@pytest.mark.parametrize("count", [1, 3])
def test_logits_are_computed_for_targets_only(
    kind: str, columns: int, count: int, toy_csv: Path
) -> None:
    """8 rows of each run, with a label and an end of sequence, or with a mask."""
    backbone = random_model(kind)
    runs = make(toy_csv, backbone, *PROMPTS[:count])
    assert backbone.packs_rows
    logits: list[int] = []
    hook = backbone.model.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: logits.append(output.shape[:-1].numel())
    )
    Cohort(runs, [None] * count).step()
    hook.remove()
    assert sum(logits) == 8 * columns * count
