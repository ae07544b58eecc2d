"""Experiment trackers, through accelerate: tensorboard, wandb, mlflow, trackio. They log every
evaluation, and the loss in between.
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Any

from accelerate import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

from ..artifacts.run_folder import RunFolder
from ..config.run import check_tracker_names
from ..errors import UserError
from .run import CHECK_EVERY, Run
from .watch import Watcher


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a tracker that is unknown or not installed, before anything is loaded."""
    available = {str(tracker.value) for tracker in get_available_trackers()} if names else set()
    for name in check_tracker_names(names):
        if name not in available:
            raise UserError(f"The tracker {name} is not installed; run pip install {name}.")


class Tracking(Watcher):
    """Logs every run to its own trackers, and passes all on to another watcher."""

    def __init__(
        self,
        names: Sequence[str],
        runs: Sequence[Run],
        folders: Sequence[RunFolder | None],
        watcher: Watcher | None = None,
    ) -> None:
        self.names, self.watcher = list(names), watcher or Watcher()
        self.members = list(zip(runs, folders, strict=True))
        self.trackers: dict[int, list[Any]] = {}
        """By the run's id."""

    def __enter__(self) -> "Tracking":
        if not self.names:
            return self
        PartialState(cpu=self.members[0][0].backbone.device.type == "cpu")
        with redirect_stdout(sys.stderr):  # trackers print, and standard output is for results
            for number, (run, folder) in enumerate(self.members, 1):
                if run.finished and run.history:  # finished by an earlier command
                    continue
                default = Path("runs") if self._single else Path("runs") / f"run-{number}"
                self.trackers[id(run)] = []
                self._start(run, folder or RunFolder(default))
        return self

    def _start(self, run: Run, folder: RunFolder) -> None:
        name, settings = folder.path.resolve().name, _flat(run.config.plain())
        options: dict[str, dict[str, Any]] = {
            "tensorboard": {"logging_dir": str(folder.trackers), "purge_step": run.step + 1},
            "wandb": {"name": name, "dir": str(folder.path)},
            "mlflow": {"run_name": name},
            "trackio": {"name": name},
        }
        if not self._single:  # a tracker's "current run" would be the last one only
            options["wandb"] |= {"config": settings, "reinit": "create_new"}
            options["trackio"] |= {"config": settings}
        for key in self.names:
            tracker = LOGGER_TYPE_TO_CLASS[key]("softprompts", **options[key])
            tracker.start()
            self.trackers[id(run)].append(tracker)
            if "config" not in options[key]:
                tracker.store_init_configuration(settings)
            if key == "mlflow" and not self._single:  # logs to a run by its id, current or not
                tracker.finish()

    @property
    def _single(self) -> bool:
        return len(self.members) == 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with redirect_stdout(sys.stderr):
            for tracker in (tracker for trackers in self.trackers.values() for tracker in trackers):
                if tracker.name != "mlflow" or self._single:
                    tracker.finish()

    def log(self, run: Run, values: Mapping[str, float]) -> None:
        for tracker in self.trackers.get(id(run), ()):
            by_id = tracker.name == "mlflow" and not self._single
            options = {"run_id": tracker.tracker.info.run_id} if by_id else {}
            tracker.log(dict(values), step=run.step, **options)

    def on_message(self, message: str) -> None:
        self.watcher.on_message(message)

    def on_step(self, run: Run) -> None:
        if self.trackers and run.step % CHECK_EVERY == 0 and run.pending:
            rate = run.optimizer.param_groups[0]["lr"]
            self.log(run, {"train/loss": run.pending[-1], "train/lr": rate})
        self.watcher.on_step(run)

    def on_rows_answered(self, run: Run, rows: int) -> None:
        self.watcher.on_rows_answered(run, rows)

    def on_evaluation(self, run: Run) -> None:
        if self.trackers:
            entry = run.history[-1]
            scores = {f"validation/{name}": entry[name] for name in (*run.task.metrics, "invalid")}
            router = {
                f"validation/router_{name}": entry["router"][name]
                for name in ("confidence", "entropy")
                if "router" in entry
            }
            self.log(run, {**scores, **router, "train/mean_loss": entry["loss"]})
        self.watcher.on_evaluation(run)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names, as trackers expect them."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, int | float) else str(value)
    return flat
