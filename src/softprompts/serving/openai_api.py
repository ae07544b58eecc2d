"""The requests of the HTTP server, as OpenAI's and vLLM's clients write them.

A parameter that would change the answer and is not supported is an error, never ignored; so is a
misspelled one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..backbone import Conversation
from ..errors import closest
from .requests import MOST_LOGPROBS, BadRequest, Sampling

NAME_LIMIT = 300
"""Characters of a prompt's name."""
Question = str | dict[str, Any]
"""A text, or a row with the columns of the prompt's task."""

IGNORED = {
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("prompt_cache_retention", "parallel_tool_calls", "reasoning_effort", "verbosity"),
}
"""Parameters of OpenAI's that change no answer here."""
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "dimensions": (),
}
"""Parameters that are refused, and their values that mean nothing is asked for."""
_TEXTS = "a text, an object with columns, or a list of these"
UNIONS = {
    "prompt": _TEXTS,
    "input": _TEXTS,
    "stop": "a text, or a list of texts",
    "content": "a text, or a list of parts of the type text",
}
"""What parameters with values of several types may be."""


class Body(BaseModel):
    """A request that names a prompt."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, strict=True)

    model: str = Field(min_length=1, max_length=NAME_LIMIT, description="a prompt's name")
    timeout: float | None = Field(
        None, gt=0, description="seconds after which to give up; at most the server's own limit"
    )

    @model_validator(mode="after")
    def _check_parameters(self) -> "Body":
        for name, value in (self.model_extra or {}).items():
            if name in IGNORED or value is None or value in UNSUPPORTED.get(name, ()):
                continue
            if name in UNSUPPORTED:
                raise BadRequest(f"The parameter {name} is not supported; leave it out.")
            known = type(self).model_fields
            similar = closest(name, known)
            hint = f"did you mean {similar}?" if similar else f"there are {', '.join(known)}."
            raise BadRequest(f"There is no parameter {name[:NAME_LIMIT]!r}; {hint}")
        return self


class Ask(Body):
    priority: int = Field(
        0, ge=-(2**31), lt=2**31, description="lower values are answered first, as on vLLM"
    )


class StreamOptions(BaseModel):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Generation(Ask):
    """What completions and chat have in common. Without a temperature, answers are greedy."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    n: int | None = Field(None, ge=1, lt=2**31)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(
        None, ge=1, lt=2**31, description="default: as many as the prompt's task needs"
    )
    scoring: Literal["generate", "labels"] | None = Field(
        None, description="generate the answer, or choose a label (default: as tuned)"
    )

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    def sampling(self, logprobs: int | None, max_tokens: int | None) -> Sampling:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if self.stream_options is not None and not self.stream:
            raise BadRequest("stream_options needs stream to be true.")
        if len(stop) > 16 or not all(0 < len(text) <= 1000 for text in stop):
            raise BadRequest("stop must be up to 16 texts of 1 to 1,000 characters.")
        return Sampling(
            max_tokens=max_tokens,
            temperature=self.temperature or 0.0,
            top_p=1.0 if self.top_p is None else self.top_p,
            seed=self.seed,
            stop=stop,
            n=self.n or 1,
            logprobs=logprobs,
            stream=bool(self.stream),
        )


class CompletionRequest(Generation):
    """`POST /v1/completions`: texts, or rows with the columns of the prompt's task."""

    kind: ClassVar[str] = "text_completion"

    prompt: Question | list[Question]
    logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)

    def questions(self) -> list[Question]:
        return self.prompt if isinstance(self.prompt, list) else [self.prompt]

    def as_sampling(self) -> Sampling:
        return self.sampling(self.logprobs, self.max_tokens)


class TextPart(BaseModel):
    type: Literal["text"]
    text: str


class Message(BaseModel):
    role: str
    content: str | list[TextPart] | None = None
    tool_calls: list[Any] | None = None

    def plain(self) -> dict[str, str]:
        """As a chat template reads it."""
        role = "system" if self.role == "developer" else self.role
        if role not in ("system", "user", "assistant") or self.tool_calls:
            raise BadRequest(
                "Messages have the roles system, developer, user and assistant; tools and "
                f"functions are not supported (role {self.role[:NAME_LIMIT]!r})."
            )
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise BadRequest(f"A message of the role {role} is not valid Unicode text.")
        return {"role": role, "content": text}


class ChatRequest(Generation):
    """`POST /v1/chat/completions`: a message of the user, or a conversation that ends with one."""

    kind: ClassVar[str] = "chat.completion"

    messages: list[Message]
    max_completion_tokens: int | None = Field(None, ge=1, lt=2**31)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MOST_LOGPROBS)

    def questions(self) -> list[Question]:
        """The conversation, or its only message."""
        messages = [message.plain() for message in self.messages]
        if not messages or messages[-1]["role"] != "user":
            raise BadRequest("The last message must have the role user; the answer follows it.")
        return [messages[0]["content"] if len(messages) == 1 else Conversation.of(messages)]

    def as_sampling(self) -> Sampling:
        if self.top_logprobs is not None and not self.logprobs:
            raise BadRequest("top_logprobs needs logprobs to be true.")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.sampling(logprobs, self.max_completion_tokens or self.max_tokens)


class ClassifyRequest(Ask):
    """`POST /v1/classify`, as vLLM has it: texts, or rows, to choose labels for."""

    input: Question | list[Question]

    def questions(self) -> list[Question]:
        return self.input if isinstance(self.input, list) else [self.input]


class EmbeddingRequest(Body):
    """`POST /v1/embeddings`: the task embeddings of prompts by name, or that of labelled rows.

    `model` is the backbone; embeddings of one backbone can be compared.
    """

    input: str | list[str] | list[dict[str, Any]]
    encoding_format: Literal["float", "base64"] | None = None


class SearchRequest(BaseModel):
    """`POST /v1/search`: which prompts predict these labelled rows best?"""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    rows: list[dict[str, Any]]
    top: int = Field(5, ge=1, le=1000)
    timeout: float | None = Field(None, gt=0)


def in_words(errors: Sequence[Mapping[str, Any]]) -> str:
    """Pydantic's first error as a sentence."""
    error = errors[0]
    where = [str(part) for part in error.get("loc", ()) if part != "body"]
    if error.get("type") == "json_invalid":
        return "The body is not valid JSON."
    if not where:
        return "The body must be a JSON object, sent with Content-Type: application/json."
    for index, name in enumerate(where[:-1]):
        if name in UNIONS:
            return f"{'.'.join(where[: index + 1])} must be {UNIONS[name]}."
    if error.get("type") == "missing":
        return f"The parameter {'.'.join(where)} is missing."
    if error.get("type") == "extra_forbidden":
        return f"There is no parameter {where[-1][:NAME_LIMIT]!r}."
    message = str(error.get("msg", "it is invalid")).removeprefix("Value error, ")
    return f"{'.'.join(where)}: {message[:1].lower()}{message[1:].rstrip('.')}."
