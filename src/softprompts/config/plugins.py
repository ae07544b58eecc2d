"""Plugins: modules outside the package that register kinds, tasks, metrics or model families.

They are named by entry points of the group `softprompts.plugins`, or by the variable
SOFTPROMPTS_PLUGINS (modules or files, separated by commas), which `--plugin` sets.
"""

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

from ..errors import UserError

GROUP = "softprompts.plugins"
VARIABLE = "SOFTPROMPTS_PLUGINS"
PLUGIN_HINT = f"if a plugin registers it, name the plugin with --plugin or in {VARIABLE}"
"""What to do about an unknown name."""


def load_plugins() -> None:
    """Import every plugin once. Called when a name is unknown, so that start-up stays fast."""
    for entry in importlib.metadata.entry_points(group=GROUP):
        entry.load()
    for name in filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(","))):
        _import(name)


def check_plugin(name: str) -> None:
    """Refuse a file or module that does not exist, without importing it."""
    package = name.partition(".")[0]
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise UserError(f"The plugin {name} cannot be loaded (the file does not exist).")
    elif not package or importlib.util.find_spec(package) is None:
        raise UserError(
            f"The plugin {name} cannot be loaded (it is neither a .py file nor a module)."
        )


@functools.cache
def _import(name: str) -> None:
    path = Path(name)
    try:
        if path.suffix == ".py":
            module = (
                f"softprompts_plugin_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
            )
            spec = importlib.util.spec_from_file_location(module, path)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[module] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[module])
        else:
            importlib.import_module(name)
    except (ImportError, OSError, SyntaxError) as error:
        raise UserError(f"The plugin {name} cannot be loaded ({error}).") from None
