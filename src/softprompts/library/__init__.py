"""Prompts as task embeddings: which trained prompt is nearest to a new task's."""

import os
from pathlib import Path


def default_folder() -> Path:
    """Where the library is when nobody says: `library` here, or what SOFTPROMPTS_LIBRARY names."""
    return Path(os.environ.get("SOFTPROMPTS_LIBRARY") or "library")
