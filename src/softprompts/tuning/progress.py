"""Progress where there is no command line: a bar in notebooks, lines on standard error elsewhere.

The command line has its own bars on a terminal (`cli/progress.py`), and these lines in logs.
"""

import importlib
import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from ..config import spell
from .run import Run
from .watch import Watcher

Settings = Mapping[str, Any]


def make_watcher(verbose: bool = True, varied: Sequence[Settings] = ()) -> Watcher:
    """The watcher of a call from Python; `varied` are the settings in which its runs differ."""
    if not verbose or os.environ.get("RANK", "0") != "0":
        return Watcher()
    return Bars(varied) if _in_notebook() else Lines(varied)


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"


class Lines(Watcher):
    """A line for each stage and each evaluation."""

    def __init__(self, varied: Sequence[Settings] = ()) -> None:
        self.varied = list(varied)
        self.names: dict[int, str] = {}
        """The names of the runs, by their ids."""
        self.started_at = time.monotonic()

    def on_message(self, message: str) -> None:
        self.write(message)

    def on_start(self, runs: Sequence[Run]) -> None:
        for run, settings in zip(runs, self.varied, strict=False):
            named = ", ".join(f"{name} {spell(value)}" for name, value in settings.items())
            self.names[id(run)] = named

    def on_evaluation(self, run: Run) -> None:
        seconds = time.monotonic() - self.started_at
        name = self.names.get(id(run)) or run.task.name
        self.write(f"{name}: step {run.step} of {run.steps}, {scores(run)}, {seconds:.0f} s")
        if run.stopped is not None:
            self.write(f"{name}: stopped at step {run.step}: {run.stopped}")

    def write(self, line: str) -> None:
        print(f"softprompts: {line}", file=sys.stderr, flush=True)


class Bars(Lines):
    """One tqdm bar over the steps of all runs, with the last score beside it."""

    def __init__(self, varied: Sequence[Settings] = ()) -> None:
        super().__init__(varied)
        with warnings.catch_warnings():  # a notebook without ipywidgets gets a bar of text
            warnings.simplefilter("ignore")
            self.tqdm: Any = importlib.import_module("tqdm.auto").tqdm
        self.bar: Any = None
        self.done: dict[int, int] = {}
        """Steps that the bar has counted, by the run's id."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bar is not None:
            self.bar.close()

    def __enter__(self) -> Self:
        return self

    def on_message(self, message: str) -> None:
        self.tqdm.write(message, file=sys.stderr)

    def on_start(self, runs: Sequence[Run]) -> None:
        super().on_start(runs)
        self.done = {id(run): run.step for run in runs}
        total, first = sum(run.steps for run in runs), sum(run.step for run in runs)
        name = runs[0].task.name if len(runs) == 1 else f"{len(runs)} runs"
        self.bar = self.tqdm(total=total, initial=first, desc=name, unit="step", file=sys.stderr)

    def on_step(self, run: Run) -> None:
        steps = run.steps if run.finished else run.step
        self.bar.update(steps - self.done[id(run)])
        self.done[id(run)] = steps

    def on_evaluation(self, run: Run) -> None:
        name = self.names.get(id(run))
        self.bar.set_postfix_str(f"{name}: {scores(run)}" if name else scores(run))


def scores(run: Run) -> str:
    """The loss and the metric of the last evaluation: `loss 0.412, accuracy 81.2 (best 84.0)`."""
    last, best = run.history[-1], run.best_entry
    metric = run.metric
    return f"loss {last['loss']:.3f}, {metric} {last[metric]:.1f} (best {best[metric]:.1f})"
