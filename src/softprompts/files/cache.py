"""The folder that holds what can be computed again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """SOFTPROMPTS_CACHE, or `softprompts` in the user's cache folder."""
    if folder := os.environ.get("SOFTPROMPTS_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "softprompts"
