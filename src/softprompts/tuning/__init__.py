"""Tuning: many runs on one frozen backbone."""

from ..config.presets import PRESETS
from ..config.run import RunConfig, TuningConfig, run_config
from .cohort import Cohort, Watcher
from .evaluate import Predictor
from .run import Run, RunFailedError

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
