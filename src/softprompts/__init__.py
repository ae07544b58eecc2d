"""softprompts: one frozen model, many tiny prompts.

    import softprompts

    tuned = softprompts.tune("helpdesk/intent", output="runs/intent")
    tuned.predict(["Where is my parcel?"])

Everything public is here, loaded when first used; see docs/python.md.
"""

import importlib
import sys
import types
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .version import __version__

if TYPE_CHECKING:
    from .analysis.explain import explain
    from .analysis.folder_report import report
    from .backbone import Backbone, load_backbone, register_family
    from .bench.cost import cost
    from .config import Choice, PromptConfig, RunConfig, TaskConfig, TuningConfig, run_config
    from .config.kinds import (
        register_head,
        register_optimizer,
        register_route,
        register_shape,
        register_start,
    )
    from .config.serve import ServeSettings
    from .library.library import Library
    from .serving.async_engine import AsyncEngine
    from .serving.client import Client
    from .serving.engine import Engine, ensemble, probabilities
    from .serving.ensemble import evaluate_ensemble
    from .serving.requests import Limits, Sampling
    from .serving.server import create_app
    from .study.study import Study
    from .tasks import register_metric, register_task
    from .transfer.transfer import transfer
    from .tuning.run import RunFailedError
    from .tuning.tune import tune
    from .tuning.tuned import Tuned, import_peft, load

_HOMES = {
    "AsyncEngine": "serving.async_engine",
    "Backbone": "backbone",
    "Choice": "config",
    "Client": "serving.client",
    "Engine": "serving.engine",
    "Library": "library.library",
    "Limits": "serving.requests",
    "PromptConfig": "config",
    "RunConfig": "config",
    "RunFailedError": "tuning.run",
    "Sampling": "serving.requests",
    "ServeSettings": "config.serve",
    "Study": "study.study",
    "TaskConfig": "config",
    "Tuned": "tuning.tuned",
    "TuningConfig": "config",
    "cost": "bench.cost",
    "create_app": "serving.server",
    "ensemble": "serving.engine",
    "evaluate_ensemble": "serving.ensemble",
    "explain": "analysis.explain",
    "import_peft": "tuning.tuned",
    "load": "tuning.tuned",
    "load_backbone": "backbone",
    "probabilities": "serving.engine",
    "register_family": "backbone",
    "register_head": "config.kinds",
    "register_metric": "tasks.metrics",
    "register_optimizer": "config.kinds",
    "register_route": "config.kinds",
    "register_shape": "config.kinds",
    "register_start": "config.kinds",
    "register_task": "tasks.registry",
    "report": "analysis.folder_report",
    "run_config": "config",
    "transfer": "transfer.transfer",
    "tune": "tuning.tune",
}
__all__ = [
    "AsyncEngine",
    "Backbone",
    "Choice",
    "Client",
    "Engine",
    "Library",
    "Limits",
    "PromptConfig",
    "RunConfig",
    "RunFailedError",
    "Sampling",
    "ServeSettings",
    "Study",
    "TaskConfig",
    "Tuned",
    "TuningConfig",
    "UserError",
    "__version__",
    "cost",
    "create_app",
    "ensemble",
    "evaluate_ensemble",
    "explain",
    "import_peft",
    "load",
    "load_backbone",
    "probabilities",
    "register_family",
    "register_head",
    "register_metric",
    "register_optimizer",
    "register_route",
    "register_shape",
    "register_start",
    "register_task",
    "report",
    "run_config",
    "transfer",
    "tune",
]


def __getattr__(name: str) -> Any:
    """Fetch a name when it is first used, so that importing the package does not import torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'softprompts' has no attribute {name!r}")
    try:
        home = importlib.import_module(f".{_HOMES[name]}", __name__)
    except ModuleNotFoundError as error:
        if name != "create_app":
            raise
        message = f"The server needs {error.name}; run pip install 'softprompts[serve]'."
        raise UserError(message) from None
    return getattr(home, name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]


class _Package(types.ModuleType):
    """`softprompts.transfer` is the function, although its subpackage has the same name."""

    @property
    def transfer(self) -> Any:
        return __getattr__("transfer")

    @transfer.setter
    def transfer(self, module: types.ModuleType) -> None:
        """Python sets the subpackage here when it is imported."""


sys.modules[__name__].__class__ = _Package
