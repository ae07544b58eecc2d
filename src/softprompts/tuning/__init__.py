"""Tuning: many runs on one frozen backbone."""

from .cohort import Cohort, Watcher
from .config import RunConfig, TuningConfig, run_config
from .evaluate import Predictor
from .presets import PRESETS
from .run import Run, RunFailedError

__all__ = ["PRESETS", "Cohort", "Predictor", "Run", "RunConfig", "RunFailedError", "TuningConfig", "Watcher", "run_config"]
