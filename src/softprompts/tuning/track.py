"""Trackers by name, through accelerate: tensorboard, wandb, mlflow, trackio. They are told what metrics.jsonl is, and losses between."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import UserError
from .cohort import Nobody, Watcher
from .run import CHECK_EVERY, Run

TRACKS = "trackers"
"""Where in a run's folder TensorBoard's files go."""

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")


def check_trackers(names: Sequence[str]) -> None:
    """A sentence for a tracker that is unknown or not installed, before anything is loaded."""
    if not names:
        return
    from accelerate.tracking import get_available_trackers

    there = {str(tracker.value) for tracker in get_available_trackers()}
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"There is no tracker {name!r}; choose among {', '.join(TRACKERS)}.")
        if name not in there:
            raise UserError(f"The tracker {name} is not installed; get it with pip install {name}.")


class Tracking:
    """A watcher that passes on to another and tells the trackers; with no names it tells nobody."""

    def __init__(self, names: Sequence[str], run: Run, folder: Path | None, watcher: Watcher | None = None) -> None:
        self.names, self.run, self.folder, self.watcher = list(names), run, folder, watcher or Nobody()
        self.trackers: list[Any] = []

    def __enter__(self) -> "Tracking":
        if self.names:
            from accelerate import PartialState
            from accelerate.tracking import LOGGER_TYPE_TO_CLASS

            PartialState(cpu=self.run.backbone.device.type == "cpu")
            home = self.folder or Path("runs")
            name = home.resolve().name
            own: dict[str, dict[str, Any]] = {
                "tensorboard": {"logging_dir": str(home / TRACKS), "purge_step": self.run.step + 1},
                "wandb": {"name": name, "dir": str(home)},
                "mlflow": {"run_name": name},
                "trackio": {"name": name},
            }
            with redirect_stdout(sys.stderr):  # they talk, and standard output is for results
                for key in self.names:
                    tracker = LOGGER_TYPE_TO_CLASS[key]("softprompts", **own[key])
                    tracker.start()
                    self.trackers.append(tracker)
                    tracker.store_init_configuration(_flat(self.run.config.plain()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with redirect_stdout(sys.stderr):
            for tracker in self.trackers:
                tracker.finish()

    def tell(self, values: Mapping[str, float], step: int) -> None:
        for tracker in self.trackers:
            tracker.log(dict(values), step=step)

    def stepped(self, run: Run) -> None:
        if self.trackers and run.step % CHECK_EVERY == 0 and run.pending:
            self.tell({"train/loss": run.pending[-1], "train/lr": run.optimizer.param_groups[0]["lr"]}, run.step)
        self.watcher.stepped(run)

    def evaluating(self, run: Run, rows: int) -> None:
        self.watcher.evaluating(run, rows)

    def evaluated(self, run: Run) -> None:
        if self.trackers:
            entry = run.history[-1]
            told = {f"validation/{name}": entry[name] for name in (*run.task.metrics, "invalid")}
            self.tell({**told, "train/mean_loss": entry["loss"]}, run.step)
        self.watcher.evaluated(run)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under dotted names, as trackers want them."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, (int, float, bool)) else str(value)
    return flat
