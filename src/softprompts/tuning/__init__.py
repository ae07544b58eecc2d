"""Tuning: many runs on one frozen backbone."""

from ..config import PRESETS, RunConfig, TuningConfig, run_config
from .cohort import Cohort
from .evaluate import Predictor
from .run import Run, RunFailedError
from .watch import Watcher

__all__ = [
    "PRESETS",
    "Cohort",
    "Predictor",
    "Run",
    "RunConfig",
    "RunFailedError",
    "TuningConfig",
    "Watcher",
    "run_config",
]
