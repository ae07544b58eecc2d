"""The settings of a pretraining run, and the lengths and counts that follow from them."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from ..config import Settings, option
from ..errors import UserError, choices, setting

DIMENSIONS = ("d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers", "num_heads")
SIZES: dict[str, dict[str, int]] = {
    name: dict(zip(DIMENSIONS, numbers, strict=True))
    for name, numbers in {
        "tiny": (256, 32, 1024, 6, 3, 8),
        "mini": (384, 64, 1280, 8, 4, 6),
        "small": (512, 64, 1024, 8, 8, 6),
        "base": (768, 64, 2048, 12, 12, 12),
    }.items()
}
"""tiny and mini are ours; small and base are T5 v1.1's."""

NEW_MODEL_SETTINGS = (
    *("vocabulary", "sentinels", "tokenizer_characters", "size", *DIMENSIONS, "tie"),
)
"""Settings of a new model and its tokenizer; a model that is trained further has its own."""

MAX_DIMENSION = 2**20
"""Anything larger must be a typo."""
OBJECTIVES = ("span", "prefix", "tasks")


@dataclass(frozen=True)
class PretrainConfig(Settings):
    """What a model learns from, and how."""

    text: list[str] = field(default_factory=list)
    """Text files, plain or .bz2, .xz, .gz, documents separated by blank lines;
    several separated by commas."""

    tasks: list[str] = field(default_factory=list)
    """JSON-lines files with rows [task, input, output], for the objective 'tasks'."""

    definitions: str | None = None
    """A JSON file that maps tasks to instructions; nine in ten inputs start with theirs."""

    from_model: str | None = None
    """A T5 to train further, with its tokenizer: t5-tiny, a folder or a Hub id
    (LM adaptation: with the objective prefix=1)."""

    tokenizer: str | None = None
    """Use the tokenizer of this model (folder or name) instead of training one on the data."""

    vocabulary: int = option(16000, minimum=1, maximum=MAX_DIMENSION)
    """Vocabulary size of a newly trained tokenizer, not counting sentinels."""

    sentinels: int = option(100, minimum=1, maximum=MAX_DIMENSION)
    """Sentinels <extra_id_N> of a newly trained tokenizer."""

    tokenizer_characters: int = option(50_000_000, minimum=1)
    """Characters to train a tokenizer on, sampled by document."""

    size: Literal["tiny", "mini", "small", "base"] = "tiny"
    """Size of a new model; the settings below override parts of it."""

    d_model: int | None = option(None, minimum=1, maximum=MAX_DIMENSION)
    """Hidden size."""

    d_kv: int | None = option(None, minimum=1, maximum=MAX_DIMENSION)
    """Size of an attention head."""

    d_ff: int | None = option(None, minimum=1, maximum=MAX_DIMENSION)
    """Size of the feed-forward layers."""

    num_layers: int | None = option(None, minimum=1, maximum=MAX_DIMENSION)
    """Encoder layers."""

    num_decoder_layers: int | None = option(None, minimum=1, maximum=MAX_DIMENSION)
    """Decoder layers."""

    num_heads: int | None = option(None, minimum=1, maximum=MAX_DIMENSION)
    """Attention heads."""

    tie: bool = True
    """Share one matrix between embeddings and output, as T5 v1.0 does; v1.1 does not."""

    dropout: float = option(0.0, minimum=0, exclusiveMaximum=1)
    """Dropout during pretraining (T5 v1.1: none)."""

    attention: Literal["eager", "sdpa"] = "eager"
    """Attention implementation of transformers."""

    objectives: dict[str, float] = field(default_factory=lambda: {"span": 1.0})
    """Shares of each batch, such as span=0.45,prefix=0.2,tasks=0.35."""

    noise: float = option(0.15, minimum=1e-9, exclusiveMaximum=1)
    """Fraction of tokens that span corruption masks."""

    span: float = option(3.0, exclusiveMinimum=0)
    """Mean length of a masked span."""

    input_length: int = option(512, minimum=8)
    """Tokens of an input, including the end-of-sequence token."""

    target_length: int | None = None
    """Tokens of a target (default: what span corruption needs for its inputs, 114 for 512)."""

    batch_tokens: int = 160_000
    """Tokens per step, inputs and targets together."""

    microbatches: int = option(1, minimum=1)
    """Split each step into this many passes, to save memory."""

    steps: int = option(10_000, minimum=1)
    """Optimiser steps."""

    tokens: float | None = option(None, exclusiveMinimum=0)
    """Train on this many tokens, inputs and targets together, instead of a number of steps."""

    optimizer: Literal["muon", "adamw"] = "muon"
    """muon: Muon for the layers' weight matrices, AdamW for the rest; adamw: AdamW for all."""

    lr: float = option(3e-3, exclusiveMinimum=0)
    """Peak learning rate."""

    schedule: Literal["constant", "linear", "cosine", "wsd", "rsqrt"] = "wsd"
    """Learning rate after the warm-up: constant; linear or cosine decay to zero; wsd: constant,
    then linear decay; rsqrt: inverse square root of the step, as in T5."""

    warmup: float = option(300, minimum=0)
    """Warm-up steps; below 1, a fraction of all steps."""

    decay: float = option(0.5, minimum=0, maximum=1)
    """Fraction of all steps in which wsd decays."""

    weight_decay: float = option(0.02, minimum=0)
    """Weight decay of the layers' matrices, multiplied by the learning rate."""

    clip: float = option(1.0, exclusiveMinimum=0)
    """Maximum gradient norm."""

    z_loss: float = option(1e-4, minimum=0)
    """Weight of the z-loss, the squared log of the softmax normaliser."""

    dtype: Literal["auto", "bf16", "fp32"] = "auto"
    """Precision of the computation; weights stay fp32. auto: bf16 on a GPU, fp32 on a CPU."""

    device: str = "auto"
    """cpu, cuda, or auto."""

    compile: bool | None = None
    """Compile the model with torch.compile (default: on a GPU)."""

    seed: int = option(0, minimum=0, exclusiveMaximum=2**31)
    """Seed of the weights and of every batch."""

    held_out: float = option(0.005, minimum=0, exclusiveMaximum=0.5)
    """Fraction of the data to hold out: the end of the text, and a random sample of the tasks'
    examples."""

    evaluate_every: int = option(2000, minimum=1)
    """Steps between evaluations on the held-out data; there is always one at the end."""

    checkpoint_every: int = option(1000, minimum=1)
    """Steps between checkpoints: an interruption loses at most this many."""

    log_every: int = option(50, minimum=1)
    """Steps between lines of metrics.jsonl."""

    pause_after: float | None = option(None, exclusiveMinimum=0)
    """Save a checkpoint and stop after this many seconds; the same command resumes."""

    saved: Literal["fp32", "bf16"] = "fp32"
    """Precision of the saved weights."""

    processes: int | None = option(None, minimum=1)
    """Processes that tokenise (default: one per core)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_objectives()
        self._check_lengths()

    def _check_objectives(self) -> None:
        if unknown := [name for name in self.objectives if name not in OBJECTIVES]:
            raise UserError(
                f"There is no objective {unknown[0]!r}; {choices(unknown[0], OBJECTIVES)}"
            )
        if not self.shares:
            raise UserError(
                "No objective has a share of the batch; give one, such as "
                f"{setting('objectives', 'span=1')}."
            )
        if any(not 0 <= share < math.inf for share in self.objectives.values()):
            raise UserError("An objective's share must not be negative.")
        if not self.text and self.reads_text:
            raise UserError(
                f"The objectives span and prefix need text; name files with {setting('text')}."
            )
        if not self.tasks and "tasks" in self.shares:
            raise UserError(
                f"The objective tasks needs examples; name files with {setting('tasks')}."
            )

    def _check_lengths(self) -> None:
        with_span = "span" in self.shares
        needed = span_lengths(self.input_length, self.noise, self.span)[1]
        shortest = needed if with_span else 2
        if self.target_length is not None and self.target_length < shortest:
            raise UserError(
                f"{setting('target_length')} is {self.target_length}, and inputs of "
                f"{self.input_length} tokens need at least {shortest}; raise it, or leave it out."
            )
        if with_span and not (self.tokenizer or self.from_model):
            self.check_sentinels(self.sentinels, f"raise {setting('sentinels')}")
        if self.rows < 1:
            raise UserError(
                f"{setting('batch_tokens')} is {self.batch_tokens}, and one row takes "
                f"{self.row_tokens}; it must be at least that."
            )
        if self.rows % self.microbatches:
            raise UserError(
                f"A batch of {self.rows} rows cannot be split into {self.microbatches} equal "
                f"parts; change {setting('microbatches')}."
            )
        if without := [name for name, count in self.rows_by_objective.items() if count == 0]:
            raise UserError(
                f"The share of {without[0]} is less than one of {self.rows} rows; raise it, or "
                f"{setting('batch_tokens')}."
            )

    def check_sentinels(self, available: int, advice: str) -> None:
        """Every masked span needs its own sentinel."""
        text, _ = span_lengths(self.input_length, self.noise, self.span)
        _, spans = noise_counts(text, self.noise, self.span)
        if spans > available:
            raise UserError(
                f"Inputs of {self.input_length} tokens mask {spans} spans, and the tokenizer has "
                f"{available} sentinels; lower {setting('input_length')}, or {advice}."
            )

    @property
    def shares(self) -> dict[str, float]:
        """The objectives in use and their shares, which add up to 1."""
        total = sum(self.objectives.values())
        return {
            name: self.objectives[name] / total for name in OBJECTIVES if self.objectives.get(name)
        }

    @property
    def reads_text(self) -> bool:
        return bool({"span", "prefix"} & self.shares.keys())

    @property
    def target_tokens(self) -> int:
        """Tokens of a target: `target_length`, or what span corruption needs."""
        return self.target_length or span_lengths(self.input_length, self.noise, self.span)[1]

    @property
    def row_tokens(self) -> int:
        return self.input_length + self.target_tokens

    @property
    def rows(self) -> int:
        """Rows of a batch."""
        return self.batch_tokens // self.row_tokens

    @property
    def rows_by_objective(self) -> dict[str, int]:
        """How the rows of a batch are divided, by largest remainder; the same in every batch."""
        exact = {name: share * self.rows for name, share in self.shares.items()}
        counts = {name: int(value + 1e-9) for name, value in exact.items()}
        left = self.rows - sum(counts.values())
        for name in sorted(exact, key=lambda name: counts[name] - exact[name])[:left]:
            counts[name] += 1
        return counts

    @property
    def step_tokens(self) -> int:
        return self.rows * self.row_tokens

    @property
    def total_steps(self) -> int:
        return math.ceil(self.tokens / self.step_tokens) if self.tokens else self.steps

    @property
    def dimensions(self) -> dict[str, int]:
        return {name: getattr(self, name) or value for name, value in SIZES[self.size].items()}

    def effective(self) -> dict[str, Any]:
        """The settings that have an effect: those of a new model only if there is one."""
        return {
            name: value
            for name, value in dataclasses.asdict(self).items()
            if not (self.from_model and name in NEW_MODEL_SETTINGS)
        }


def noise_counts(length: int, noise: float, span: float) -> tuple[int, int]:
    """Masked tokens and masked spans in `length` tokens (T5's `random_spans_noise_mask`)."""
    masked = min(max(round(length * noise), 1), length - 1)
    return masked, max(round(masked / span), 1)


def span_lengths(input_length: int, noise: float, span: float) -> tuple[int, int]:
    """Tokens of text that corrupt to an input of `input_length` tokens, and of its target
    (T5's `random_spans_helper`)."""

    def lengths(text: int) -> tuple[int, int]:
        masked, spans = noise_counts(text, noise, span)
        return text - masked + spans + 1, masked + spans + 1

    text = 2
    while lengths(text + 1)[0] <= input_length:
        text += 1
    masked, spans = noise_counts(text, noise, span)
    if lengths(text)[0] != input_length or spans > text - masked:
        raise UserError(
            f"No text corrupts to {input_length} tokens with noise {noise} in spans of {span}; "
            "change one of the three."
        )
    return text, lengths(text)[1]
