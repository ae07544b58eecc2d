"""RunConfig: one typed description of a run, which Python, a YAML file or flags can fill."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import UserError, choices, setting
from ..files import write_text
from .kinds import TABLES
from .presets import PRESETS, preset_settings
from .prompt import PromptConfig
from .schema import Choice, Settings, coerce, option, schema_of
from .task import TaskConfig, absolute_data
from .tuning import TuningConfig

CONFIG_HEADER = "# softprompts tune --config THIS_FILE\n"
DEFAULT_MODEL = "t5-tiny"
"""The model that ships with the package."""
SECTIONS = ("task", "prompt", "tuning")
MAX_LENGTH = 512
"""The most tokens of a text and its prompt, unless `max_length` is set."""
SPREADS = ("balanced", "balanced_low_0", "sequential")
"""Ways to spread a model's layers over all GPUs: names of transformers' `device_map`."""
DEVICES = ("auto", "cpu", "cuda", "mps", *SPREADS, "xpu", "hpu", "npu", "xla", "meta")
"""Kinds of devices; a number may follow, as in cuda:1."""
TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")


@dataclass(frozen=True)
class RunConfig(Settings):
    """One prompt, one task, one schedule."""

    model: str = DEFAULT_MODEL
    """The frozen model: t5-tiny (included), a model folder, or a Hugging Face Hub id."""

    dtype: str = option("auto", enum=["auto", "fp32", "bf16", "int8", "int4"])
    """Precision of the frozen model; auto: bf16 on a GPU, fp32 on a CPU. int8 and int4 store the
    matrices of its layers in fewer bits, and compute in the precision that auto chooses."""

    device: str = "auto"
    """cpu, cuda, mps (Apple's GPU), or auto: a GPU if there is one. balanced, balanced_low_0 or
    sequential: spread the layers over all GPUs, as transformers' device_map does."""

    trust_remote_code: bool = False
    """Run code that comes with a Hub model."""

    preset: str = "mixture"
    """The method; it sets the defaults of all other settings."""

    paper: bool = False
    """Use the hyper-parameters of the preset's paper (learning rates are then absolute)."""

    seed: int = option(0, minimum=0, exclusiveMaximum=2**31)
    """Seed of the prompt's start, the data order and all noise."""

    task: TaskConfig = field(default_factory=TaskConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_device(self.device)
        whole_model = self.tuning.trains == "model"
        if whole_model and (self.dtype not in ("auto", "fp32") or self.device in SPREADS):
            raise whole_model_error()
        length, most = self.prompt.length, self.tuning.max_length or MAX_LENGTH
        if length >= most and (self.tuning.max_length or not self.tuning.text_length):
            raise UserError(
                f"{setting('prompt.length')} is {length:,}, but the model sees at most {most:,} "
                f"tokens, prompt and text together; lower {setting('prompt.length')}, or raise "
                f"{setting('tuning.max_length')} if the model can read more."
            )

    @property
    def method(self) -> str:
        return f"{self.preset} (paper)" if self.paper else self.preset

    def changed(self, saved: Any) -> str | None:
        """The first setting that differs from a saved config, in words; None if none does."""
        if isinstance(saved, Mapping) and isinstance(saved.get("task"), Mapping):
            saved = {**saved, "task": absolute_data(saved["task"]) | {"name": self.task.name}}
        new = {**self.plain(), "task": absolute_data(self.task.plain())}
        older = merge(RunConfig().plain(), {"tuning": {"chat": False}})  # which had no chat
        return difference(saved, _json(new), _json(older))

    def save(self, path: Path) -> None:
        text = yaml.safe_dump(self.plain(), sort_keys=False, allow_unicode=True)
        write_text(path, CONFIG_HEADER + text)


def check_tracker_names(names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"There is no tracker {name!r}; {choices(name, TRACKERS)}")
    return names


def check_device(name: str) -> str:
    """Refuse a device that no machine has; whether this one has it, torch knows."""
    if name.partition(":")[0] not in DEVICES:
        raise device_error(name)
    return name


def whole_model_error() -> UserError:
    return UserError(
        "Tuning the whole model needs fp32 weights on one device, not sharded; "
        f"set {setting('dtype', 'fp32')}, and launch without FSDP or a {setting('device')} that "
        "spreads the model."
    )


def device_error(name: str) -> UserError:
    return UserError(
        f"The device {name!r} is not available; set {setting('device')} to cpu or auto."
    )


def model_error(name: str, why: str) -> UserError:
    """The error for a model that is missing, damaged or unknown."""
    return UserError(
        f"The model {name!r} cannot be loaded ({why}); {setting('model')} must be "
        f"{DEFAULT_MODEL}, a model folder, or the id of a reachable Hub model."
    )


def check_head(config: RunConfig, model: str) -> None:
    """Refuse a linear head on a model that generates; `model` is its name."""
    if config.prompt.head.kind == "linear":
        own_head = "head" in PRESETS[config.preset].ours.get("prompt", {})
        wrong = f"The preset {config.preset}" if own_head else "A linear head"
        raise UserError(
            f"{wrong} is for encoder-only models such as BERT, and {model} is not one; "
            f"choose another {setting('model')}, or leave out "
            f"{setting('preset' if own_head else 'prompt.head')}."
        )


def run_config(*layers: Mapping[str, Any]) -> RunConfig:
    """A config from layers of settings, later ones over earlier ones, all over their preset."""
    given = merge_layers(*layers)
    known = schema_of(RunConfig)["properties"]
    preset, paper = (
        coerce(name, given.get(name, known[name]["default"]), known[name])
        for name in ("preset", "paper")
    )
    return RunConfig.of(merge(merge(RunConfig().plain(), preset_settings(preset, paper)), given))


def merge_layers(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Layers as one: a layer's steps override the epochs of the preset and of earlier layers."""
    given: dict[str, Any] = {}
    for layer in layers:
        tuning = layer.get("tuning")
        if isinstance(tuning, Mapping) and "steps" in tuning:
            layer = {**layer, "tuning": {"epochs": None, **tuning}}
        given = merge(given, layer)
    return given


def check_duration(settings: Mapping[str, Any]) -> None:
    """Refuse settings, all from one place, that say both how many steps and how many epochs."""
    tuning = settings.get("tuning")
    given = dict(tuning) if isinstance(tuning, Mapping) else {}
    if given.get("steps") is not None and given.get("epochs") not in (None, "none"):
        raise UserError(
            f"Both {setting('tuning.steps')} and {setting('tuning.epochs')} set the length of "
            "training; leave one out."
        )


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, mapping by mapping; another kind drops the options of the one below."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        if name in TABLES:
            value, under = _as_mapping(name, value), _as_mapping(name, under or {})
            same_kind = value.get("kind", under.get("kind")) == under.get("kind")
            merged[name] = {**under, **value} if same_kind else value
        elif isinstance(value, Mapping) and isinstance(under, Mapping):
            merged[name] = merge(under, value)
        else:
            merged[name] = value
    return merged


def _as_mapping(name: str, value: Any) -> dict[str, Any]:
    """A choice as a mapping; its kind may be a list, of which `expand_lists` makes runs."""
    if isinstance(value, (list, tuple)) and all(
        isinstance(v, str | Mapping | Choice) for v in value
    ):
        return {"kind": value}
    return (
        dict(value) if isinstance(value, Mapping) else Choice.of(value, TABLES[name].path).plain()
    )


def sections(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flat settings moved to their sections: `steps` to tuning, `label` to task."""
    placed: dict[str, Any] = {}
    for name, value in settings.items():
        section = _section(name, value)
        if section is not None:
            placed.setdefault(section, {})[name] = value
        elif isinstance(value, Mapping):
            placed[name] = {**placed.get(name, {}), **value}
        else:
            placed[name] = value
    check_duration(placed)
    return placed


def _section(name: str, value: Any) -> str | None:
    """The section a flat setting belongs to; None if the name is a section or top-level."""
    nested = isinstance(value, Mapping) and name not in ("labels", "optimizer")
    if nested or isinstance(value, Settings):
        return None
    parts = {"task": TaskConfig, "tuning": TuningConfig}
    return next(
        (part for part, kind in parts.items() if name in schema_of(kind)["properties"]), None
    )


def difference(old: Any, new: Any, defaults: Any = None, path: str = "") -> str | None:
    """The first setting that changed, in words: `lr was 0.3 and is now 0.1`; None if none did.

    A setting that an older version lacked had its default value.
    """
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        if old == new:
            return None
        was, is_now = ("not set" if value is None else value for value in (old, new))
        changed = f"{setting(path)} was {was} and is now {is_now}"
        return changed if path else "its settings are unreadable"
    defaults = defaults if isinstance(defaults, Mapping) else {}
    for key in dict.fromkeys([*old, *new]):
        default, below = defaults.get(key), f"{path}.{key}".strip(".")
        change = difference(old.get(key, default), new.get(key), default, below)
        if change is not None:
            return change
    return None


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))
