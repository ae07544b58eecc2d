"""The settings of `softprompts cost`, beside those of a run. No torch: --help is instant."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .presets import PRESETS
from .products import expand_lists
from .run import RunConfig, merge_layers
from .schema import Settings, option


@dataclass(frozen=True)
class CostSettings(Settings):
    """The rows that a step trains on and that an answer is given to, and the model's precision."""

    text: int = option(128, minimum=1, maximum=2**20)
    """Text tokens of a row, without the prompt."""

    target: int = option(2, minimum=1, maximum=2**20)
    """Target tokens of a row, end of sequence included; an encoder-only model has one."""

    classes: int = option(2, minimum=2, maximum=2**20)
    """Labels of an encoder-only model's linear head."""

    dtype: Literal["fp32", "bf16", "int8", "int4"] = "fp32"
    """Precision of the frozen model."""


def method_configs(*layers: Mapping[str, Any]) -> Iterator[RunConfig]:
    """The methods that layers of settings with lists stand for, as runs.

    Presets without a prompt ignore the settings of prompts, so that they can stand in one table.
    """
    settings = merge_layers(*layers)
    preset = settings.get("preset", RunConfig.preset)
    names = [name.strip() for name in preset.split(",")] if isinstance(preset, str) else preset
    for name in names:
        known = PRESETS.get(name)
        own = settings | {"preset": name}
        if known is not None and known.ours.get("prompt", {}).get("length") == 0:
            own.pop("prompt", None)
        for member in expand_lists(own):
            yield member.config
