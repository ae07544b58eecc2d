"""softprompts: one frozen model, many tiny prompts.

import softprompts
tuned = softprompts.tune("helpdesk/intent", output="runs/intent")
tuned.predict(["Where is my parcel?"])
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Tuned", "UserError", "import_peft", "load", "load_backbone", "transfer_to", "tune"]

if TYPE_CHECKING:
    from .backbone import load_backbone
    from .errors import UserError
    from .transfer.transfer import transfer_to
    from .tuning.api import Tuned, import_peft, load, tune

_HOMES = {
    "Tuned": "api",
    "UserError": "errors",
    "import_peft": "api",
    "load": "api",
    "load_backbone": "backbone",
    "transfer_to": "transfer.transfer",
    "tune": "api",
}


def __getattr__(name: str) -> Any:
    """Names are fetched when first used, so that importing the package does not import torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'softprompts' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
