"""One small torch module from three choices: start (`start.py`), shape (`shape.py`), route (`route.py`)."""

from .prompt import Prompt, PromptConfig, build
from .start import Material, Source

__all__ = ["Material", "Prompt", "PromptConfig", "Source", "build"]
