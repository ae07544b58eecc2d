"""The server's answers, in the shapes of OpenAI's and vLLM's servers."""

import base64
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from .openai_api import ChatRequest, CompletionRequest
from .requests import Classified, Piece, ServedPrompt, TokenLogprob

Json = dict[str, Any]


def usage(prompt_tokens: int, completion_tokens: int = 0) -> Json:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


class Reply:
    """An answer to a completion or chat request, made of pieces: whole, or in chunks."""

    def __init__(
        self, request: CompletionRequest | ChatRequest, request_id: str, fingerprint: str
    ) -> None:
        self.chat = isinstance(request, ChatRequest)
        self.with_usage = request.with_usage
        self.head = {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{request_id}",
            "object": request.kind,
            "created": int(time.time()),
            "model": request.model,
            "system_fingerprint": f"fp_{fingerprint[:10]}",
        }
        self.with_logprobs = request.as_sampling().logprobs is not None
        self.prompt_tokens: dict[int, int] = {}
        self.completion_tokens = 0
        self._texts: dict[int, str] = defaultdict(str)
        self._offsets: dict[int, int] = defaultdict(int)
        self._logprobs: dict[int, list[Json]] = defaultdict(list)
        self._reasons: dict[int, str | None] = {}

    def add(self, number: int, piece: Piece) -> None:
        """Count and keep a piece of the answer to question `number`."""
        self.prompt_tokens[number] = max(self.prompt_tokens.get(number, 0), piece.prompt_tokens)
        self.completion_tokens += piece.tokens
        self._texts[piece.index] += piece.text
        self._logprobs[piece.index] += [self._logprob(piece.index, t) for t in piece.logprobs]
        self._reasons[piece.index] = piece.finish_reason

    @property
    def texts(self) -> list[str]:
        return [self._texts[index] for index in sorted(self._texts)]

    def whole(self) -> Json:
        choices = [
            self._choice(index, self._texts[index], self._logprobs[index], self._reasons[index])
            for index in sorted(self._texts)
        ]
        return {**self.head, "choices": choices, "usage": self.usage()}

    def chunk(self, number: int, piece: Piece) -> Json:
        """The next chunk of a stream; the piece is added."""
        first, known = piece.index not in self._texts, len(self._logprobs[piece.index])
        self.add(number, piece)
        logprobs = self._logprobs[piece.index][known:]
        choice = self._choice(piece.index, piece.text, logprobs, piece.finish_reason, first)
        return {**self._chunk_head(), "choices": [choice]}

    def last_chunk(self) -> Json:
        """The usage, which has a chunk of its own."""
        return {**self._chunk_head(), "choices": [], "usage": self.usage()}

    def usage(self) -> Json:
        return usage(sum(self.prompt_tokens.values()), self.completion_tokens)

    def _chunk_head(self) -> Json:
        chunk = {"object": "chat.completion.chunk"} if self.chat else {}
        return {**self.head, **chunk, **({"usage": None} if self.with_usage else {})}

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: Sequence[Json],
        reason: str | None,
        first: bool | None = None,
    ) -> Json:
        """`first`: whether a chunk is the first of its choice; None: it is whole."""
        content: Json
        if not self.chat:
            content = {"text": text}
        elif first is None:
            content = {"message": {"role": "assistant", "content": text, "refusal": None}}
        else:
            content = {"delta": {**({"role": "assistant"} if first else {}), "content": text}}
        logs = self._logprobs_of(logprobs) if self.with_logprobs else None
        return {"index": index, **content, "logprobs": logs, "finish_reason": reason}

    def _logprob(self, index: int, token: TokenLogprob) -> Json:
        if self.chat:
            top = [_chat_token(*pair) for pair in token.top]
            return {**_chat_token(token.token, token.logprob), "top_logprobs": top}
        offset = self._offsets[index]
        self._offsets[index] += len(token.token if offset else token.token.lstrip())
        return {
            "tokens": token.token,
            "token_logprobs": token.logprob,
            "top_logprobs": {**dict(token.top), token.token: token.logprob},
            "text_offset": offset,
        }

    def _logprobs_of(self, tokens: Sequence[Json]) -> Json:
        if self.chat:
            return {"content": list(tokens), "refusal": None}
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        return {name: [token[name] for token in tokens] for name in names}


def _chat_token(token: str, logprob: float) -> Json:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode("utf-8", "replace"))}


def classification(model: str, request_id: str, rows: Sequence[Classified]) -> Json:
    """vLLM's shape, with the names of the labels and the router's probabilities."""
    data = [
        {
            "index": index,
            "label": row.label,
            "probs": list(row.probabilities.values()),
            "num_classes": len(row.probabilities),
            "labels": list(row.probabilities),
            "route": None if row.route is None else list(row.route),
            "routed_to": row.route and max(range(len(row.route)), key=row.route.__getitem__),
        }
        for index, row in enumerate(rows)
    ]
    return {
        "id": f"classify-{request_id}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": data,
        "usage": usage(sum(row.prompt_tokens for row in rows)),
    }


def embeddings(model: str, vectors: Iterable[Sequence[float]], as_base64: bool) -> Json:
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _packed(vector) if as_base64 else list(vector),
        }
        for index, vector in enumerate(vectors)
    ]
    return {"object": "list", "model": model, "data": data, "usage": usage(0)}


def _packed(vector: Sequence[float]) -> str:
    """Little-endian float32, as OpenAI's clients ask for."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")


def model_entry(prompt: ServedPrompt, backbone: str) -> Json:
    """A prompt as vLLM lists adapters: its parent is the model that it works with."""
    return {
        "id": prompt.name,
        "object": "model",
        "created": prompt.created,
        "owned_by": "softprompts",
        "root": backbone,
        "parent": backbone,
    }


def model_details(prompt: ServedPrompt, backbone: str) -> Json:
    """The same, and what a client needs to know of the prompt's task."""
    card = prompt.card
    plain = card.plain()
    return {
        **model_entry(prompt, backbone),
        "task": card.task.name,
        "form": plain["task"].get("form"),
        "labels": prompt.labels,
        "scoring": card.scoring,
        "metrics": card.metrics,
        "prompt": plain["prompt"],
    }
