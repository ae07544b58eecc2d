"""A library of prompts, which stand for their tasks: find those most similar to a new task's."""

import os
from pathlib import Path
from typing import Literal

Similarity = Literal["cosine_of_average_tokens", "per_token_average_cosine"]
"""How two prompts are compared; `search.py` has the formulas."""


def default_folder() -> Path:
    """The library's folder by default: SOFTPROMPTS_LIBRARY, or `library` in the working folder."""
    return Path(os.environ.get("SOFTPROMPTS_LIBRARY") or "library")
