"""One small torch module from three choices: start (`start.py`), shape (`shape.py`), route
(`route.py`)."""

from .prompt import Prompt, build_prompt, empty_prompt, folded_prompt
from .start import Material, Source

__all__ = ["Material", "Prompt", "Source", "build_prompt", "empty_prompt", "folded_prompt"]
