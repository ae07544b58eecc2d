"""Backbone: a frozen Hugging Face model and its tokenizer.

It embeds text, takes prompt vectors, and returns losses, scores or generated text. This file holds
what all model families share; `tokens.py` what concerns only tokens. What differs (where the target
goes, how a prompt joins a text) is in each family's own file.

Shape letters: B batch, T text tokens, P prompt tokens, H hidden, N target tokens, C candidates.
"""

import hashlib
import itertools
import json
import math
import sys
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy as np
import torch
from accelerate.utils import align_module_device
from torch import Tensor, nn

from ..errors import UserError, setting
from .batch import Candidates, Losses, Place, Text, to_device
from .dropout import RowDropout, dropout_enabled, recompute_activations
from .kv_cache import PromptCache
from .modules import fuse_gelu, transformer_layers
from .speed import cpu, kernels
from .speed.step import Packed
from .tokens import TokenizedModel

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Classifier(Protocol):
    """A classifier on hidden states, used instead of label words; saved with its prompt."""

    pool: Literal["mean", "first"]

    def __call__(self, features: Tensor, /) -> Tensor:
        """[B, F] -> logits [B, C]."""


class Backbone(TokenizedModel):
    """A frozen model of one family. It never gets gradients, and its weights never change."""

    family: ClassVar[str]
    """The family's name, set by `register_family`."""

    model_types: ClassVar[frozenset[str]] = frozenset()
    """The transformers model types of this family; if empty, `fits` decides."""

    peft_task_type: ClassVar[str | None] = None
    """PEFT's task type for this family; None: its prompts cannot be PEFT adapters."""

    generates: ClassVar[bool] = True

    size_keys: ClassVar[tuple[str, ...]]
    """The config settings in which two models of one type differ; part of the fingerprint. Each
    family lists them, because other keys come and go with transformers' versions."""

    frozen = True

    chat_template: str = ""
    """The template that texts are put into, if they are a chat model's."""

    @classmethod
    def handles(cls, config: Any) -> bool:
        """Whether this family loads models with this transformers config."""
        return config.model_type in cls.model_types if cls.model_types else cls.fits(config)

    @classmethod
    def fits(cls, config: Any) -> bool:
        """Whether a transformers config is of this family, for families without `model_types`."""
        return False

    @classmethod
    @abstractmethod
    def auto_class(cls, config: Any) -> str:
        """The name of the transformers Auto class that loads it."""

    def __init__(self, model: Any, tokenizer: Any, name: str = "") -> None:
        super().__init__(fuse_gelu(model.requires_grad_(False).eval()), tokenizer, name)
        cpu.speed_up(model)
        self.embedding: nn.Module = model.get_input_embeddings()
        self.vocab_size, self.hidden = (
            int(size) for size in cast(Tensor, self.embedding.weight).shape
        )

    # -- resources -------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where inputs are; the layers of a model that is spread may be elsewhere."""
        weight = cast(Tensor, self.embedding.weight)
        if weight.is_meta and (hook := getattr(self.embedding, "_hf_hook", None)) is not None:
            return torch.device(hook.execution_device)  # loaded where it is used, from CPU or disk
        return weight.device

    @property
    def is_spread(self) -> bool:
        """Whether its layers are on several devices."""
        return len(set(getattr(self.model, "hf_device_map", {}).values())) > 1

    quantized: str | None = None
    """int8 or int4: what the matrices of the layers are stored as, if not exactly."""

    @property
    def dtype(self) -> str:
        if self.quantized is not None:
            return self.quantized
        dtype = self.model.dtype
        return next((name for name in DTYPES if DTYPES[name] == dtype), str(dtype))

    @cached_property
    def packed(self) -> Packed | None:
        """The same frozen model on packed rows, if its layers are known to fit."""
        return None

    @property
    def packs_rows(self) -> bool:
        """Whether training packs rows end to end, so that rows of any length share a pass.

        On a GPU only if steps are recorded: launching kernels would cost more than pads do.
        """
        if self.packed is None or not self.frozen:
            return False
        return self.packed.recorded or self.device.type == "cpu"

    @property
    def reads_prompts_once(self) -> bool:
        """Whether training can read a prompt once for all its rows."""
        return False

    def reserve(self, length: int) -> None:
        """Prepare for rows of up to `length` tokens, prompt included."""
        if self.packed is not None:
            self.packed.reserve(length)

    def accelerate(self, record: bool = True, compile: bool = False) -> None:
        """On a GPU, record training steps, and compile layers unless they are compiled already:
        slow at first, faster afterwards. Without `record`, undo both."""
        if self.packed is not None:
            before = self.packed.compiled
            self.packed.recorded = record and self.device.type == "cuda" and self._has_kernels
            self.packed.compiled = (compile or before) and self.packed.recorded
            if self.packed.compiled != before:
                self.packed.graphs.clear()  # recorded with the other layers

    @cached_property
    def _has_kernels(self) -> bool:
        """Whether our attention kernels run here, and fit the model's heads."""
        config = self.model.config
        if not config.is_encoder_decoder:
            config = config.get_text_config()
        size = getattr(config, "d_kv", None) or getattr(config, "head_dim", None)
        if size is None:
            size = config.hidden_size // config.num_attention_heads
        return kernels.AVAILABLE and kernels.head_width(size) is not None

    def disable_packing(self) -> None:
        """Call layers only through the model itself, which sharding needs."""
        self.packed = None

    def compile_counts(self) -> dict[str, float]:
        """The number of layers compiled and of steps recorded so far, and the seconds it took."""
        if self.packed is None or not self.packed.recorded:
            return {}
        compiler = sys.modules.get("torch._dynamo.utils")  # importing it takes seconds
        return {
            "compiled": compiler.counters["stats"]["unique_graphs"] if compiler else 0,
            "recorded": self.packed.graphs.recorded,
            "compile_s": self.packed.graphs.seconds,
        }

    def free_memory(self) -> None:
        """Release memory that is cached to save time."""
        if self.packed is not None:
            self.packed.graphs.clear()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # -- freezing --------------------------------------------------------------------------------

    def unfreeze(self) -> None:
        """Make the model itself trainable (model tuning); no other run may share it any more."""
        self.model.requires_grad_(True)
        self.frozen = False

    def refreeze(self) -> None:
        """Freeze the model with its present weights, and so with a new fingerprint."""
        self.model.requires_grad_(False)
        self.frozen = True
        for name in ("fingerprint", "unit", "packed"):  # computed from the weights before
            self.__dict__.pop(name, None)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the model a prompt was tuned on: a hash of its sizes, embeddings and last
        block, in bf16, so that the dtype it was loaded as does not matter."""
        config = self.model.config.to_dict()
        sizes = {
            key: config[key]
            for key in ("model_type", "vocab_size", *self.size_keys)
            if isinstance(config.get(key), (int, str))
        }
        digest = hashlib.sha256(json.dumps(sizes, sort_keys=True).encode())
        parts: dict[str, tuple[nn.Module, str]] = {"embeddings": (self.embedding, "weight")}
        for prefix, module in self.blocks()[-1].named_modules():
            for name, _ in module.named_parameters(recurse=False):
                parts[f"{prefix}.{name}" if prefix else name] = module, name
        for full_name, (module, name) in sorted(parts.items()):
            digest.update(full_name.encode())
            with align_module_device(module):  # weights that are elsewhere until they are used
                in_bf16 = getattr(module, name).detach().to(torch.bfloat16).contiguous()
            digest.update(in_bf16.view(torch.uint8).cpu().numpy().tobytes())
        return digest.hexdigest()[:32]

    def blocks(self) -> list[nn.Module]:
        """The transformer's layers, from the input on."""
        return transformer_layers(self.model)

    # -- vocabulary ------------------------------------------------------------------------------

    def input_embeddings(self, ids: Tensor) -> Tensor:
        """Embeddings in float32 on the CPU, as the model sees them (BART scales its own):
        [...] -> [..., H]."""
        return cast(Tensor, self.embedding(ids.to(self.device))).float().cpu()

    @cached_property
    def unit(self) -> float:
        """The embeddings' scale: the RMS of common tokens, rounded to a power of two, so that
        dividing by it is exact."""
        sample = self.input_embeddings(self.common_pieces(5000))
        rms = float(sample.square().mean().sqrt())
        return 2.0 ** round(math.log2(rms)) if rms > 0 and math.isfinite(rms) else 1.0

    # -- inputs ----------------------------------------------------------------------------------

    def embed_rows(self, rows: Sequence[Sequence[int]], place: Place = "prefix") -> Text:
        """Rows of ids -> embeddings [B, T, H], with pads at the end: [text; pad]; only ids and
        lengths are copied, padding happens on the GPU."""
        insert_at = None if place == "prefix" else self.prompt_columns(*self.collate(rows), place)
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(sizes.sum()))
        tokens, lengths = (
            to_device(torch.from_numpy(array), self.device) for array in (flat, sizes)
        )
        columns = torch.arange(int(sizes.max()), device=self.device)
        mask = columns < lengths[:, None]
        indices = (lengths.cumsum(0) - lengths)[:, None] + columns
        indices = indices.clamp_(max=max(0, len(flat) - 1))
        ids = torch.where(mask, tokens[indices].long(), self.pad_id)
        with self.no_grad_if_frozen():
            embeds = self.embedding(ids)
        return Text(embeds, mask.long(), insert_at, ids, None, torch.from_numpy(sizes))

    def content_mask(self, text: Text) -> Tensor:
        """The tokens that a router reads [B, T]: not those of a chat template."""
        return text.mask

    def no_grad_if_frozen(self) -> torch.set_grad_enabled:
        """Inside, embeddings are looked up without gradients unless the model itself is tuned."""
        return torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen)

    def join(self, prompt: Tensor, text: Text) -> dict[str, Tensor]:
        """[prompt; text; pad] as the model's input: embeddings [B, P + T, H] and mask.

        The prompt stays float32 until here.
        """
        embeds, mask = text.with_prompt(prompt)
        if self.max_positions is not None and mask.shape[1] > self.max_positions:
            width = int(mask.sum(1).max())  # the longest prompt and text are of different rows
            embeds, mask = embeds[:, :width], mask[:, :width]
        return {"inputs_embeds": embeds, "attention_mask": mask}

    # -- outputs ---------------------------------------------------------------------------------

    @property
    def feature_size(self) -> int:
        """The width of the last hidden state, which a linear head reads."""
        return int(getattr(self.model.config, "hidden_size", self.hidden))

    @property
    def default_scoring(self) -> str:
        return "generate" if self.generates else "labels"

    def default_head(self, labels: Sequence[str]) -> str:
        """How the model predicts labels by default: as words, or with a linear head."""
        return "words"

    def with_head(self, head: Classifier | None, labels: Sequence[str]) -> "Backbone":
        """The same frozen model, predicting labels with `head` if there is one."""
        if head is not None:
            raise UserError(
                f"{self.name} predicts words; a linear head is for encoder-only models: leave out "
                f"{setting('prompt.head')}."
            )
        return self

    def with_heads(self, heads: Sequence[Classifier | None], counts: Sequence[int]) -> "Backbone":
        """The same for a batch of several runs: each head predicts its run's `counts` rows."""
        return self

    @abstractmethod
    def losses(self, prompt: Tensor, text: Text, targets: Sequence[Sequence[int]]) -> Losses:
        """The loss of each row's target after [prompt; text]: prompt [B, P, H]."""

    def gradients(
        self,
        vectors: Tensor,
        text: Text,
        targets: Sequence[Sequence[int]],
        weight: Tensor,
        z: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Each row's summed negative log-likelihood [B], and the gradient of
        sum(weight * nll + z * squares) with respect to the vectors [B, P, H], or those that
        `text.prompt_of` selects from.

        Anything else that is trained (a head, the model itself) accumulates its gradient. On packed
        rows where possible; dropout depends on columns.
        """
        if self.packed is None or not self.packs_rows or self.model.training:
            return self.padded_gradients(vectors, text, targets, weight, z)
        ids, mask = (to_device(part, self.device) for part in self.collate(targets))
        options = self.packed_options(vectors, text, targets)
        return self.packed.gradients(vectors, text, ids, mask, weight, z, **options)

    def packed_options(
        self, vectors: Tensor, text: Text, targets: Sequence[Sequence[int]]
    ) -> dict[str, Any]:
        """What the family's `packed` model needs besides, such as where targets are predicted."""
        return {}

    def padded_gradients(
        self,
        vectors: Tensor,
        text: Text,
        targets: Sequence[Sequence[int]],
        weight: Tensor,
        z: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The same through the model's own forward pass."""
        vectors = vectors.detach().requires_grad_()
        losses = self.losses(vectors, text, targets)
        (losses.nll * weight + losses.z * z).sum().backward()  # type: ignore[no-untyped-call]
        gradient = torch.zeros_like(vectors) if vectors.grad is None else vectors.grad
        return losses.nll.detach(), gradient

    @abstractmethod
    def scores(self, prompt: Tensor | PromptCache, text: Text, candidates: Candidates) -> Tensor:
        """Summed log-probability of each row's candidate targets, end of sequence included: [B, C];
        -inf where a row has fewer."""

    @abstractmethod
    def generate(
        self, prompt: Tensor | PromptCache, text: Text, max_new_tokens: int | Sequence[int]
    ) -> Tensor:
        """Ids by greedy decoding with a key-value cache [B, N]; each row ends at its own limit, and
        is padded."""

    def cache_prompts(self, vectors: Tensor, lengths: Tensor) -> PromptCache | None:
        """Keys and values of prompts [N, P, H] of `lengths` [N], to precede any text; None if the
        model cannot reuse them."""
        return None

    @contextmanager
    def training_mode(
        self, rates: Tensor | None = None, seeds: Tensor | None = None, recompute: bool = False
    ) -> Iterator[None]:
        """Inside, the model's own dropout is on, as the papers train, with the rows' `rates` and
        `seeds` [B]; `recompute` keeps no activations."""
        with ExitStack() as stack:
            dropout = None
            if rates is not None and seeds is not None:
                dropout = RowDropout(to_device(rates, self.device), to_device(seeds, self.device))
                stack.enter_context(dropout)
                stack.enter_context(dropout_enabled(self.model))
            if recompute:
                stack.enter_context(recompute_activations(self.blocks(), dropout))
            yield
