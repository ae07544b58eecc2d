"""HTTP errors: a status, and OpenAI's format with one plain sentence."""

import math
from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import HTTPException
from fastapi.responses import JSONResponse

from ..errors import UserError
from .requests import (
    UNKNOWN_PROMPT,
    BrokenPrompt,
    Closed,
    DeadlineExceeded,
    QueueFull,
    Stopped,
    TooLong,
    UnknownPrompt,
)

GONE = 499
"""The status in logs of a request whose client disconnected; it is never sent."""
MESSAGE_LIMIT = 1000
"""Characters of an error's message."""
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class HttpError(HTTPException):
    """Its message may quote a request, so it is cut off, and made valid Unicode."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if len(message) > MESSAGE_LIMIT:
            message = f"{message[:MESSAGE_LIMIT]} ..."
        message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(status, message, dict(headers or {}))
        self.code, self.param = code, param

    def body(self) -> dict[str, Any]:
        kind = TYPES.get(self.status_code)
        kind = kind or ("server_error" if self.status_code >= 500 else "invalid_request_error")
        error = {"message": self.detail, "type": kind, "param": self.param, "code": self.code}
        return {"error": error}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status_code, self.headers)


def unknown_prompt(name: str) -> HttpError:
    """Also for a prompt that the key may not use: nothing says that it exists."""
    return HttpError(
        404,
        f"There is no prompt {name[:100]!r}; GET /v1/models lists the prompts.",
        UNKNOWN_PROMPT,
        "model",
    )


def as_http(error: UserError, prompt: str = "") -> HttpError:
    """An error of the engine. What could name files of the server is not passed on."""
    match error:
        case UnknownPrompt():
            return unknown_prompt(prompt)
        case BrokenPrompt():
            message = f"The prompt {prompt[:100]!r} cannot be used; the server's log says why."
            return HttpError(404, message, "model_broken", "model")
        case QueueFull():
            seconds = max(error.retry_after, 0.001)
            headers = {
                "Retry-After": str(math.ceil(seconds)),
                "Retry-After-Ms": str(math.ceil(seconds * 1000)),  # OpenAI's clients read it
            }
            return HttpError(429, str(error), "queue_full", headers=headers)
        case DeadlineExceeded():
            headers = {"X-Should-Retry": "false"}  # the time for it is up
            return HttpError(504, str(error), "timeout", headers=headers)
        case Closed():
            message = "The server is shutting down; try again later, or use another server."
            return HttpError(503, message, "shutting_down", headers={"Retry-After": "5"})
        case Stopped():
            message = "The server stopped answering after an error; its log says why."
            return HttpError(503, message, "engine_stopped")
        case TooLong():
            return HttpError(400, str(error), "context_length_exceeded")
    return HttpError(400, str(error))
