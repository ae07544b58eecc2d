"""Uploaded rows and the tuning runs on them: one process at a time, followed by its events.

LIBRARY/.studio/ID/FILE     the rows, which the prompt's page reads again
LIBRARY/.studio/ID/run/     the run's folder, until its prompt is in the library
LIBRARY/.studio/ID/log.txt  what the process wrote to standard error
LIBRARY/.studio/ID/name.txt the prompt that was tuned on the rows
"""

import asyncio
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from ...errors import UserError
from ...files import make_folder, safe_name, write_text
from .tuner import Order

UPLOADS = ".studio"
RUN, LOG, NAME = "run", "log.txt", "name.txt"
MOST_UPLOADS = 100
MOST_OF_AN_EVENT = 2**24
"""Bytes of a line of a process."""
ENDINGS = (".csv", ".tsv", ".jsonl", ".json")
State = Literal["ready", "running", "stopping", "done", "failed"]


@dataclass
class TuningRun:
    """Uploaded rows, and the run on them if there is one."""

    identity: str
    file: Path
    state: State = "ready"
    name: str = ""
    """Of the prompt, once the run has begun."""
    step: int = 0
    steps: int = 0
    first_step: int = 0
    """Where the run began or resumed."""
    metric: str = ""
    history: list[dict[str, Any]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    began: float = 0.0
    """When the first step began, by `time.monotonic`."""
    ended: float | None = None
    note: str = ""
    """What came of it, in a sentence."""
    advice: str = ""
    """What to try if the prompt is no better than a baseline."""
    process: asyncio.subprocess.Process | None = None
    size: int = 0
    """Bytes of the file, when it was listed."""

    @property
    def folder(self) -> Path:
        return self.file.parent

    @property
    def active(self) -> bool:
        return self.state in ("running", "stopping")

    @property
    def seconds(self) -> float:
        """Since the first step."""
        until = time.monotonic() if self.ended is None else self.ended
        return until - self.began if self.began else 0.0

    @property
    def seconds_left(self) -> float | None:
        done = self.step - self.first_step
        return self.seconds / done * (self.steps - self.step) if done > 0 else None

    def take(self, event: dict[str, Any]) -> None:
        match event.pop("event"):
            case "message":
                self.messages.append(event["text"])
            case "start":
                self.step = self.first_step = event["step"]
                self.steps, self.metric = event["steps"], event["metric"]
                self.began = time.monotonic()
            case "step":
                self.step = event["step"]
            case "evaluation":
                self.history.append(event)
            case "done":
                self.state = "done"
                stopped = f"It was {event['stopped']}. " if event["stopped"] else ""
                self.note = f"{stopped}The prompt {self.name} is served now."
                self.advice = event["advice"] or ""
            case "failed":
                self.state = "failed"
                self.note = event["text"].replace(f"{self.folder}{os.sep}", "")


class TuningRuns:
    """All uploads of a library, by their identities."""

    def __init__(self, library: Path | None) -> None:
        self.library = library
        self._runs: dict[str, TuningRun] = {}
        self._readers: set[asyncio.Task[None]] = set()

    def all(self) -> list[TuningRun]:
        """Newest first; those of earlier servers are found in the folder."""
        with contextlib.suppress(OSError), os.scandir(self._uploads) as items:
            for item in items:
                files = [p for p in Path(item.path).glob("*") if p.suffix in ENDINGS]
                if files and item.name not in self._runs:
                    self._runs[item.name] = _earlier_run(item.name, files[0])
        found: list[tuple[float, TuningRun]] = []
        for run in list(self._runs.values()):  # other threads add and remove some
            with contextlib.suppress(OSError):
                file = run.file.stat()
                run.size = file.st_size
                found.append((file.st_mtime, run))
        return [run for _, run in sorted(found, key=lambda pair: -pair[0])]

    def find(self, identity: str) -> TuningRun:
        run = next((run for run in self.all() if run.identity == identity), None)
        if run is None:
            raise UserError(f"There are no rows {identity[:100]!r}; they may have been removed.")
        return run

    @property
    def active(self) -> TuningRun | None:
        return next((run for run in list(self._runs.values()) if run.active), None)

    @property
    def _uploads(self) -> Path:
        if self.library is None:
            raise UserError("The server has no library to put a new prompt into; serve one.")
        return self.library / UPLOADS

    def upload(self, file: str, text: str) -> TuningRun:
        """Keep rows, and check that they can be read as such."""
        stem, ending = os.path.splitext(safe_name(os.path.basename(file)[-80:]) or "rows.csv")
        if ending.lower() not in ENDINGS:
            raise UserError(f"Rows come as {', '.join(ENDINGS)} files, not as {ending or file!r}.")
        if not text.strip():
            raise UserError("The file is empty; it needs a header and rows.")
        if len(self.all()) >= MOST_UPLOADS:
            raise UserError(f"There are {MOST_UPLOADS} uploads already; remove some of them.")
        folder = self._uploads / f"{stem[:40]}-{secrets.token_hex(3)}"
        path = folder / f"{stem}{ending.lower()}"
        try:
            make_folder(folder)
            write_text(path, text)
        except (UserError, OSError):
            raise UserError(
                "The server cannot write to its library, where uploads and new prompts go; serve a "
                "library that it can write to."
            ) from None
        run = self._runs[folder.name] = TuningRun(folder.name, path)
        return run

    def remove(self, run: TuningRun) -> None:
        if run.active:
            raise UserError("The run is under way; stop it first.")
        self._runs.pop(run.identity, None)
        shutil.rmtree(run.folder, ignore_errors=True)

    async def start(self, run: TuningRun, name: str, settings: dict[str, Any]) -> None:
        """Begin to tune on uploaded rows, in another process."""
        if self.active is not None:
            raise UserError(f"{self.active.name} is being tuned; wait for it, or stop it.")
        # a run resumes with the same settings only; others begin in a folder of their own
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
        folder = run.folder / f"{RUN}-{digest}"
        order = Order(settings, str(folder), str(self.library), name)
        fresh = TuningRun(run.identity, run.file, "running", name)
        self._runs[run.identity] = fresh
        try:
            with (run.folder / LOG).open("wb") as log:
                fresh.process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", f"{__package__}.tuner"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    limit=MOST_OF_AN_EVENT,
                )
        except OSError as error:
            self._runs[run.identity] = run
            raise UserError(f"The run cannot be started: {error.strerror}.") from None
        assert fresh.process.stdin is not None
        fresh.process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
        reader = asyncio.create_task(_follow(fresh, fresh.process))
        self._readers.add(reader)
        reader.add_done_callback(self._readers.discard)

    def stop(self, run: TuningRun) -> None:
        """Let a run end after its step; the best prompt so far is kept."""
        if run.state == "running" and run.process is not None and run.process.stdin is not None:
            run.state = "stopping"
            run.process.stdin.write(b"stop\n")

    async def close(self) -> None:
        """Stop the run under way, which the same rows resume later; wait for its process to end."""
        run = self.active
        if run is not None and run.process is not None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                run.process.terminate()
        await asyncio.gather(*self._readers)


def _earlier_run(identity: str, file: Path) -> TuningRun:
    """Rows that an earlier server took, and what it tuned on them."""
    run = TuningRun(identity, file)
    with contextlib.suppress(OSError):
        run.name = (run.folder / NAME).read_text(encoding="utf-8")
        run.state, run.note = "done", f"The prompt {run.name} was tuned on these rows."
    return run


async def _follow(run: TuningRun, process: asyncio.subprocess.Process) -> None:
    """Take the events of a process until it ends."""
    assert process.stdout is not None
    async for line in process.stdout:
        with contextlib.suppress(json.JSONDecodeError, KeyError):
            run.take(json.loads(line))
    code = await process.wait()
    if run.active:
        run.state = "failed"
        where = f"{UPLOADS}/{run.identity}/{LOG} in the library"
        run.note = f"The process ended with status {code}; {where} has the reason."
    if run.state == "done":
        await asyncio.to_thread(write_text, run.folder / NAME, run.name)
    run.ended = time.monotonic()
