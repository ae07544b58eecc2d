"""Tuning: many runs on one frozen backbone."""

from .cohort import Cohort, Watcher
from .config import RunConfig, TuningConfig, run_config
from .evaluate import Predictor
from .presets import PRESETS, preset_settings
from .run import Run

__all__ = ["PRESETS", "Cohort", "Predictor", "Run", "RunConfig", "TuningConfig", "Watcher", "preset_settings", "run_config"]
