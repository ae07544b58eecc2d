"""Tuning: many runs on one frozen backbone."""

from ..config.presets import PRESETS
from ..config.run import RunConfig, run_config
from ..config.tuning import TuningConfig
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
