"""What the worker is asked to do, and answers while they are generated."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch

from ..backbone import Backbone
from .prompt_store import LoadedPrompt
from .requests import Classified, Piece, Sampling, TokenLogprob

Message = Classified | Piece | float | Exception | None
"""A result, a piece of it, or why there is none; None ends the pieces."""

UNFINISHED = "\ufffd"
"""What a tokenizer decodes the first bytes of a character to."""


def ignore(message: Message) -> None:
    """The reply of a job that nobody waits for yet."""


def seconds_left(deadline: float | None) -> float | None:
    return None if deadline is None else deadline - time.monotonic()


@dataclass(eq=False)
class Job:
    """A row for a prompt. Its label is chosen, unless it has a target or is to be generated."""

    prompt: LoadedPrompt
    text: str
    tenant: str
    priority: int
    deadline: float | None
    """In the seconds of `time.monotonic`."""
    reply: Callable[[Message], None]
    """Called in the event loop."""
    target: list[int] | None = None
    """The ids whose log-probability is asked for."""
    sampling: Sampling | None = None
    row: list[int] = field(default_factory=list)
    """The ids of its text."""
    done: bool = False
    unfinished: int = 0
    """Answers that are not complete."""

    @property
    def tokens(self) -> int:
        """Of prompt and text."""
        return self.prompt.tuned.prompt.config.length + len(self.row)

    @property
    def size(self) -> int:
        """Tokens that a pass takes for it: of prompt, text and target."""
        return self.tokens + len(self.target or ())

    @property
    def max_tokens(self) -> int:
        if self.sampling is None or self.sampling.max_tokens is None:
            return self.prompt.predictor.answer_length
        return self.sampling.max_tokens

    @property
    def candidates(self) -> Sequence[Sequence[int]]:
        return self.prompt.predictor.candidates if self.target is None else [self.target]

    def start(self) -> "list[Answer]":
        """Its answers, which are empty."""
        assert self.sampling is not None
        self.unfinished = self.sampling.n
        return [Answer(self, self.sampling, index) for index in range(self.sampling.n)]


class Answer:
    def __init__(self, job: Job, sampling: Sampling, index: int) -> None:
        self.job, self.sampling, self.index = job, sampling, index
        backbone = job.prompt.predictor.backbone
        self.backbone, self.ends, self.limit = backbone, backbone.eos_ids, job.max_tokens
        self.ids: list[int] = []
        self.finish_reason: str | None = None
        self._sent, self._tokens = "", 0
        self._logprobs: list[TokenLogprob] = []

    @cached_property
    def noise(self) -> random.Random:
        """Its own, whatever else is in the batch."""
        return random.Random(f"{self.sampling.seed}/{self.index}")

    def add(self, token: int, logprob: TokenLogprob | None = None) -> Piece | None:
        """Append a token; returns the next piece if there is one."""
        self._tokens += 1
        if token in self.ends:
            self.finish_reason = "stop"
        else:
            self.ids.append(token)
            if logprob is not None:
                self._logprobs.append(logprob)
            if len(self.ids) == self.limit:
                self.finish_reason = "length"
        if not (self.finish_reason or self.sampling.stream or self.sampling.stop):
            return None
        text = decoded(self.backbone, self.ids)
        found = [text.find(stop) for stop in self.sampling.stop if stop in text]
        if found:
            self.finish_reason, text = "stop", text[: min(found)].rstrip()
        elif self.finish_reason is None:
            text = self._without_unfinished(text)
        return self._piece(text)

    def _without_unfinished(self, text: str) -> str:
        """The text without an end that may still change, or be the start of a stop."""
        text = text.rstrip(UNFINISHED)
        for size in range(max(map(len, self.sampling.stop), default=1) - 1, 0, -1):
            if any(text.endswith(stop[:size]) for stop in self.sampling.stop if size < len(stop)):
                return text[:-size].rstrip()
        return text

    def _piece(self, text: str) -> Piece | None:
        if self.finish_reason is None and (
            not self.sampling.stream or len(text) <= len(self._sent)
        ):
            return None
        piece = Piece(
            self.index,
            text[len(self._sent) :],
            self._tokens,
            tuple(self._logprobs),
            self.finish_reason,
            self.job.tokens,
        )
        self._sent, self._tokens, self._logprobs = text, 0, []
        return piece


def decoded(backbone: Backbone, ids: Sequence[int]) -> str:
    return backbone.decode(torch.tensor([list(ids)], dtype=torch.long))[0] if ids else ""
