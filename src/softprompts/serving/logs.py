"""Logs as JSON lines on standard error. No texts of requests or answers, unless asked for."""

import json
import logging
import sys
import threading
import time
import traceback
from typing import Any, TextIO

FRAMES = 50
"""The innermost frames of a traceback that are logged. An error of a whole batch is raised by all
its requests, and collects the frames of each."""


class JsonLog:
    """Writes one JSON object per line; from any thread."""

    def __init__(
        self,
        stream: TextIO | None = None,
        quiet: bool = False,
        texts: bool = False,
        replica: str | None = None,
    ) -> None:
        """`quiet`: only warnings and errors. `texts`: keep the texts of requests and answers.
        `replica`: who writes it, on every line."""
        self.stream, self.quiet, self.texts = stream, quiet, texts
        self._fields = {} if replica is None else {"replica": replica}
        self._lock = threading.Lock()

    def info(self, event: str, **fields: Any) -> None:
        if not self.quiet:
            self.write("info", event, fields)

    def warn(self, event: str, **fields: Any) -> None:
        self.write("warning", event, fields)

    def error(self, event: str, error: BaseException, **fields: Any) -> None:
        """An internal error, with its traceback, but without the values in it."""
        frames = traceback.extract_tb(error.__traceback__, limit=-FRAMES)
        where = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]
        fields |= {"error": type(error).__name__, "traceback": where}
        if self.texts:
            fields["message"] = str(error)
        self.write("error", event, fields)

    def write(self, level: str, event: str, fields: dict[str, Any]) -> None:
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03}Z"
        entry = {"time": stamp, "level": level, "event": event, **self._fields, **fields}
        line = json.dumps(entry, default=str)  # ASCII: no text can break a line
        with self._lock:
            print(line, file=self.stream or sys.stderr, flush=True)

    def take_over(self, *names: str) -> None:
        """Write the warnings and errors of these loggers of Python's, and no others do."""
        for name in names:
            logging.getLogger(name).handlers = [_Handler(self)]
            logging.getLogger(name).propagate = False


class _Handler(logging.Handler):
    def __init__(self, log: JsonLog) -> None:
        super().__init__(logging.WARNING)
        self.log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields = {"message": record.getMessage(), "logger": record.name}
        self.log.write(record.levelname.lower(), "log", fields)
