"""Cohort: many runs on one frozen backbone. A single run is a cohort of one; each gets the result it would have had alone."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from ..files import write_text
from .checkpoint import save_checkpoint
from .run import Run


class Watcher(Protocol):
    """Who is told how the runs get on."""

    def stepped(self, run: Run) -> None: ...

    def evaluating(self, run: Run, rows: int) -> None: ...

    def evaluated(self, run: Run) -> None: ...


class Nobody:
    """A watcher that does not look."""

    def stepped(self, run: Run) -> None:
        pass

    def evaluating(self, run: Run, rows: int) -> None:
        pass

    def evaluated(self, run: Run) -> None:
        pass


class Cohort:
    """Runs side by side, each with its own folder for checkpoints (or none)."""

    def __init__(self, runs: Sequence[Run], folders: Sequence[Path | None], watcher: Watcher | None = None) -> None:
        self.members = list(zip(runs, folders, strict=True))
        self.watcher = watcher or Nobody()

    def train(self) -> None:
        """Until every run has taken its last step or has stopped; one that stops leaves the others alone."""
        for run, folder in self.members:
            if run.steps == 0:  # nothing to learn: judged as it is
                self._after_step(run, folder)
        while active := [member for member in self.members if not member[0].finished]:
            for run, folder in active:
                run.advance()
                self.watcher.stepped(run)
                self._after_step(run, folder)

    def _after_step(self, run: Run, folder: Path | None) -> None:
        tuning = run.config.tuning
        if run.stopped is None and run.due(tuning.evaluate_every):
            run.evaluate(lambda rows: self.watcher.evaluating(run, rows))
            self.watcher.evaluated(run)
        if folder is not None and run.team.writes and (run.due(tuning.checkpoint_every) or run.stopped is not None):
            self.save(run, folder)

    def save(self, run: Run, folder: Path) -> None:
        """The checkpoint last: metrics without it are written again on resume."""
        write_text(folder / "metrics.jsonl", "".join(json.dumps(entry) + "\n" for entry in run.history))
        if not run.failed and run.step:  # ruined numbers are worse than what is on disk
            save_checkpoint(run, folder)
