"""Backbone: a frozen Hugging Face model and its tokenizer. It embeds text, takes prompt vectors, answers with losses, scores or text.

What all families share stands here; what differs (where the target goes, how a prompt joins a text) stands in a family's own file.
Shape letters: B batch, T text tokens, P prompt tokens, H hidden, N target tokens, C candidates.
"""

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..errors import UserError
from .vocabulary import common_pieces

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
EMBEDDED = {"t5-tiny": Path(__file__).parent / "t5-tiny"}
DEFAULT = "t5-tiny"


class Text(NamedTuple):
    """Embedded texts: embeds [B, T, H] and mask [B, T], rows laid out as [text; pad]."""

    embeds: Tensor
    mask: Tensor


class Losses(NamedTuple):
    """Per row [B]: summed negative log-likelihood of the target, summed squared log-normaliser (for z-loss), and target tokens."""

    nll: Tensor
    z: Tensor
    tokens: Tensor


class Backbone(ABC):
    """A frozen model of one family. No gradient is ever allocated for it and no byte of it changes."""

    auto_class: ClassVar[str]
    """The transformers Auto class that loads this family."""

    def __init__(self, model: Any, tokenizer: Any, name: str = "") -> None:
        self.model = model.requires_grad_(False).eval()
        self.tokenizer = tokenizer
        self.name = name
        self.embedding: nn.Module = model.get_input_embeddings()
        self.vocabulary, self.hidden = (int(side) for side in cast(Tensor, self.embedding.weight).shape)

    # -- words ---------------------------------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.model.device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> str:
        return next((name for name, dtype in DTYPES.items() if dtype == self.model.dtype), str(self.model.dtype))

    def vectors(self, ids: Tensor) -> Tensor:
        """Input embeddings in float32 on the CPU, as the model sees them (BART scales its own): [...] -> [..., H]."""
        embedded: Tensor = self.embedding(ids.to(self.device))
        return embedded.float().cpu()

    def common_pieces(self, population: int) -> Tensor:
        """Ids of the commonest usable pieces, by the rule of `vocabulary.py` [N]; all usable ones when `population` is 0."""
        return torch.tensor(common_pieces(self.tokenizer, self.vocabulary, population))

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
        parts = {"embeddings": cast(Tensor, self.embedding.weight), **dict(self.last_block().named_parameters())}
        for name, tensor in sorted(parts.items()):
            digest.update(name.encode())
            digest.update(tensor.detach().to(torch.bfloat16).contiguous().view(torch.uint8).cpu().numpy().tobytes())
        return digest.hexdigest()[:32]

    def sizes(self) -> dict[str, Any]:
        """The settings that make two models of one type differ; written out, because a config's other keys come and go with versions."""
        keys = """model_type vocab_size d_model hidden_size d_kv d_ff intermediate_size num_layers num_decoder_layers num_hidden_layers
            encoder_layers decoder_layers num_heads num_attention_heads feed_forward_proj relative_attention_num_buckets
            relative_attention_max_distance"""
        config = self.model.config.to_dict()
        return {key: config[key] for key in keys.split() if isinstance(config.get(key), (int, str))}

    # -- rows ----------------------------------------------------------------------------------------------------------------

    def tokenise(self, texts: Sequence[str], budget: int) -> list[list[int]]:
        """Ids of each text with its special tokens, cut to `budget` tokens (the end of sequence stays)."""
        if budget < 2:
            raise UserError(f"The prompt leaves {max(budget, 0)} tokens for the text; raise --max-length or shorten the prompt.")
        return [list(ids) for ids in self.tokenizer(list(texts), truncation=True, max_length=budget)["input_ids"]]

    def collate(self, rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Ids of different lengths as [B, T] and their mask, pads at the end whatever side the tokenizer prefers."""
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self.pad)
        mask = torch.zeros(len(rows), longest, dtype=torch.long)
        for row, (tokens, kept) in enumerate(zip(rows, (len(r) for r in rows), strict=True)):
            ids[row, :kept] = torch.tensor(tokens, dtype=torch.long)
            mask[row, :kept] = 1
        return ids, mask

    def embed(self, ids: Tensor, mask: Tensor) -> Text:
        """[B, T] -> embeddings; pads on the left or inside are moved to the end, so that rows are always [text; pad]."""
        order = mask.argsort(dim=1, descending=True, stable=True)
        ids, mask = ids.gather(1, order).to(self.device), mask.gather(1, order).to(self.device)
        with torch.no_grad():
            return Text(self.embedding(ids), mask)

    def embed_rows(self, rows: Sequence[Sequence[int]]) -> Text:
        return self.embed(*self.collate(rows))

    @property
    def pad(self) -> int:
        pad = getattr(self.tokenizer, "pad_token_id", None)
        return int(pad if pad is not None else self.model.config.pad_token_id or 0)

    @property
    def unknown(self) -> int | None:
        """The id that stands for what the vocabulary lacks, where there is one."""
        return getattr(self.tokenizer, "unk_token_id", None)

    @property
    @abstractmethod
    def longest(self) -> int | None:
        """The most positions the model can take; None where there is no limit."""

    # -- answers -------------------------------------------------------------------------------------------------------------

    @abstractmethod
    def losses(self, prompt: Tensor, text: Text, targets: Sequence[Sequence[int]]) -> Losses:
        """The loss of each row's target after [prompt; text]: prompt [B, P, H]."""

    @abstractmethod
    def scores(self, prompt: Tensor, text: Text, candidates: Sequence[Sequence[int]]) -> Tensor:
        """Summed log-probability of every candidate target, with its end of sequence: [B, C]."""

    @abstractmethod
    def generate(self, prompt: Tensor, text: Text, max_new_tokens: int) -> Tensor:
        """Greedy ids [B, N], through the key-value cache."""

    @abstractmethod
    def tokenise_targets(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each target as the model must produce them, end of sequence included."""

    @abstractmethod
    def last_block(self) -> nn.Module:
        """The block nearest the output; part of the fingerprint."""

    def decode(self, ids: Tensor) -> list[str]:
        decoded: list[str] = self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [text.strip() for text in decoded]

    @contextmanager
    def dropout(self, rate: float) -> Iterator[None]:
        """Inside: the model's own dropout at `rate`, as the papers train; outside: none."""
        if rate == 0:
            yield
            return
        for module in self.model.modules():
            for name in ("p", "dropout", "activation_dropout", "attention_dropout"):
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, rate)
            if hasattr(module, "layerdrop"):
                module.layerdrop = 0.0
        self.model.train()
        try:
            yield
        finally:
            self.model.eval()


def load_backbone(name: str = DEFAULT, dtype: str = "auto", device: str = "auto", trust_remote_code: bool = False) -> Backbone:
    """A backbone by the name of an embedded model, a folder, or a Hugging Face hub id."""
    import transformers

    from .encoder_decoder import EncoderDecoder

    place = _device(device)
    if dtype == "auto":
        dtype = "bf16" if place.type == "cuda" else "fp32"
    if dtype not in DTYPES:
        why = "T5 overflows in fp16" if dtype == "fp16" else "it is not a type we run"
        raise UserError(f"The backbone cannot be loaded as {dtype}, because {why}; choose fp32 or bf16.")
    where = str(EMBEDDED.get(name, name))
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(where, **options)
        if not config.is_encoder_decoder:
            raise UserError(
                f"{name} is a {config.model_type} model; only encoder-decoder models (T5, mT5, FLAN-T5, BART) are supported so far."
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **options)
        with _quiet():
            model = getattr(transformers, EncoderDecoder.auto_class).from_pretrained(where, dtype=DTYPES[dtype], **options)
    except UserError:
        raise
    except Exception as error:  # transformers raises a dozen kinds for a model that is not there, damaged or unknown
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"The model {name!r} cannot be loaded: it must be {', '.join(EMBEDDED)}, a model folder or a hub id ({reason})"
        ) from None
    return EncoderDecoder(model.to(place), tokenizer, name)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError):
        raise UserError(f"There is no device {name!r} here; choose cpu, or auto.") from None
    return torch.device(name)


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers shows a bar for every load; ours are progress bars of work a person waits for."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
