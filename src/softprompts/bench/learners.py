"""Who learns: our runs by the public way (`Cohort.step`), and PEFT's prompt tuning in the plainest loop that does the same."""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers.activations import NewGELUActivation

from ..artifacts.peft import TASK_TYPES
from ..backbone import Backbone, Causal
from ..backbone.backbone import layers_of
from ..errors import UserError
from ..tasks import Example, Form, Task
from ..tuning import Cohort, Run, run_config
from ..tuning.batches import Batches
from .measure import DisagreementError, peft
from .tables import PEERS
from .workload import LONGEST, Rows

BUCKET = 64
"""Where PEFT's batches are padded to a few sizes, these are multiples of so many columns."""

WAYS = {
    "eager": "as it comes",
    "regions": "torch.compile(dynamic=True) of its layers one by one (regional compilation), padded to the longest text of a batch",
    "dynamic": "torch.compile(dynamic=True), padded to the longest text of a batch",
    "buckets": f"torch.compile(dynamic=False), padded to multiples of {BUCKET}",
    "graphs": f"torch.compile(mode='reduce-overhead'), padded to multiples of {BUCKET}",
    "padded": f"torch.compile(mode='reduce-overhead'), all padded to {LONGEST}, so that there is one size",
    "autocast": "as it comes, the model in fp32 under bf16 autocast",
}
"""The ways PEFT is run; autocast is how its users' trainers run it."""
COMPILED = ("regions", "dynamic", "buckets", "graphs", "padded")


def ways_of(asked: str, backbone: Backbone, known: Collection[str] = PEERS.keys()) -> list[str]:
    """The ways PEFT is to be run, joined with commas; auto: eager, and on a GPU also compiled by regions."""
    ways = (
        asked.split(",")
        if asked != "auto"
        else ["eager", "regions"]
        if backbone.device.type == "cuda"
        else ["eager"]
    )
    unknown = [way for way in ways if way not in known]
    if unknown:
        raise UserError(f"PEFT is not run {unknown[0]!r} here; choose among {', '.join(known)}.")
    return ways


class Learner(Protocol):
    """One run, or many that step together."""

    runs: int

    def ready(self) -> None:
        """What is not part of a step."""

    def step(self, number: int) -> None:
        """One optimiser step of each run."""

    def losses(self) -> list[list[float]]:
        """Of each run, the loss of each step so far."""


class Given(Batches):
    """Batches that were drawn already: the rows of each step one after another."""

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = np.cumsum(sizes).tolist()
        self.rows = [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]

    def __getitem__(self, index: int) -> list[int]:
        return self.rows[index]


def make_run(backbone: Backbone, rows: Rows, settings: Mapping[str, Any], seed: int) -> Run:
    """A run as `tune` makes it, over rows that are tokenised already."""
    never = 10**9
    schedule = {
        "schedule": "constant",
        "warmup": 0,
        "steps": len(rows.inputs),
        "evaluate_every": never,
        "checkpoint_every": never,
    }
    config = run_config({"model": backbone.name, "seed": seed, "tuning": schedule}, settings)
    words = [Example("x", "yes"), Example("y", "no")]
    run = Run(
        config,
        Task("bench", Form("{text}", "label", {"yes": "yes", "no": "no"}), words, words),
        backbone,
    )
    run.inputs = [row for batch in rows.inputs for row in batch]
    run.targets = [row for batch in rows.targets for row in batch]
    run.batches = Given([len(batch) for batch in rows.inputs])
    return run


class Ours:
    """Runs side by side, as `tune` drives them; compiled or not, however few their steps are."""

    def __init__(self, runs: Sequence[Run], compiles: bool) -> None:
        self.members, self.runs = list(runs), len(runs)
        self.cohort = Cohort(runs, [None] * len(runs))
        compile_ours(runs[0].backbone, compiles)

    def ready(self) -> None:
        pass

    def step(self, number: int) -> None:
        self.cohort.step()

    def losses(self) -> list[list[float]]:
        for run in self.members:
            run.look()
            if run.stopped:
                raise DisagreementError(f"Our run did not come to its end: {run.stopped}.")
        return [list(run.pending) for run in self.members]


def compile_ours(backbone: Backbone, on: bool) -> bool:
    """Have our layers compiled and steps recorded; False where they cannot be, as on a CPU."""
    backbone.hurry(on)
    return bool(getattr(getattr(backbone, "packed", None), "fast", False))


def untouched(model: torch.nn.Module) -> torch.nn.Module:
    """The model as transformers makes it, on the same weights: its activations written out, which ours are not."""
    shared = {id(part): part for part in (*model.parameters(), *model.buffers())}
    made = copy.deepcopy(model, shared)
    for module in list(made.modules()):
        for name, child in module.named_children():
            if isinstance(child, torch.nn.GELU) and child.approximate == "tanh":
                setattr(module, name, NewGELUActivation())
    return made


def by_regions(model: Any) -> Any:
    """The model with its layers compiled, each for any size."""
    torch._dynamo.config.recompile_limit = 64  # or it would give up where sizes are many
    for layer in layers_of(model):
        layer.compile(dynamic=True)
    return model


class Peft:
    """PEFT's prompt tuning on the same frozen model, run in one of `WAYS`. The prompt is in front of the encoder's text alone, as ours."""

    def __init__(self, backbone: Backbone, length: int, way: str) -> None:
        library = peft()
        model = (
            copy.deepcopy(untouched(backbone.model)).float()
            if way == "autocast"
            else untouched(backbone.model)
        )
        config = library.PromptTuningConfig(
            task_type=TASK_TYPES[backbone.family],
            num_virtual_tokens=length,
            num_transformer_submodules=1,
        )
        self.backbone, self.way = backbone, way
        self.model = library.get_peft_model(model, config).eval()  # as ours: no dropout
        self.weight: torch.nn.Parameter = self.model.prompt_encoder["default"].embedding.weight
        self.owner: Theirs | None = None
        """The run whose prompt is in its place."""
        self.length = length
        self.forward = self._compiled()

    def _compiled(self) -> Callable[..., Any]:
        if self.way not in COMPILED:
            return self.model  # type: ignore[no-any-return]
        if self.way == "regions":
            return by_regions(self.model)  # type: ignore[no-any-return]
        if self.way == "dynamic":
            return torch.compile(self.model, dynamic=True)
        return torch.compile(
            self.model,
            dynamic=False,
            mode="default" if self.way == "buckets" else "reduce-overhead",
        )

    def loss(self, texts: Sequence[list[int]], targets: Sequence[list[int]]) -> Tensor:
        """The mean over the batch's target tokens."""
        if self.way in ("graphs", "padded"):
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with self._precision():
            loss: Tensor = self.forward(**self._collated(texts, targets), use_cache=False).loss
        return loss

    def _precision(self) -> AbstractContextManager[Any]:
        return (
            torch.autocast(self.backbone.device.type, dtype=torch.bfloat16)
            if self.way == "autocast"
            else nullcontext()
        )

    def _collated(
        self, texts: Sequence[list[int]], targets: Sequence[list[int]]
    ) -> dict[str, Tensor]:
        """Padded to the longest, or to a bucket; pinned and copied without waiting, as a good loader does."""
        if isinstance(self.backbone, Causal):
            labels = [
                [-100] * len(text) + target for text, target in zip(texts, targets, strict=True)
            ]
            texts = [text + target for text, target in zip(texts, targets, strict=True)]
        else:
            labels = list(targets)
        width = max(map(len, texts))
        if self.way in ("buckets", "graphs"):
            width += -(width + self.length) % BUCKET
        if self.way == "padded":
            width = max(width, LONGEST)
        wide = width if isinstance(self.backbone, Causal) else max(map(len, labels))
        made = {
            "input_ids": _padded(texts, width, self.backbone.pad),
            "attention_mask": _padded([[1] * len(text) for text in texts], width, 0),
            "labels": _padded(labels, wide, -100),
        }
        if self.backbone.device.type != "cuda":
            return made
        return {
            name: part.pin_memory().to(self.backbone.device, non_blocking=True)
            for name, part in made.items()
        }


def _padded(rows: Sequence[list[int]], width: int, pad: int) -> Tensor:
    array = np.full((len(rows), width), pad, np.int64)
    for place, row in enumerate(rows):
        array[place, : len(row)] = row
    return torch.from_numpy(array)


class Theirs:
    """One run of PEFT's. Runs that share a model take turns at its prompt; changing over is not part of a step."""

    runs = 1

    def __init__(
        self, peer: Peft, start: Tensor, rows: Rows, lr: float, weight_decay: float
    ) -> None:
        self.peer, self.rows = peer, rows
        self.prompt = start.to(peer.weight.device, copy=True)
        self.optimizer = torch.optim.AdamW([peer.weight], lr=lr, weight_decay=weight_decay)
        self.seen: list[Tensor] = []

    def ready(self) -> None:
        owner = self.peer.owner
        if owner is not self:
            if owner is not None:
                owner.prompt.copy_(self.peer.weight.data)
            self.peer.weight.data.copy_(self.prompt)
            self.peer.owner = self

    def step(self, number: int) -> None:
        loss = self.peer.loss(self.rows.inputs[number], self.rows.targets[number])
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.seen.append(loss.detach().clone())

    def losses(self) -> list[list[float]]:
        return [torch.stack(self.seen).tolist()]
