"""How a prompt is trained, as settings."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from .kinds import optimizers
from .schema import Choice, Settings, option


@dataclass(frozen=True)
class TuningConfig(Settings):
    """Optimiser, schedule, batches, evaluation."""

    section: ClassVar[str] = "tuning"

    trains: Literal["prompt", "model", "nothing"] = "prompt"
    """What is trained: the prompt; the whole model instead (model tuning, saved as model/ in the
    run's folder); or nothing (hand-written prompts)."""

    optimizer: Choice = option(factory=lambda: Choice("adamw"), table=optimizers, brief=True)
    """AdamW, or Adafactor exactly as T5X runs it for prompt tuning."""

    lr: float = option(0.3, exclusiveMinimum=0)
    """Learning rate, relative to the scale of the backbone's embeddings, unless prompt.unit is
    set."""

    shape_lr: float | None = option(0.003, exclusiveMinimum=0)
    """Learning rate of the shape's network; none: the same as lr."""

    route_lr: float | None = option(0.01, exclusiveMinimum=0)
    """Learning rate of the router; none: the same as lr."""

    head_lr: float | None = option(0.01, exclusiveMinimum=0)
    """Learning rate of an encoder-only model's linear head; none: the same as lr."""

    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate decays after warm-up: not at all, linearly or by a cosine to zero."""

    warmup: float = option(0.05, minimum=0)
    """Warm-up: a number of steps, or, below 1, a fraction of all steps."""

    weight_decay: float = option(1e-5, minimum=0)
    """Weight decay; multiplied by the learning rate in AdamW, not in Adafactor."""

    start_step: int = option(0, minimum=0)
    """The step at which Adafactor's second moment starts counting; the papers' runs continue from
    1,100,000."""

    clip: float | None = option(None, exclusiveMinimum=0)
    """Maximum gradient norm of a run; default: no clipping."""

    steps: int = option(400, minimum=1)
    """Optimiser steps."""

    epochs: float | None = option(None, exclusiveMinimum=0)
    """Passes over the training data, instead of steps."""

    batch_size: int = option(16, minimum=1)
    """Rows per batch of a run."""

    accumulate: int = option(1, minimum=1)
    """Batches in one optimiser step."""

    dropout: float = option(0.0, minimum=0, exclusiveMaximum=1)
    """Dropout inside the frozen model during training."""

    recompute: bool = False
    """Recompute the frozen model's activations in the backward pass: less memory, more time."""

    balance: bool = False
    """Weight each training row by how rare its class is, so that all classes count the same."""

    z_loss: float = option(0.0, minimum=0)
    """Weight of the squared log-normaliser (T5X: 1e-4)."""

    max_length: int | None = option(None, minimum=1)
    """Maximum number of tokens, prompt included; longer texts are truncated. Default: 512, or the
    model's limit if that is smaller."""

    text_length: int | None = option(None, minimum=1)
    """Maximum number of tokens of a text, without the prompt; max_length, if set, overrides it."""

    chat: bool | None = None
    """Put each text into the chat template of a decoder-only model, as the user's turn, and use
    the assistant's turn as the answer; default: on for instruction-tuned models
    (docs/backbones.md)."""

    evaluate_every: int = option(100, minimum=1)
    """Steps between evaluations."""

    checkpoint_every: int = option(50, minimum=1)
    """Steps between checkpoints: an interruption loses at most this many."""

    patience: int | None = option(None, minimum=1)
    """Stop after this many evaluations without improvement."""

    embed_at: int = option(10_000, minimum=1)
    """The step whose prompt is the task embedding (SPoT: 10,000); in a shorter run, the last."""

    scoring: Literal["auto", "generate", "labels"] = "auto"
    """Answer by greedy generation, or by label scoring (the label with the highest
    log-probability); auto: label scoring for your own labelled data; for named tasks, generation if
    the model can generate."""

    baselines: bool = True
    """Also train a bag-of-words classifier on the same rows, for comparison (cached)."""
