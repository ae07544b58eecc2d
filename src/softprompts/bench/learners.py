"""What is timed: our runs as `tune` drives them, and PEFT in the simplest equivalent loop."""

import copy
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers.activations import NewGELUActivation

from ..artifacts.peft import UNUSED_SIZES
from ..backbone import Backbone, Causal
from ..backbone.modules import transformer_layers
from ..backbone.speed import cpu
from ..config import run_config
from ..errors import UserError
from ..tasks import Example, Task, TextFormat
from ..tuning import Cohort, Run
from ..tuning.batches import Batches
from ..tuning.run import check_losses
from ..tuning.tokens import TextRows
from .measure import DisagreementError, peft_library
from .tables import PEFT_NAMES
from .workload import MAX_TEXT, Batch, RunBatches

BUCKET = 64
"""Modes that pad to a few sizes use multiples of this many columns."""

PEFT_MODES = {
    "eager": "eager",
    "regions": "torch.compile(dynamic=True) of each layer (regional compilation), padded to the "
    "longest text of a batch",
    "dynamic": "torch.compile(dynamic=True), padded to the longest text of a batch",
    "buckets": f"torch.compile(dynamic=False), padded to multiples of {BUCKET}",
    "graphs": f"torch.compile(mode='reduce-overhead'), padded to multiples of {BUCKET}",
    "padded": f"torch.compile(mode='reduce-overhead'), all padded to {MAX_TEXT}",
    "autocast": "eager, the model in fp32 under bf16 autocast",
}
"""The modes of PEFT; autocast is how common trainers run it."""
COMPILED = ("regions", "dynamic", "buckets", "graphs", "padded")


def peft_modes(
    names: str, backbone: Backbone, known: Collection[str] = PEFT_NAMES.keys()
) -> list[str]:
    """The modes of PEFT, separated by commas; auto: eager, and on a GPU also regions."""
    automatic = ["eager", "regions"] if backbone.device.type == "cuda" else ["eager"]
    modes = automatic if names == "auto" else names.split(",")
    unknown = [mode for mode in modes if mode not in known]
    if unknown:
        raise UserError(f"There is no PEFT mode {unknown[0]!r}; choose from {', '.join(known)}.")
    return modes


class FixedBatches(Batches):
    """The rows of each step in order, `size` at a time."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, index: int) -> list[int]:
        return list(range(index * self.size, (index + 1) * self.size))


class FixedRows(TextRows):
    """Rows that are tokenised already."""

    def __init__(self, rows: Sequence[list[int]]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: Iterable[int]) -> list[list[int]]:
        return [self.rows[row] for row in rows]

    def longest(self) -> int:
        return max(map(len, self.rows))


def make_run(
    backbone: Backbone, batches: RunBatches, settings: Mapping[str, Any], seed: int
) -> Run:
    """A run as `tune` makes it, on rows that are tokenised already."""
    steps = {
        "schedule": "constant",
        "warmup": 0,
        "steps": len(batches.inputs),
        "evaluate_every": 10**9,
        "checkpoint_every": 10**9,
        "chat": False,  # the rows are tokenised already
    }
    config = run_config(settings, {"model": backbone.name, "seed": seed, "tuning": steps})
    first, second = label_words(backbone)
    examples = [Example("x", first), Example("y", second)]
    form = TextFormat("{text}", "label", {first: first, second: second})
    run = Run(config, Task("bench", form, examples, examples), backbone)
    run.inputs = FixedRows([row for batch in batches.inputs for row in batch])
    run.targets = FixedRows([row for batch in batches.targets for row in batch])
    run.batches = FixedBatches(len(batches.inputs[0]))
    return run


def label_words(backbone: Backbone) -> list[str]:
    """Two labels that the model predicts as words, as it does the rows, and not with a head."""
    known = (backbone.tokenizer.decode(piece) for piece in backbone.common_pieces(0).tolist())
    words: list[str] = []
    for word in itertools.chain(["yes", "no"], known):
        if word not in words and backbone.default_head([*words, word]) == "words":
            words.append(word)
        if len(words) == 2:
            break
    return words


class OurRuns:
    """Runs in one cohort, as `tune` drives them; compiled or not, however few their steps are."""

    def __init__(self, runs: Sequence[Run], compiles: bool) -> None:
        self.members, self.runs = list(runs), len(runs)
        self.cohort = Cohort(runs, [None] * len(runs))
        set_compile(runs[0].backbone, compiles)

    def prepare(self) -> None:
        """Untimed work before a step."""

    def step(self, number: int) -> None:
        self.cohort.step()

    def losses(self) -> list[list[float]]:
        """[runs, steps]: the losses so far."""
        check_losses(self.members)
        for run in self.members:
            if run.stopped:
                raise DisagreementError(f"Our run did not finish: {run.stopped}.")
        return [list(run.pending) for run in self.members]


def set_compile(backbone: Backbone, on: bool) -> bool:
    """Record our steps, and compile our layers or not; False if they are not, as on a CPU."""
    backbone.accelerate(record=False)
    backbone.accelerate(compile=on)
    return backbone.packed is not None and backbone.packed.compiled


def original_model(model: torch.nn.Module) -> torch.nn.Module:
    """The model as transformers makes it, on the same weights; ours has faster modules."""
    shared = {id(part): part for part in (*model.parameters(), *model.buffers())}
    original = copy.deepcopy(model, shared)
    cpu.slow_down(original)
    for module in list(original.modules()):
        for name, child in module.named_children():
            if isinstance(child, torch.nn.GELU) and child.approximate == "tanh":
                setattr(module, name, NewGELUActivation())
    return original


def compile_layers(model: Any) -> Any:
    """Compile each layer of the model, for any size."""
    torch._dynamo.config.recompile_limit = 64  # with many sizes, it would give up earlier
    for layer in transformer_layers(model):
        layer.compile(dynamic=True)
    return model


class PeftModel:
    """PEFT's prompt tuning on the same frozen model, in one of `PEFT_MODES`.

    The prompt stands before the encoder's text alone, as ours does.
    """

    def __init__(self, backbone: Backbone, length: int, mode: str) -> None:
        library = peft_library()
        model = original_model(backbone.model)
        if mode == "autocast":
            model = copy.deepcopy(model).float()
        config = library.PromptTuningConfig(
            task_type=backbone.peft_task_type,
            num_virtual_tokens=length,
            num_transformer_submodules=1,
            token_dim=backbone.hidden,
            **UNUSED_SIZES,
        )
        self.backbone, self.mode, self.length = backbone, mode, length
        self.model = library.get_peft_model(model, config).eval()  # no dropout, as in ours
        self.weight: torch.nn.Parameter = self.model.prompt_encoder["default"].embedding.weight
        self.active: PeftRun | None = None
        """The run whose prompt is in the model."""
        self.forward = self._compiled()

    def _compiled(self) -> Callable[..., Any]:
        if self.mode == "regions":
            compile_layers(self.model)
        if self.mode not in COMPILED or self.mode == "regions":
            return self.model  # type: ignore[no-any-return]
        mode = "reduce-overhead" if self.mode in ("graphs", "padded") else "default"
        return torch.compile(self.model, dynamic=self.mode == "dynamic", mode=mode)

    def loss(self, texts: Batch, targets: Batch) -> Tensor:
        """The mean over the batch's target tokens."""
        if self.mode in ("graphs", "padded"):
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        on, device = self.mode == "autocast", self.backbone.device.type
        with torch.autocast(device, dtype=torch.bfloat16, enabled=on):
            if not self.backbone.generates:
                return self._mask_loss(**self._collate(texts, targets))
            loss: Tensor = self.forward(**self._collate(texts, targets), use_cache=False).loss
        return loss

    def _mask_loss(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Tensor:
        """As transformers' own, which PEFT's prompts do not reach."""
        logits = self.forward(input_ids=input_ids, attention_mask=attention_mask).logits
        return torch.nn.functional.cross_entropy(
            logits[:, self.length :].flatten(0, 1).float(), labels.flatten()
        )

    def _collate(self, texts: Batch, targets: Batch) -> dict[str, Tensor]:
        """Padded to the longest, or to a bucket; pinned and copied asynchronously."""
        causal = isinstance(self.backbone, Causal)
        labels, pairs = targets, list(zip(texts, targets, strict=True))
        if causal:
            labels = [[-100] * len(text) + target for text, target in pairs]
            texts = [text + target for text, target in pairs]
        elif not self.backbone.generates:
            labels = [[-100] * (len(text) - 1) + target for text, target in pairs]
        width = max(map(len, texts))
        if self.mode in ("buckets", "graphs"):
            width += -(width + self.length) % BUCKET
        if self.mode == "padded":
            width = max(width, MAX_TEXT)
        label_width = width if causal or not self.backbone.generates else max(map(len, labels))
        batch = {
            "input_ids": _padded(texts, width, self.backbone.pad_id),
            "attention_mask": _padded([[1] * len(text) for text in texts], width, 0),
            "labels": _padded(labels, label_width, -100),
        }
        if self.backbone.device.type != "cuda":
            return batch
        return {
            name: part.pin_memory().to(self.backbone.device, non_blocking=True)
            for name, part in batch.items()
        }


def _padded(rows: Batch, width: int, pad: int) -> Tensor:
    array = np.full((len(rows), width), pad, np.int64)
    for index, row in enumerate(rows):
        array[index, : len(row)] = row
    return torch.from_numpy(array)


class PeftRun:
    """One run of PEFT. Runs that share a model take turns; swapping prompts is not timed."""

    runs = 1

    def __init__(
        self, peer: PeftModel, start: Tensor, batches: RunBatches, lr: float, weight_decay: float
    ) -> None:
        self.peer, self.batches = peer, batches
        self.prompt = start.to(peer.weight.device, copy=True)
        self.optimizer = torch.optim.AdamW([peer.weight], lr=lr, weight_decay=weight_decay)
        self.step_losses: list[Tensor] = []

    def prepare(self) -> None:
        active = self.peer.active
        if active is not self:
            if active is not None:
                active.prompt.copy_(self.peer.weight.data)
            self.peer.weight.data.copy_(self.prompt)
            self.peer.active = self

    def step(self, number: int) -> None:
        loss = self.peer.loss(self.batches.inputs[number], self.batches.targets[number])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step_losses.append(loss.detach().clone())

    def losses(self) -> list[list[float]]:
        return [torch.stack(self.step_losses).tolist()]


Learner = OurRuns | PeftRun
"""One run, or many that step together."""


def our_run(
    backbone: Backbone, batches: RunBatches, settings: Mapping[str, Any], seed: int, compiles: bool
) -> list[Learner]:
    return [OurRuns([make_run(backbone, batches, settings, seed)], compiles)]
