"""Scripts of the repository as modules, for the tests of benchmarks/ and recipes/."""

import importlib.util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

BAD_FLAGS = [
    (["--seeds", "0,x"], "--seeds is '0,x'; give whole numbers separated by commas"),
    (["--seeds", ""], "--seeds is ''; give whole numbers"),
    (["--tasks", "helpdesk/urgency,helpdesk/none"], "There is no task 'helpdesk/none'"),
    (["--tasks", "glue/sst2", "--data-dir", "gone"], "The data folder gone does not exist"),
    (["--steps", "0"], "steps is 0; it must be at least 1."),
]
"""Flags of scripts that tune prompts on several tasks, and their errors."""


def load_script(path: str) -> Any:
    """The module of a script such as benchmarks/sweep.py."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
