"""The registry of model families.

A family is one subclass of `Backbone` under `@register_family(name)`, inside the package or in a
plugin. It declares what others need to know: the models it handles (`model_types`, or `fits`), the
transformers class that loads them (`auto_class`) and the task type PEFT knows it by.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from ..config import load_plugins
from .backbone import Backbone

FAMILIES: dict[str, type[Backbone]] = {}

Family = TypeVar("Family", bound=type[Backbone])


def register_family(name: str) -> Callable[[Family], Family]:
    """Class decorator: `load_backbone` loads the models that the class handles as this family."""

    def register(family: Family) -> Family:
        family.family = name
        FAMILIES[name] = family
        return family

    return register


def family_for(config: Any) -> type[Backbone] | None:
    """The family of a transformers config, the latest registered first; None if unsupported."""
    if _registered(config) is None:
        load_plugins()
    return _registered(config)


def _registered(config: Any) -> type[Backbone] | None:
    return next((family for family in reversed(FAMILIES.values()) if family.handles(config)), None)


def peft_task_types() -> dict[str, str]:
    """PEFT's task type for each family that PEFT has one for, plugins included."""
    load_plugins()
    return {
        name: family.peft_task_type for name, family in FAMILIES.items() if family.peft_task_type
    }
