"""Cohort: many runs on one frozen backbone. A single run is a cohort of one; each gets the result it would have had alone."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..errors import UserError
from ..files import write_text
from .checkpoint import save_checkpoint
from .evaluate import answer_all
from .lesson import Room, learn
from .optim import step_all
from .run import Run, look_all
from .watch import Watcher

MANY = 500
"""Steps to come, of all runs, from which compiling is worth its time."""


CACHED = 4096
"""Tokens of a pass on a CPU; what a larger one computes would not stay in its cache."""


class Cohort:
    """Runs side by side, each with its own folder for checkpoints (or none)."""

    def __init__(
        self, runs: Sequence[Run], folders: Sequence[Path | None], watcher: Watcher | None = None
    ) -> None:
        if len({id(run.backbone) for run in runs}) > 1 or (
            len(runs) > 1 and any(not run.backbone.frozen for run in runs)
        ):
            raise UserError(
                "The runs of a cohort share one frozen model; tune whole models one at a time."
            )
        self.members = list(zip(runs, folders, strict=True))
        self.watcher = watcher or Watcher()
        on_cpu = bool(runs) and runs[0].backbone.device.type == "cpu"
        self.room, self.together = Room(CACHED if on_cpu else math.inf), 256 if on_cpu else 1024
        for run in runs:
            run.backbone.expect(max(map(len, run.inputs)) + run.config.prompt.length)
        if sum(run.steps - run.step for run in runs) >= MANY:
            runs[0].backbone.hurry()

    def train(self) -> None:
        """Until every run has taken its last step or has stopped; one that stops leaves the others alone."""
        begun, learning = (
            time.monotonic(),
            {run: run.step for run, _ in self.members if not run.finished},
        )
        before = next(iter(learning)).backbone.effort() if learning else {}
        self._after_step(
            [member for member in self.members if member[0].steps == 0]
        )  # nothing to learn: judged as they are
        while active := [member for member in self.members if not member[0].finished]:
            self.step()
            for run, _ in active:
                self.watcher.stepped(run)
            self._after_step(active)
        for run, step in learning.items():
            peak, seconds = run.backbone.peak(), time.monotonic() - begun
            run.cost = {
                "runs": len(learning),
                "seconds": round(seconds, 1),
                "peak_gib": None if peak is None else round(peak, 2),
            }
            run.cost["from_step"] = step
            run.cost |= {
                name: number - before[name] for name, number in run.backbone.effort().items()
            }

    def step(self) -> None:
        """One optimiser step of every run that is not at its end, by one forward and backward pass over the rows of all."""
        plans = {run: run.lessons() for run, _ in self.members if not run.finished}
        losses: dict[Run, list[Tensor]] = {run: [] for run in plans}
        for part in range(max(map(len, plans.values()), default=0)):
            now = [plan[part] for plan in plans.values() if part < len(plan)]
            for lesson, loss in zip(now, learn(now, self.room), strict=True):
                losses[lesson.run].append(loss)
        for run, found in losses.items():
            run.take(found)
        step_all(run.optimizer for run in plans)
        for run in plans:
            run.stepped()
        look_all([run for run in plans if run.looks])

    def _after_step(self, members: Sequence[tuple[Run, Path | None]]) -> None:
        due = [
            run
            for run, _ in members
            if run.stopped is None and run.due(run.config.tuning.evaluate_every)
        ]
        self._evaluate(due)
        for run, folder in members:
            if (
                folder is not None
                and run.team.writes
                and (run.due(run.config.tuning.checkpoint_every) or run.stopped is not None)
            ):
                self.save(run, folder)

    def _evaluate(self, due: Sequence[Run]) -> None:
        """The rows of all that are due share batches; several processes share out each run's own."""
        if due and due[0].team.size == 1:
            answers = self._answers(due)
        else:
            answers = [
                run.answers(lambda rows, run=run: self.watcher.evaluating(run, rows)) for run in due
            ]  # type: ignore[misc]
        for run, told in zip(due, answers, strict=True):
            run.judge(told)
            self.watcher.evaluated(run)

    def _answers(self, due: Sequence[Run]) -> list[list[str]]:
        jobs = [(run.predictor(), run.held_out) for run in due]
        left: dict[Run, int] = {}

        def tick(rows: int) -> None:
            """Rows come in any order; the runs are told of them one after another."""
            for run in due:
                own = min(rows, left[run])
                if own:
                    left[run] -= own
                    rows -= own
                    self.watcher.evaluating(run, own)

        while True:
            left |= {run: len(run.held_out) for run in due}
            try:
                return answer_all(jobs, tick, self.together)
            except torch.OutOfMemoryError:
                if self.together == 1:
                    raise UserError(
                        "One row alone does not fit into memory; lower --max-length."
                    ) from None
            self.together //= 2
            due[0].backbone.forget()

    def save(self, run: Run, folder: Path) -> None:
        """The checkpoint last: metrics without it are written again on resume."""
        write_text(
            folder / "metrics.jsonl", "".join(json.dumps(entry) + "\n" for entry in run.history)
        )
        if not run.failed and run.step:  # ruined numbers are worse than what is on disk
            save_checkpoint(run, folder)
