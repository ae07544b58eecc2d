"""Settings, kinds, presets and lists of runs. No torch, so that every --help is instant."""

from .kinds import TABLES, heads, optimizers, routes, shapes, starts
from .plugins import PLUGIN_HINT, load_plugins
from .presets import PRESETS
from .products import Member, expand_lists, spell
from .prompt import PromptConfig
from .run import DEFAULT_MODEL, RunConfig, difference, merge, run_config, sections
from .schema import Choice, Schema, Settings, coerce, option, schema_of
from .task import DATA_PATHS, TaskConfig, absolute_data, locate_data
from .tuning import TuningConfig
from .yaml_file import read_config, read_yaml

__all__ = [
    "DATA_PATHS",
    "DEFAULT_MODEL",
    "PLUGIN_HINT",
    "PRESETS",
    "TABLES",
    "Choice",
    "Member",
    "PromptConfig",
    "RunConfig",
    "Schema",
    "Settings",
    "TaskConfig",
    "TuningConfig",
    "absolute_data",
    "coerce",
    "difference",
    "expand_lists",
    "heads",
    "load_plugins",
    "locate_data",
    "merge",
    "optimizers",
    "option",
    "read_config",
    "read_yaml",
    "routes",
    "run_config",
    "schema_of",
    "sections",
    "shapes",
    "spell",
    "starts",
]
