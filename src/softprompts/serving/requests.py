"""What is asked of an `AsyncEngine`, what it answers, and how it refuses. No torch here."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from ..artifacts.card import Card

MIB = 2**20
MOST_LOGPROBS = 20
UNKNOWN_PROMPT, TOO_MANY = "model_not_found", "too_many_inputs"
"""The codes of the HTTP errors that our client handles."""


@dataclass(frozen=True)
class Limits:
    """The limits of an engine."""

    queue: int = 1024
    """Rows that may wait; one more is refused with `QueueFull`."""
    batch_rows: int = 256
    """Rows of one forward pass."""
    batch_tokens: int = 16384
    """Tokens of one forward pass, prompts and pads included."""
    latency: float = 0.5
    """Target for the seconds of one forward pass, so that no request waits long."""
    slots: int = 128
    """Answers that are generated at a time."""
    max_tokens: int = 512
    """Tokens of a generated answer, or of a target in a search."""
    max_choices: int = 16
    """Answers to one question (`n`)."""
    max_characters: int = 100_000
    """Characters of a question, or of a target in a search."""
    truncate: bool = True
    """Truncate long texts as `predict` does; otherwise they are refused with `TooLong`."""
    timeout: float | None = 60.0
    """Seconds after which a request times out, unless it sets its own timeout."""
    device_bytes: int = 256 * MIB
    """Prompt vectors on the model's device."""
    memory_bytes: int = 1024 * MIB
    """Loaded prompts in CPU memory."""
    prefix_bytes: int = 1024 * MIB
    """Keys and values of prompts that a decoder-only model has read."""
    cache_bytes: int = 8192 * MIB
    """Keys and values of the answers that are being generated."""

    def check_length(self, text: str, what: str) -> None:
        if len(text) > self.max_characters:
            raise TooLong(
                f"{what} has {len(text):,} characters; at most {self.max_characters:,} are allowed."
            )


@dataclass(frozen=True)
class Sampling:
    """How an answer is generated; by default, greedily, as `predict` does."""

    max_tokens: int | None = None
    """None: as many as `predict` allows the prompt."""
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int | None = None
    """The same seed gives the same answer, whatever else is in the batch."""
    stop: str | Sequence[str] = ()
    """Texts, or one text, that end an answer; they are not part of it."""
    n: int = 1
    """Answers to the question."""
    logprobs: int | None = None
    """Report the log-probability of each token, and this many of the most probable ones."""
    stream: bool = True
    """Whether pieces come as they are generated; otherwise each answer is one piece."""


@dataclass(frozen=True)
class TokenLogprob:
    """A generated token, its log-probability, and those of the most probable tokens."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Piece:
    """The next piece of an answer."""

    index: int
    """Which of the n answers it continues."""
    text: str
    tokens: int
    """Tokens generated since the answer's last piece, the end of sequence included."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """Of these tokens but the end of sequence, if they were asked for."""
    finish_reason: str | None = None
    """`stop` or `length` with an answer's last piece; None before."""
    prompt_tokens: int = 0
    """Tokens of the question, and vectors of the prompt."""


@dataclass(frozen=True)
class Classified:
    """The label that a prompt chooses."""

    label: str
    probabilities: dict[str, float]
    """Of all its labels, in their order; they sum to 1."""
    route: tuple[float, ...] | None
    """The router's probability of each prompt of a mixture; None for a single prompt."""
    prompt_tokens: int
    """Tokens of the question, and vectors of the prompt."""


@dataclass(frozen=True)
class ServedPrompt:
    """A prompt that the engine serves."""

    name: str
    card: "Card"
    created: int
    """When its card was written, in seconds since 1970."""

    @property
    def labels(self) -> list[str]:
        """Empty if it generates free text."""
        return [] if self.card.task.form is None else list(self.card.task.form.labels)


@dataclass(frozen=True)
class Fit:
    """How well a prompt predicts examples."""

    name: str
    score: float
    """The mean log-probability of a target's tokens; closer to 0 is better."""


@dataclass
class PromptCounts:
    """What one prompt was asked."""

    requests: int = 0
    classified: int = 0
    generated: int = 0
    """Answers generated."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass(frozen=True)
class Stats:
    """The state of an engine, and what it has done since it started; `metrics.py` has the meaning
    of each number."""

    waiting: int
    decoding: int
    passes: int
    rows: int
    last_batch: int
    requests: int
    refused: int
    cancelled: int
    expired: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    known: int
    in_memory: int
    on_device: int
    loads: int
    device_hits: int
    device_misses: int
    prefixes: int
    prefix_hits: int
    prefix_misses: int
    prompts: Mapping[str, PromptCounts] = field(default_factory=dict)
    """By name."""


class RequestError(UserError):
    """A request that the engine refuses or cancels."""


class BadRequest(RequestError):  # noqa: N818
    """An invalid setting or question."""


class UnknownPrompt(RequestError):  # noqa: N818
    """No prompt has this name, or it was removed."""


class BrokenPrompt(RequestError):  # noqa: N818
    """The prompt's files cannot be used."""


class NotAClassifier(RequestError):  # noqa: N818
    """The prompt has no labels to choose among."""


class TooLong(RequestError):  # noqa: N818
    """The question, or the answer asked for, is longer than the limits allow."""


class DeadlineExceeded(RequestError):  # noqa: N818
    """The request timed out."""


class Closed(RequestError):  # noqa: N818
    """The engine accepts no requests: it is shutting down, or was never started."""


class Stopped(RequestError):  # noqa: N818
    """The engine's thread ended because of an error."""


class QueueFull(RequestError):  # noqa: N818
    """The queue is full."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which to try again."""
