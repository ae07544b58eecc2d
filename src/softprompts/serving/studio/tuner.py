"""A tuning run in a process of its own, so that the server keeps answering.

    python -m softprompts.serving.studio.tuner

The first line of standard input is an `Order` as JSON; another line, or its end, stops the run,
which keeps the best prompt so far. Each line of standard output is an event as JSON.
"""

import contextlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ...config import run_config, sections
from ...errors import UserError, speaking
from ...library.library import Library, ignore
from ...tuning.run import Run, check_losses
from ...tuning.tune import tune_config
from ...tuning.watch import Watcher
from .spelling import as_field

STOPPED = "stopped in the studio"
EVENT_SECONDS = 0.2
"""Between two events about steps."""


@dataclass(frozen=True)
class Order:
    """What to tune, and where the prompt goes."""

    settings: Mapping[str, Any]
    folder: str
    """The run's folder, where it resumes; it is removed once the prompt is in the library."""
    library: str
    name: str


class Events(Watcher):
    """Writes events, and stops runs."""

    def __init__(self, output: IO[str], stop: threading.Event) -> None:
        self.output, self.stop = output, stop
        self.next_step = 0.0

    def send(self, event: str, **values: Any) -> None:
        with contextlib.suppress(BrokenPipeError):  # the server is gone, and the run about to stop
            print(json.dumps({"event": event, **values}), file=self.output, flush=True)

    def on_message(self, message: str) -> None:
        self.send("message", text=message)

    def on_start(self, runs: Sequence[Run]) -> None:
        (run,) = runs
        task = run.task
        rows = {"train": len(task.train), "validation": len(task.validation)}
        self.send("start", step=run.step, steps=run.steps, metric=run.metric, rows=rows)
        for entry in run.history:  # of a run that resumes
            self._send_evaluation(run, entry)

    def on_step(self, run: Run) -> None:
        if self.stop.is_set() and run.stopped is None:
            check_losses([run])
            if not run.history and not run.failed:  # its first evaluation is its last
                run.record(run.predictions())
                self.on_evaluation(run)
            run.stopped = run.stopped or STOPPED
        if time.monotonic() >= self.next_step or run.finished:
            self.next_step = time.monotonic() + EVENT_SECONDS
            self.send("step", step=run.step)

    def on_evaluation(self, run: Run) -> None:
        self._send_evaluation(run, run.history[-1])

    def _send_evaluation(self, run: Run, entry: Mapping[str, Any]) -> None:
        self.send("evaluation", step=entry["step"], score=entry[run.metric], loss=entry["loss"])


def tune(order: Order, events: Events) -> None:
    """Tune a prompt and add it to the library."""
    library, folder = Library(order.library, ignore), Path(order.folder)
    library.check_free(order.name)
    config = run_config(sections(order.settings))
    tuned = tune_config(config, folder, watcher=events)
    library.add(folder, order.name)
    shutil.rmtree(folder, ignore_errors=True)
    events.send("done", stopped=tuned.card.stopped, advice=tuned.advice)


def main() -> int:
    order = Order(**json.loads(sys.stdin.readline()))
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.readline()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    with contextlib.redirect_stdout(sys.stderr), speaking(as_field):
        events = Events(sys.__stdout__ or sys.stdout, stop)
        try:
            tune(order, events)
        except UserError as error:
            events.send("failed", text=str(error))
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
