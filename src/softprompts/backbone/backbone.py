"""Backbone: a frozen Hugging Face model and its tokenizer. It embeds text, takes prompt vectors, answers with losses, scores or text.

What all families share stands here; what differs (where the target goes, how a prompt joins a text) stands in a family's own file.
Shape letters: B batch, T text tokens, P prompt tokens, H hidden, N target tokens, C candidates.
"""

import hashlib
import itertools
import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers.activations import NewGELUActivation

from ..errors import UserError
from .device import sent
from .dropout import Counted, recomputed
from .memory import Memory
from .rows import Candidates, Losses, Place, Text
from .vocabulary import common_pieces

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Head(Protocol):
    """A classifier that answers where the model has no words for it; trained with the prompt and saved with it."""

    pool: Literal["mean", "first"]

    def __call__(self, features: Tensor, /) -> Tensor:
        """[B, F] -> logits [B, C]."""


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a transformer, from the input on: what stands in lists that are in no other's."""
    stacks = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    inner = {
        id(part)
        for stack in stacks
        for block in stack
        for part in block.modules()
        if part is not block
    }
    return [block for stack in stacks if id(stack) not in inner for block in stack]


class Backbone(ABC):
    """A frozen model of one family. No gradient is ever allocated for it and no byte of it changes."""

    family: ClassVar[str]
    """The family's name."""

    generates: ClassVar[bool] = True
    """Whether it can write text of its own."""

    size_keys: ClassVar[tuple[str, ...]]
    """The settings of the config that are part of the fingerprint."""

    @classmethod
    @abstractmethod
    def fits(cls, config: Any) -> bool:
        """Whether a transformers config is of this family."""

    @classmethod
    @abstractmethod
    def auto_class(cls, config: Any) -> str:
        """The transformers Auto class that loads it."""

    frozen = True

    packs = False
    """Whether training lays rows end to end, so that rows of any lengths go together."""

    def expect(self, longest: int) -> None:  # noqa: B027
        """Rows of so many tokens, prompt included, will come."""

    def hurry(self, on: bool = True) -> None:  # noqa: B027 (most families have nothing to compile)
        """Compile what training runs through, where that can be: it takes a while at first and is faster then."""

    def effort(self) -> dict[str, int]:
        """What hurrying took so far: layers that were compiled, and steps that were recorded."""
        return {}

    def peak(self) -> float | None:
        """The most memory that was taken so far, in GiB: the GPU's by tensors, or the process's; None where nobody counts it."""
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.device) / 2**30
        try:
            import resource
        except ImportError:
            return None
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (
            2**30 if sys.platform == "darwin" else 2**20
        )

    def forget(self) -> None:
        """Give back memory that was kept to save time."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def __init__(self, model: Any, tokenizer: Any, name: str = "") -> None:
        self.model = fused(model.requires_grad_(False).eval())
        self.tokenizer = tokenizer
        self.name = name
        self.embedding: nn.Module = model.get_input_embeddings()
        self.vocabulary, self.hidden = (
            int(side) for side in cast(Tensor, self.embedding.weight).shape
        )

    # -- words ---------------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.model.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> str:
        return next(
            (name for name, dtype in DTYPES.items() if dtype == self.model.dtype),
            str(self.model.dtype),
        )

    def vectors(self, ids: Tensor) -> Tensor:
        """Input embeddings in float32 on the CPU, as the model sees them (BART scales its own): [...] -> [..., H]."""
        embedded: Tensor = self.embedding(ids.to(self.device))
        return embedded.float().cpu()

    def common_pieces(self, population: int) -> Tensor:
        """Ids of the commonest usable pieces, by the rule of `vocabulary.py` [N]; all usable ones when `population` is 0."""
        if population not in self._pieces:
            self._pieces[population] = torch.tensor(
                common_pieces(self.tokenizer, self.vocabulary, population)
            )
        return self._pieces[population]

    @cached_property
    def _pieces(self) -> dict[int, Tensor]:
        """What was found so far: every run of a cohort asks again."""
        return {}

    def pieces(self, text: str) -> list[int]:
        """Ids of a text without the special tokens around it."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @cached_property
    def unit(self) -> float:
        """The scale of the embeddings: the RMS over common pieces, as the nearest power of two, so that dividing by it is exact."""
        sample = self.vectors(self.common_pieces(5000))
        rms = float(sample.square().mean().sqrt())
        return 2.0 ** round(math.log2(rms)) if rms > 0 and math.isfinite(rms) else 1.0

    @cached_property
    def fingerprint(self) -> str:
        """What a prompt was tuned on: sizes, input embeddings and last block, hashed as bf16, so that the load dtype does not matter."""
        digest = hashlib.sha256(json.dumps(self.sizes(), sort_keys=True).encode())
        parts = {
            "embeddings": cast(Tensor, self.embedding.weight),
            **dict(self.last_block().named_parameters()),
        }
        for name, tensor in sorted(parts.items()):
            digest.update(name.encode())
            digest.update(
                tensor.detach()
                .to(torch.bfloat16)
                .contiguous()
                .view(torch.uint8)
                .cpu()
                .numpy()
                .tobytes()
            )
        return digest.hexdigest()[:32]

    def sizes(self) -> dict[str, Any]:
        """The settings that make two models of one type differ; a family names them, because other keys come and go with versions."""
        config = self.model.config.to_dict()
        return {
            key: config[key]
            for key in ("model_type", "vocab_size", *self.size_keys)
            if isinstance(config.get(key), (int, str))
        }

    @property
    def features(self) -> int:
        """The width of the last hidden state, which a linear head reads."""
        return int(getattr(self.model.config, "hidden_size", self.hidden))

    # -- rows ----------------------------------------------------------------------------------------------------------------

    def whole(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text with its special tokens, however long."""
        return (
            [list(ids) for ids in self.tokenizer(list(texts), verbose=False)["input_ids"]]
            if texts
            else []
        )

    def cut(self, row: Sequence[int], budget: int) -> list[int]:
        """A row cut to `budget` tokens; the tokens that close it stay."""
        if budget < 2:
            raise UserError(
                f"The prompt leaves {max(budget, 0)} tokens for the text; raise --max-length or shorten the prompt."
            )
        if len(row) <= budget:
            return row if isinstance(row, list) else list(row)  # runs on the same texts share them
        closing = self.surround[1]
        return [*row[: budget - closing], *row[len(row) - closing :]]

    def tokenise(self, texts: Sequence[str], budget: int) -> list[list[int]]:
        """Ids of each text, cut to `budget` tokens."""
        return [self.cut(row, budget) for row in self.whole(texts)]

    def collate(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Ids of different lengths as [B, T] and their mask, pads at the end whatever side the tokenizer prefers."""
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        mask = np.arange(sizes.max()) < sizes[:, None]
        ids = np.full(mask.shape, self.pad, np.int64)
        ids[mask] = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(sizes.sum()))
        return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))

    def embed(self, ids: Tensor, mask: Tensor, place: Place = "prefix") -> Text:
        """[B, T] -> embeddings; pads on the left or inside are moved to the end, so that rows are always [text; pad]."""
        order = mask.argsort(dim=1, descending=True, stable=True)
        ids, mask = ids.gather(1, order), mask.gather(1, order)
        at, sizes = self.at(ids, mask, place), mask.sum(1)
        ids, mask = sent(ids, self.device), sent(mask, self.device)
        with self.still():
            return Text(self.embedding(ids), mask, at, ids, None, sizes)

    def still(self) -> torch.set_grad_enabled:
        """Inside, embeddings are looked up without a gradient, unless the model itself learns."""
        return torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen)

    def thaw(self) -> None:
        """Let the model itself learn (model tuning); it is then nobody else's backbone any more."""
        self.model.requires_grad_(True)
        self.frozen = False

    def settle(self) -> None:
        """The model as it is now, frozen for good under a fingerprint of its own."""
        self.model.requires_grad_(False)
        self.frozen = True
        for name in ("fingerprint", "unit", "packed"):  # what was made of the weights before
            self.__dict__.pop(name, None)

    def embed_rows(self, rows: Sequence[Sequence[int]], place: Place = "prefix") -> Text:
        """The same of rows of ids; only these are sent, and pads and mask are made where they are needed."""
        at = None if place == "prefix" else self.at(*self.collate(rows), place)
        sizes = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(sizes.sum()))
        numbers, lengths = (sent(torch.from_numpy(array), self.device) for array in (flat, sizes))
        across = torch.arange(int(sizes.max()), device=self.device)
        mask, places = across < lengths[:, None], (lengths.cumsum(0) - lengths)[:, None] + across
        ids = torch.where(mask, numbers[places.clamp_(max=max(0, len(flat) - 1))].long(), self.pad)
        with self.still():
            return Text(self.embedding(ids), mask.long(), at, ids, None, torch.from_numpy(sizes))

    def at(self, ids: Tensor, mask: Tensor, place: Place) -> Tensor | None:
        """The column that a prompt at `place` begins at in each row of [text; pad] [B]; None: before all."""
        if place == "prefix":
            return None
        opening, closing = self.surround
        return (
            torch.full_like(mask[:, 0], opening) if place == "after-bos" else mask.sum(1) - closing
        )

    @cached_property
    def surround(self) -> tuple[int, int]:
        """How many special tokens the tokenizer puts before a text and after it."""
        special = self.tokenizer("x", return_special_tokens_mask=True)["special_tokens_mask"]
        return special.index(0), special[::-1].index(0)

    def check_place(self, place: Place) -> None:
        """Only a tokenizer that opens a text with a token of its own has a place after it."""
        if place == "after-bos" and self.surround[0] == 0:
            raise UserError(
                f"{self.name} opens a text with no token of its own, so a prompt cannot stand after it; leave --prompt.place out."
            )

    @property
    def pad(self) -> int:
        pad = getattr(self.tokenizer, "pad_token_id", None)
        return int(
            pad if pad is not None else getattr(self.model.config, "pad_token_id", None) or 0
        )

    @property
    def unknown(self) -> int | None:
        """The id that stands for what the vocabulary lacks, where there is one."""
        return getattr(self.tokenizer, "unk_token_id", None)

    @property
    def longest(self) -> int | None:
        """The most positions the model can take; None where there is no limit, as in T5, which knows only distances."""
        config = (
            self.model.config.get_text_config()
            if not self.model.config.is_encoder_decoder
            else self.model.config
        )
        names = ("max_position_embeddings", "max_encoder_position_embeddings", "max_seq_len")
        return next(
            (
                getattr(config, name)
                for name in names
                if isinstance(getattr(config, name, None), int)
            ),
            None,
        )

    @property
    def room(self) -> int:
        """The most tokens a text and a prompt get unless more is asked for."""
        return min(512, self.longest or 512)

    def budget(self, prompt_length: int, max_length: int, target_length: int) -> int:
        """The tokens left for a text: `max_length` counts the prompt, and the target where it stands in the same sequence."""
        if self.longest is not None and max_length > self.longest:
            raise UserError(
                f"{self.name} takes at most {self.longest} tokens; lower --max-length from {max_length}."
            )
        return max_length - prompt_length

    # -- answers -------------------------------------------------------------------------------------------------------------

    def best_head(self, labels: Sequence[str]) -> str:
        """How labels are told when nothing else is asked for: by the model's own words, or by a linear head."""
        return "words"

    def answering(self, head: Head | None, labels: Sequence[str]) -> "Backbone":
        """The same frozen model, answering by `head` where one is given."""
        if head is not None:
            raise UserError(
                f"{self.name} answers in its own words; a linear head is for encoder-only models: leave --prompt.head out."
            )
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
        """Each row's summed negative log-likelihood [B], and the gradient of sum(weight * nll + z * squares) by the vectors [B, P, H].

        What else learns (a head, the model itself) gets its gradient too.
        """
        vectors = vectors.detach().requires_grad_()
        losses = self.losses(vectors, text, targets)
        (losses.nll * weight + losses.z * z).sum().backward()  # type: ignore[no-untyped-call]
        return losses.nll.detach(), torch.zeros_like(
            vectors
        ) if vectors.grad is None else vectors.grad

    @abstractmethod
    def scores(self, prompt: Tensor | Memory, text: Text, candidates: Candidates) -> Tensor:
        """Summed log-probability of every candidate target, with its end of sequence: [B, C]; -inf where a row has fewer."""

    @abstractmethod
    def generate(
        self, prompt: Tensor | Memory, text: Text, max_new_tokens: int | Sequence[int]
    ) -> Tensor:
        """Greedy ids [B, N], through the key-value cache; a row ends at its own number of tokens, and pads follow."""

    def remember(self, vectors: Tensor, given: Tensor) -> Memory | None:
        """Prompts [N, P, H], `given` [N] vectors of each, to stand before texts without being read again; None: they must be read."""
        return None

    @abstractmethod
    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each target as the model must produce them, end of sequence included."""

    def join(self, prompt: Tensor, text: Text) -> dict[str, Tensor]:
        """[prompt; text; pad] as the model's input: embeddings [B, P + T, H] and mask. The prompt stays float32 until here."""
        embeds, mask = text.joined(prompt)
        return {"inputs_embeds": embeds, "attention_mask": mask}

    @property
    def best_scoring(self) -> str:
        return "generate" if self.generates else "labels"

    def word_pieces(self, text: str) -> list[int]:
        """Ids of a text as a word after a space is spelled, whatever mark the tokenizer has for that."""
        return self.pieces(f"x {text}")[len(self.pieces("x")) :]

    def blocks(self) -> list[nn.Module]:
        """The transformer's layers, from the input on."""
        return layers_of(self.model)

    @abstractmethod
    def last_block(self) -> nn.Module:
        """The block nearest the output; part of the fingerprint."""

    @property
    def ends(self) -> set[int]:
        """The ids that end a sequence: the tokenizer's and the model's."""
        own = getattr(self.model.generation_config, "eos_token_id", None)
        ids = [
            getattr(self.tokenizer, "eos_token_id", None),
            *(own if isinstance(own, list) else [own]),
        ]
        return {int(index) for index in ids if index is not None}

    def decode(self, ids: Tensor) -> list[str]:
        decoded: list[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [text.strip() for text in decoded]

    @contextmanager
    def learning(
        self, rates: Tensor | None = None, seeds: Tensor | None = None, recompute: bool = False
    ) -> Iterator[None]:
        """Inside: the model's own dropout, as the papers train, by the rows' `rates` and `seeds` [B]; `recompute` keeps no activations."""
        with ExitStack() as stack:
            counted = None
            if rates is not None and seeds is not None:
                stack.enter_context(
                    counted := Counted(sent(rates, self.device), sent(seeds, self.device))
                )
                stack.enter_context(self._dropping())
            if recompute:
                stack.enter_context(recomputed(self.blocks(), counted))
            yield

    @contextmanager
    def _dropping(self) -> Iterator[None]:
        """Inside, the model is in training, and every dropout in it is on; outside, none."""
        for module in self.model.modules():
            for name in (
                "p",
                "dropout",
                "activation_dropout",
                "attention_dropout",
                "hidden_dropout",
            ):
                if isinstance(getattr(module, name, None), (int, float)):
                    setattr(module, name, 0.5)
            if hasattr(module, "layerdrop"):
                module.layerdrop = 0.0
        self.model.train()
        try:
            yield
        finally:
            self.model.eval()


def fused(model: Any) -> Any:
    """The model with GELU's tanh form as one operation where it is written out as eight: the same function."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, NewGELUActivation):
                setattr(module, name, nn.GELU(approximate="tanh"))
    return model


@contextmanager
def only(encoder: nn.Module, columns: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
    """Inside, what follows the encoder sees the hidden states of `columns` [B, N] alone; the yielded function makes sure of the result."""
    seen: list[bool] = []

    def pick(states: Tensor) -> Tensor:
        return states.gather(1, columns.unsqueeze(-1).expand(-1, -1, states.shape[2]))

    def keep(module: nn.Module, inputs: Any, output: Any) -> Any:
        seen.append(True)
        output.last_hidden_state = pick(output.last_hidden_state)
        return output

    hook = encoder.register_forward_hook(keep)
    try:
        yield (
            lambda logits: logits if seen else pick(logits)
        )  # some models (OPT) go around their encoder's own call
    finally:
        hook.remove()
