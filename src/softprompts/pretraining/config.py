"""The settings of a pretraining run, and the arithmetic of its lengths."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import UserError

SIZES: dict[str, dict[str, int]] = {
    "tiny": {
        "d_model": 256,
        "d_kv": 32,
        "d_ff": 1024,
        "num_layers": 6,
        "num_decoder_layers": 3,
        "num_heads": 8,
    },
    "mini": {
        "d_model": 384,
        "d_kv": 64,
        "d_ff": 1280,
        "num_layers": 8,
        "num_decoder_layers": 4,
        "num_heads": 6,
    },
    "small": {
        "d_model": 512,
        "d_kv": 64,
        "d_ff": 1024,
        "num_layers": 8,
        "num_decoder_layers": 8,
        "num_heads": 6,
    },
    "base": {
        "d_model": 768,
        "d_kv": 64,
        "d_ff": 2048,
        "num_layers": 12,
        "num_decoder_layers": 12,
        "num_heads": 12,
    },
}
"""tiny and mini are ours; small and base are T5 v1.1's."""

NEW = ("vocabulary", "sentinels", "tokenizer_characters", "size", *SIZES["tiny"], "tie")
"""Settings of a new model and its tokenizer; one to go on from has its own."""

LARGEST = 2**20
"""The largest size of a model that is no slip of the hand."""
OBJECTIVES = ("span", "prefix", "tasks")


@dataclass(frozen=True)
class PretrainConfig:
    """What a model learns from, and how."""

    text: list[str] = field(default_factory=list)
    """Text files, also as .bz2, .xz or .gz, a blank line between documents; several with commas."""

    tasks: list[str] = field(default_factory=list)
    """Files of JSON lines [task, input, output], for the objective tasks."""

    definitions: str | None = None
    """A JSON file, task to instruction; nine of ten inputs begin with theirs."""

    from_model: str | None = None
    """A T5 to go on from, with its tokenizer: t5-tiny, a folder or a hub id (LM adaptation: --from MODEL --objectives prefix=1)."""

    tokenizer: str | None = None
    """A model whose tokenizer to take, by folder or name; none: one is trained on the data."""

    vocabulary: int = 16000
    """Pieces of a tokenizer that is trained, sentinels not counted."""

    sentinels: int = 100
    """Sentinels <extra_id_N> of a tokenizer that is trained."""

    tokenizer_characters: int = 50_000_000
    """Characters of the data that a tokenizer is trained on, drawn by document."""

    size: Literal["tiny", "mini", "small", "base"] = "tiny"
    """The size of a new model; the settings below change parts of it."""

    d_model: int | None = None
    """Width."""

    d_kv: int | None = None
    """Width of an attention head."""

    d_ff: int | None = None
    """Width of a feed-forward layer."""

    num_layers: int | None = None
    """Layers of the encoder."""

    num_decoder_layers: int | None = None
    """Layers of the decoder."""

    num_heads: int | None = None
    """Attention heads."""

    tie: bool = True
    """One matrix for the embeddings and the output, as T5 v1.0; apart, as v1.1."""

    dropout: float = 0.0
    """Dropout while pretraining (T5 v1.1: none)."""

    attention: Literal["eager", "sdpa"] = "eager"
    """How transformers computes attention."""

    objectives: dict[str, float] = field(default_factory=lambda: {"span": 1.0})
    """Shares of a batch, such as span=0.45,prefix=0.2,tasks=0.35."""

    noise: float = 0.15
    """Share of the tokens that span corruption hides."""

    span: float = 3.0
    """Mean length of a hidden span."""

    input_length: int = 512
    """Tokens of an input, end mark included."""

    target_length: int | None = None
    """Tokens of a target; none: what span corruption needs for the input length (114 for 512)."""

    batch_tokens: int = 160_000
    """Tokens of a step, inputs and targets together."""

    microbatches: int = 1
    """Passes that a step is computed in, for less memory."""

    steps: int = 10_000
    """Optimiser steps."""

    tokens: float | None = None
    """Tokens to train on, inputs and targets together, instead of --steps."""

    optimizer: Literal["muon", "adamw"] = "muon"
    """Muon for the matrices inside and AdamW for the rest, or AdamW for all."""

    lr: float = 3e-3
    """The highest learning rate."""

    schedule: Literal["constant", "linear", "cosine", "wsd", "rsqrt"] = "wsd"
    """After the warm-up: constant; to zero in a line or a cosine; constant, then a line (wsd); by the root of the step, as T5 (rsqrt)."""

    warmup: float = 300
    """Warm-up: a number of steps, or below 1 a share of all steps."""

    decay: float = 0.5
    """The share of all steps in which wsd comes down."""

    weight_decay: float = 0.02
    """Weight decay of the matrices inside, times the learning rate."""

    clip: float = 1.0
    """The largest norm of the gradient."""

    z_loss: float = 1e-4
    """Weight of the squared log-normaliser."""

    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    """What is computed in; the weights that learn are fp32. auto: bf16 on a GPU, fp32 on a CPU."""

    device: str = "auto"
    """cpu, cuda, or auto."""

    compile: bool | None = None
    """Compile the model with torch.compile; none: on a GPU."""

    seed: int = 0
    """Seed of the weights and of every batch."""

    held_out: float = 0.005
    """The share of the data that is not learned from: the end of the text, and tasks' examples by lot."""

    evaluate_every: int = 2000
    """Steps between losses on what is held out; they are also taken at the end."""

    checkpoint_every: int = 1000
    """Steps between checkpoints: the most a kill can cost."""

    log_every: int = 50
    """Steps between lines of metrics.jsonl."""

    pause_after: float | None = None
    """Stop after so many seconds, with a checkpoint; the same command goes on."""

    saved: Literal["fp32", "bf16"] = "fp32"
    """The type of the weights in the model's folder."""

    processes: int | None = None
    """Processes that tokenise; none: one per core."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "sentinels", "tokenizer_characters", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers",
                     "num_heads", "microbatches", "steps", "evaluate_every", "checkpoint_every", "log_every", "processes"):  # fmt: skip
            _positive(name, getattr(self, name), 1)
        for name in (
            "vocabulary",
            "sentinels",
            "d_model",
            "d_kv",
            "d_ff",
            "num_layers",
            "num_decoder_layers",
            "num_heads",
        ):
            if (getattr(self, name) or 0) > LARGEST:
                raise UserError(
                    f"{name} is {getattr(self, name):,}; it must be at most {LARGEST:,}."
                )
        for name in ("tokens", "lr", "clip", "pause_after", "span"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise UserError(f"{name} is {value}; it must be a positive number.")
        for name in ("warmup", "weight_decay", "z_loss"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} is {getattr(self, name)}; it must not be negative.")
        for name, low, high in (
            ("dropout", 0, 1),
            ("held_out", 0, 0.5),
            ("decay", 0, 1.001),
            ("noise", 1e-9, 1),
        ):
            if not low <= getattr(self, name) < high:
                raise UserError(f"{name} is {getattr(self, name)}; it must be a share of one.")
        if not 0 <= self.seed < 2**31:
            raise UserError(f"The seed is {self.seed}; it must be from 0 to below 2,147,483,648.")
        self._check_objectives()
        self._check_lengths()

    def _check_objectives(self) -> None:
        unknown = [name for name in self.objectives if name not in OBJECTIVES]
        if unknown:
            raise UserError(
                f"There is no objective {unknown[0]!r}; choose of {', '.join(OBJECTIVES)}."
            )
        if not self.shares:
            raise UserError(
                "No objective has a share of the batch; give one, such as --objectives span=1."
            )
        if any(not 0 <= share < math.inf for share in self.objectives.values()):
            raise UserError("An objective's share must not be negative.")
        if not self.text and self.reads_text:
            raise UserError(
                "The objectives span and prefix learn from text; name files with --text."
            )
        if not self.tasks and "tasks" in self.shares:
            raise UserError("The objective tasks learns from pairs; name files with --tasks.")

    def _check_lengths(self) -> None:
        if self.input_length < 8:
            raise UserError(f"input_length is {self.input_length}; it must be at least 8.")
        needed = span_lengths(self.input_length, self.noise, self.span)[1]
        if self.target_length is not None and self.target_length < (
            needed if "span" in self.shares else 2
        ):
            told = (
                f"span corruption of inputs of {self.input_length} tokens writes {needed}"
                if "span" in self.shares
                else "it is too short"
            )
            raise UserError(
                f"target_length is {self.target_length}, and {told}; give a longer one, or none."
            )
        if "span" in self.shares and not (self.tokenizer or self.from_model):
            self.check_sentinels(self.sentinels, "raise --sentinels")
        row = self.input_length + self.written
        if self.rows < 1:
            raise UserError(
                f"batch_tokens is {self.batch_tokens}, and one row takes {row}; give at least that."
            )
        if self.rows % self.microbatches:
            raise UserError(
                f"A batch of {self.rows} rows cannot be cut into {self.microbatches} equal parts; change --microbatches."
            )
        for name, count in self.rows_of.items():
            if count == 0:
                raise UserError(
                    f"The share of {name} is less than one of {self.rows} rows; raise it, or --batch-tokens."
                )

    def check_sentinels(self, there: int, mend: str) -> None:
        """Every span that is hidden needs one."""
        spans = noise_counts(
            span_lengths(self.input_length, self.noise, self.span)[0], self.noise, self.span
        )[1]
        if spans > there:
            hidden = f"Inputs of {self.input_length} tokens hide {spans} spans"
            raise UserError(
                f"{hidden}, and the tokenizer has {there} sentinels; shorten --input-length, or {mend}."
            )

    @property
    def shares(self) -> dict[str, float]:
        """The objectives that have a share, adding up to 1."""
        total = sum(self.objectives.values())
        return {
            name: self.objectives[name] / total for name in OBJECTIVES if self.objectives.get(name)
        }

    @property
    def reads_text(self) -> bool:
        return bool({"span", "prefix"} & self.shares.keys())

    @property
    def written(self) -> int:
        """Tokens of a target."""
        return self.target_length or span_lengths(self.input_length, self.noise, self.span)[1]

    @property
    def rows(self) -> int:
        return self.batch_tokens // (self.input_length + self.written)

    @property
    def rows_of(self) -> dict[str, int]:
        """Rows of each objective in a batch, the same in every one."""
        exact = {name: share * self.rows for name, share in self.shares.items()}
        counts = {name: int(value + 1e-9) for name, value in exact.items()}
        for name in sorted(exact, key=lambda name: counts[name] - exact[name])[
            : self.rows - sum(counts.values())
        ]:
            counts[name] += 1
        return counts

    @property
    def step_tokens(self) -> int:
        return self.rows * (self.input_length + self.written)

    @property
    def all_steps(self) -> int:
        return math.ceil(self.tokens / self.step_tokens) if self.tokens else self.steps

    @property
    def shape(self) -> dict[str, int]:
        """The sizes of a new model."""
        return {name: getattr(self, name) or value for name, value in SIZES[self.size].items()}

    def plain(self) -> dict[str, Any]:
        """The settings that count."""
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if not (self.from_model and name in NEW)
        }


def _positive(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UserError(f"{name} is {value}; it must be at least {least}.")


def noise_counts(length: int, noise: float, span: float) -> tuple[int, int]:
    """Hidden tokens and hidden spans of a text of `length` tokens (T5's `random_spans_noise_mask`)."""
    hidden = min(max(round(length * noise), 1), length - 1)
    return hidden, max(round(hidden / span), 1)


def span_lengths(input_length: int, noise: float, span: float) -> tuple[int, int]:
    """How long a text may be so that its corrupted input is `input_length` tokens, and how long its target is (`random_spans_helper`)."""

    def lengths(text: int) -> tuple[int, int]:
        hidden, spans = noise_counts(text, noise, span)
        return text - hidden + spans + 1, hidden + spans + 1

    text = 2
    while lengths(text + 1)[0] <= input_length:
        text += 1
    if (
        lengths(text)[0] != input_length
        or noise_counts(text, noise, span)[1] > text - noise_counts(text, noise, span)[0]
    ):
        raise UserError(
            f"No text corrupts to {input_length} tokens with noise {noise} in spans of {span}; change one of the three."
        )
    return text, lengths(text)[1]
