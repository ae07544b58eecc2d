"""A library of prompts, each representing its task, and search for the most similar ones."""

import os
from pathlib import Path
from typing import Literal

Similarity = Literal["cosine_of_average_tokens", "per_token_average_cosine"]
"""How two prompts are compared; `search.py` has the formulas."""


def default_folder() -> Path:
    """The default library: SOFTPROMPTS_LIBRARY, or `library` in the current directory."""
    return Path(os.environ.get("SOFTPROMPTS_LIBRARY") or "library")
