"""Tuning: many runs on one frozen backbone."""

from .cohort import Cohort, Watcher
from .config import RunConfig, TuningConfig, run_config
from .evaluate import Predictor
from .presets import DEFAULT_PRESET, PRESETS, preset_settings
from .run import Run

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "Cohort",
    "Predictor",
    "Run",
    "RunConfig",
    "TuningConfig",
    "Watcher",
    "preset_settings",
    "run_config",
]
