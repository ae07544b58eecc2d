"""One small torch module from three choices: start (`start.py`), shape (`shape.py`), route (`route.py`)."""

from ..artifacts.prompt_file import load_prompt, save_prompt
from .prompt import Prompt, PromptConfig, build
from .start import Material, Source

__all__ = ["Material", "Prompt", "PromptConfig", "Source", "build", "load_prompt", "save_prompt"]
