"""Cohort: many runs on one frozen backbone, each with the same result as when run alone. A single
run is a cohort of one.
"""

import itertools
import math
import time
from collections.abc import Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from ..artifacts.run_folder import RunFolder
from ..backbone.hardware import peak_memory, trim_heap
from ..errors import UserError, setting
from .checkpoint import save_checkpoint
from .evaluate import answer_all, can_calibrate
from .microbatch import TokenBudget, backward
from .optim import step_all
from .phases import Phases
from .routing import RouterWatch
from .run import Run, check_losses
from .tokens import reading_ahead
from .watch import Watcher

RECORD_FROM = 50
"""Recording steps pays off if a run has at least this many left."""
COMPILE_FROM = 75.0
"""Compiling layers pays off if training takes at least this many seconds more: it takes about 30,
and saves up to 40 %."""
TIMED_STEPS = 100
"""Steps after which the time that training will take is known well enough."""
CPU_TOKENS = 4096
"""Tokens of a pass on a CPU; more would not fit into its cache."""

Member = tuple[Run, RunFolder | None]


class Cohort:
    """Runs side by side, each with its own folder for checkpoints, or none."""

    def __init__(
        self,
        runs: Sequence[Run],
        folders: Sequence[RunFolder | None],
        watcher: Watcher | None = None,
        phases: Phases | None = None,
        calibrates: bool = False,
    ) -> None:
        """`calibrates`: the last evaluation also computes label probabilities, in the same pass."""
        if len({id(run.backbone) for run in runs}) > 1 or (
            len(runs) > 1 and any(not run.backbone.frozen for run in runs)
        ):
            raise UserError(
                "The runs of a cohort share one frozen model; tune whole models one at a time."
            )
        self.members: list[Member] = list(zip(runs, folders, strict=True))
        self.watcher, self.phases = watcher or Watcher(), phases or Phases()
        self.calibrates = calibrates
        on_cpu = bool(runs) and runs[0].backbone.device.type == "cpu"
        self.budget = TokenBudget(CPU_TOKENS if on_cpu else math.inf)
        self.evaluation_rows = 256 if on_cpu else 1024
        """Rows of an evaluation batch; lowered when memory runs out."""
        for run in runs:
            run.backbone.reserve(run.inputs.longest() + run.config.prompt.length)
        if max((run.steps - run.step for run in runs), default=0) >= RECORD_FROM:
            runs[0].backbone.accelerate()

    def train(self) -> None:
        """Train until every run has finished or stopped; one that stops does not affect others."""
        start = time.monotonic()
        first_steps = {run: run.step for run, _ in self.members if not run.finished}
        counts = next(iter(first_steps)).backbone.compile_counts() if first_steps else {}
        orders = [run.rows_ahead() for run in first_steps]
        with self.phases("train"), reading_ahead(orders):
            self._after_step([member for member in self.members if member[0].steps == 0])
            for number in itertools.count():
                active = [member for member in self.members if not member[0].finished]
                if not active:
                    break
                if number == TIMED_STEPS:
                    self._compile_if_long([run for run, _ in active], TIMED_STEPS)
                self.step()
                for run, _ in active:
                    self.watcher.on_step(run)
                self._after_step(active)
        trim_heap()
        seconds = time.monotonic() - start
        if counts:
            compiled = next(iter(first_steps)).backbone.compile_counts()
            self.phases.move("train", "compile", compiled["compile_s"] - counts["compile_s"])
        for run, step in first_steps.items():
            peak = peak_memory(run.backbone.device)
            compiled = run.backbone.compile_counts()
            run.cost = {
                "runs": len(first_steps),
                "seconds": round(seconds, 1),
                "peak_gib": None if peak is None else round(peak, 2),
                "from_step": step,
                **{name: round(count - counts[name], 1) for name, count in compiled.items()},
            }

    def _compile_if_long(self, runs: Sequence[Run], steps: int) -> None:
        """Compile the model's layers if that saves time, judged by the steps so far."""
        backbone = runs[0].backbone
        packed = backbone.packed
        if packed is None or not packed.recorded or packed.compiled:
            return
        trained = self.phases.seconds()["train"] - packed.graphs.seconds
        left = max(run.steps - run.step for run in runs) * trained / steps
        if left >= COMPILE_FROM:
            self.watcher.on_message(
                f"compiling the model, because about {left:.0f} s of training are left"
            )
            backbone.accelerate(compile=True)

    def step(self) -> None:
        """One optimiser step of every active run; the rows of all share passes."""
        with self.phases("tokenise"):
            batches = {run: run.micro_batches() for run, _ in self.members if not run.finished}
        losses: dict[Run, list[Tensor]] = {run: [] for run in batches}
        for part in range(max(map(len, batches.values()), default=0)):
            parts = [group[part] for group in batches.values() if part < len(group)]
            for batch, loss in zip(parts, backward(parts, self.budget), strict=True):
                losses[batch.run].append(loss)
        for run in batches:
            run.before_step(losses[run])
        step_all(run.optimizer for run in batches)
        for run in batches:
            run.after_step()
        check_losses([run for run in batches if run.check_due])

    def _after_step(self, members: Sequence[Member]) -> None:
        """Evaluate the runs that are due, and save checkpoints."""
        runs = [run for run, _ in members if run.stopped is None]
        self.evaluate([run for run in runs if run.due(run.config.tuning.evaluate_every)])
        for run, folder in members:
            due = run.stopped is not None or run.due(run.config.tuning.checkpoint_every)
            if folder is not None and run.team.is_main and due:
                save(run, folder)

    def evaluate(self, runs: Sequence[Run]) -> list[list[str]]:
        """Score these runs, and return their predictions.

        In one process, the rows of all runs share batches; several share each run's rows.
        """
        probabilities: dict[int, list[dict[str, float]]] = {}
        with self.phases("evaluate"), ExitStack() as stack:
            routers = [stack.enter_context(RouterWatch(run.prompt)) for run in runs]
            if runs and runs[0].team.size == 1:
                predictions = self._predictions(runs, probabilities, routers)
            else:
                predictions = [
                    run.predictions(lambda rows, run=run: self.watcher.on_rows_answered(run, rows))  # type: ignore[misc]
                    for run in runs
                ]
        for number, (run, answers) in enumerate(zip(runs, predictions, strict=True)):
            router = routers[number].entry(run.team)
            run.record(answers, probabilities.get(number) or None, router)
            self.watcher.on_evaluation(run)
        return predictions

    def _predictions(
        self,
        runs: Sequence[Run],
        probabilities: dict[int, list[dict[str, float]]],
        routers: Sequence[RouterWatch],
    ) -> list[list[str]]:
        """The runs' answers; label probabilities that come with them, by the number of the run."""
        jobs = [(run.predictor(), run.held_out) for run in runs]
        wanted = [
            number
            for number, run in enumerate(runs)
            if self.calibrates
            and can_calibrate(run.task, len(run.held_out))
            and (run.config.tuning.scoring == "labels" or run.step >= run.steps)
        ]
        left: dict[Run, int] = {}

        def on_rows(rows: int) -> None:
            """Rows come in any order; they are reported run by run."""
            for run in runs:
                part = min(rows, left[run])
                if part:
                    left[run] -= part
                    rows -= part
                    self.watcher.on_rows_answered(run, part)

        while True:
            left |= {run: len(run.held_out) for run in runs}
            probabilities |= {number: [] for number in wanted}
            for router in routers:
                router.clear()
            for run in runs:
                run.evaluation_rows = self.evaluation_rows
            try:
                return answer_all(jobs, on_rows, self.evaluation_rows, probabilities)
            except torch.OutOfMemoryError:
                if self.evaluation_rows == 1:
                    raise UserError(
                        "A single row does not fit into memory; "
                        f"lower {setting('tuning.max_length')}."
                    ) from None
            self.evaluation_rows //= 2
            runs[0].backbone.free_memory()


def save(run: Run, folder: RunFolder) -> None:
    """The checkpoint comes last: metrics without it are written again when the run resumes."""
    folder.write_metrics(run.history)
    if not run.failed and run.step:  # a failed run's state is worse than the last checkpoint
        save_checkpoint(run, folder)
