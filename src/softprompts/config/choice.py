"""A choice of one kind, with that kind's own options: `{kind: residual, bottleneck: 400}`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError, setting


@dataclass(frozen=True)
class Choice:
    """`kind` names a start, shape, route, head or optimiser; `options` are its settings."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, path: str = "prompt.shape") -> "Choice":
        """From a name, a mapping with `kind`, or a Choice."""
        if isinstance(value, Choice):
            return value
        if isinstance(value, str):
            return cls(value)
        if isinstance(value, Mapping) and isinstance(value.get("kind"), str):
            options = {name: option for name, option in value.items() if name != "kind"}
            return cls(value["kind"], options)
        raise UserError(
            f"{setting(path)} is {value!r}; write the name of a kind, "
            "or a mapping such as {kind: residual, bottleneck: 400}."
        )

    def plain(self) -> dict[str, Any]:
        """As plain data for YAML and JSON."""
        return {"kind": self.kind, **self.options}
