"""Trackers by name, through accelerate: tensorboard, wandb, mlflow, trackio. They are told what metrics.jsonl is, and losses between."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import TracebackType
from typing import Any

from ..errors import UserError
from .run import CHECK_EVERY, Run
from .watch import Watcher

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
    """A watcher that passes on to another and tells every run's own trackers; with no names it tells nobody."""

    def __init__(
        self,
        names: Sequence[str],
        runs: Sequence[Run],
        folders: Sequence[Path | None],
        watcher: Watcher | None = None,
    ) -> None:
        self.names, self.watcher = list(names), watcher or Watcher()
        self.members = list(zip(runs, folders, strict=True))
        self.trackers: dict[int, list[Any]] = {}
        """By the run's id."""

    def __enter__(self) -> "Tracking":
        if self.names:
            from accelerate import PartialState

            PartialState(cpu=self.members[0][0].backbone.device.type == "cpu")
            with redirect_stdout(sys.stderr):  # they talk, and standard output is for results
                for number, (run, folder) in enumerate(self.members, 1):
                    if not (
                        run.finished and run.history
                    ):  # of one that was finished before there is nothing to tell
                        home = folder or (
                            Path("runs") if self._alone else Path("runs") / f"run-{number}"
                        )
                        self.trackers[id(run)] = []
                        self._start(run, home)
        return self

    def _start(self, run: Run, home: Path) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        name, settings = home.resolve().name, _flat(run.config.plain())
        own: dict[str, dict[str, Any]] = {
            "tensorboard": {"logging_dir": str(home / TRACKS), "purge_step": run.step + 1},
            "wandb": {"name": name, "dir": str(home)},
            "mlflow": {"run_name": name},
            "trackio": {"name": name},
        }
        if not self._alone:  # where there are several, "the current run" of a tracker is no one's
            own["wandb"] |= {"config": settings, "reinit": "create_new"}
            own["trackio"] |= {"config": settings}
        for key in self.names:
            tracker = LOGGER_TYPE_TO_CLASS[key]("softprompts", **own[key])
            tracker.start()
            self.trackers[id(run)].append(tracker)
            if "config" not in own[key]:
                tracker.store_init_configuration(settings)
            if (
                key == "mlflow" and not self._alone
            ):  # it takes more of a run that is no longer the current one
                tracker.finish()

    @property
    def _alone(self) -> bool:
        return len(self.members) == 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with redirect_stdout(sys.stderr):
            for tracker in (tracker for trackers in self.trackers.values() for tracker in trackers):
                if tracker.name != "mlflow" or self._alone:
                    tracker.finish()

    def tell(self, run: Run, values: Mapping[str, float]) -> None:
        for tracker in self.trackers.get(id(run), ()):
            whose = (
                {"run_id": tracker.tracker.info.run_id}
                if tracker.name == "mlflow" and not self._alone
                else {}
            )
            tracker.log(dict(values), step=run.step, **whose)

    def stepped(self, run: Run) -> None:
        if self.trackers and run.step % CHECK_EVERY == 0 and run.pending:
            self.tell(
                run,
                {"train/loss": run.pending[-1], "train/lr": run.optimizer.param_groups[0]["lr"]},
            )
        self.watcher.stepped(run)

    def evaluating(self, run: Run, rows: int) -> None:
        self.watcher.evaluating(run, rows)

    def evaluated(self, run: Run) -> None:
        if self.trackers:
            entry = run.history[-1]
            told = {f"validation/{name}": entry[name] for name in (*run.task.metrics, "invalid")}
            self.tell(run, {**told, "train/mean_loss": entry["loss"]})
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
