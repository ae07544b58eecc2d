"""Run configs: one typed description of a run that Python, a YAML file or flags can fill, and that reproduces it."""

import ast
import dataclasses
import inspect
import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from ..backbone import DEFAULT
from ..errors import UserError
from ..files import write_text
from ..prompt import PromptConfig
from ..prompt.prompt import TABLES
from ..tasks import TaskConfig
from .choice import Choice, coerce, difference, from_mapping
from .presets import preset_settings

CONFIG_HEAD = "# softprompts tune --config THIS_FILE\n"


@dataclass(frozen=True)
class TuningConfig:
    """How to learn it."""

    trains: Literal["prompt", "model", "nothing"] = "prompt"
    """What learns: the prompt; the whole model instead (model tuning; saved as model/ in the run's folder); nothing (written prompts)."""

    optimizer: Literal["adamw", "adafactor"] = "adamw"
    """AdamW, or Adafactor exactly as T5X runs it for prompt tuning."""

    lr: float = 0.3
    """Learning rate, in units of the backbone's embedding scale unless --prompt.unit says otherwise."""

    shape_lr: float | None = 0.003
    """Learning rate of the shape's network; none: the same as --lr."""

    route_lr: float | None = 0.01
    """Learning rate of the router; none: the same as --lr."""

    head_lr: float | None = 0.01
    """Learning rate of an encoder-only model's linear head; none: the same as --lr."""

    schedule: Literal["constant", "linear", "cosine"] = "linear"
    """How the learning rate falls after the warm-up: not at all, to zero in a line, to zero along a cosine."""

    warmup: float = 0.05
    """Warm-up: a number of steps, or below 1 a share of all steps."""

    weight_decay: float = 1e-5
    """Weight decay; times the learning rate in AdamW, by itself in Adafactor, as each is defined."""

    start_step: int = 0
    """The step Adafactor's second moment starts counting at; the papers' runs count on from 1,100,000."""

    clip: float | None = None
    """The largest norm of a run's gradient; none: no clipping."""

    steps: int = 400
    """Optimiser steps."""

    epochs: float | None = None
    """Passes over the training data, instead of --steps."""

    batch_size: int = 16
    """Rows of one forward pass."""

    accumulate: int = 1
    """Forward passes of one step."""

    dropout: float = 0.0
    """Dropout inside the frozen model while training."""

    recompute: bool = False
    """Keep no activations of the frozen model's layers: the backward pass computes them again, in less memory and more time."""

    z_loss: float = 0.0
    """Weight of the squared log-normaliser (T5X: 1e-4)."""

    max_length: int | None = None
    """The most tokens the model sees, prompt included; longer texts are cut. None: 512, or fewer where the model takes no more."""

    evaluate_every: int = 100
    """Steps between evaluations."""

    checkpoint_every: int = 50
    """Steps between checkpoints: the most a kill can cost."""

    patience: int | None = None
    """Stop after so many evaluations without a better score."""

    embed_at: int = 10_000
    """The step whose prompt stands for the task when tasks are compared (SPoT: 10,000); a shorter run's last step."""

    scoring: Literal["auto", "generate", "labels"] = "auto"
    """Evaluate by greedy generation, or by the label of highest log-probability; auto: generate where the model can write."""

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "batch_size",
            "accumulate",
            "evaluate_every",
            "checkpoint_every",
            "embed_at",
            "patience",
            "max_length",
        ):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        for name in ("lr", "shape_lr", "route_lr", "head_lr", "epochs", "clip"):
            if getattr(self, name) is not None and not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"{name} is {getattr(self, name)}; it must be a positive number.")
        for name in ("weight_decay", "z_loss", "warmup", "start_step"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise UserError(f"{name} is {getattr(self, name)}; it must not be negative.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"dropout is {self.dropout}; it must be from 0 to below 1.")


@dataclass(frozen=True)
class RunConfig:
    """One prompt, one task, one schedule."""

    model: str = DEFAULT
    """The frozen model: t5-tiny (embedded), a model folder, or a Hugging Face hub id."""

    dtype: str = "auto"
    """fp32 or bf16 for the frozen model; auto: bf16 on a GPU, fp32 on a CPU."""

    device: str = "auto"
    """cpu, cuda, or auto."""

    trust_remote_code: bool = False
    """Run code that a hub model brings along."""

    preset: str = "mixture"
    """The method this config begins from; its settings lie under these."""

    paper: bool = False
    """The preset with its paper's own, absolute hyper-parameters."""

    @property
    def method(self) -> str:
        return f"{self.preset} (paper)" if self.paper else self.preset

    seed: int = 0
    """Seed of the start, the data order and all noise."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**31:
            raise UserError(f"The seed is {self.seed}; it must be from 0 to below 2,147,483,648.")

    task: TaskConfig = field(default_factory=TaskConfig)
    prompt: PromptConfig = field(default_factory=PromptConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)

    def plain(self) -> dict[str, Any]:
        """As YAML and JSON hold it."""
        return {field.name: _plain(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def changed(self, old: Any) -> str | None:
        """What is not as a saved config tells, in words; what an older version did not know was as it is by default."""
        return difference(
            old, json.loads(json.dumps(self.plain())), json.loads(json.dumps(RunConfig().plain()))
        )

    def save(self, path: Path) -> None:
        write_text(
            path, CONFIG_HEAD + yaml.safe_dump(self.plain(), sort_keys=False, allow_unicode=True)
        )


def read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        read, twice = yaml.safe_load(text), _named_twice(text)
    except FileNotFoundError:
        raise UserError(f"The config {path} does not exist.") from None
    except PermissionError:
        raise UserError(
            f"The config {path} may not be read by this user; ask its owner for leave (chmod a+r)."
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(
            f"The config {path} cannot be read as YAML ({' '.join(str(error).split())})."
        ) from None
    if not isinstance(read, dict):
        raise UserError(f"The config {path} holds no settings; see docs/configuration.md.")
    if twice is not None:  # YAML would take the later
        raise UserError(f"{path} names {twice}; leave one out.")
    return read


def _named_twice(text: str) -> str | None:
    """A key that some mapping of a YAML text holds twice, and on which lines."""
    nodes: list[Any] = [yaml.compose(text, yaml.SafeLoader)]
    seen: set[int] = set()
    while nodes:
        node = nodes.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            nodes += [value for _, value in node.value]
            lines: dict[tuple[str, str], int] = {}
            for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
                line = key.start_mark.line + 1
                if (key.tag, key.value) in lines:
                    return f"{key.value} twice (lines {lines[key.tag, key.value]} and {line})"
                lines[key.tag, key.value] = line
    return None


def run_config(*layers: Mapping[str, Any]) -> RunConfig:
    """A config from layers of settings, later ones over earlier ones, and all of them over the preset they name."""
    given: dict[str, Any] = {}
    for layer in layers:
        given = merge(given, layer)
    preset, paper = (
        coerce(name, given.get(name, getattr(RunConfig, name)), kind)
        for name, kind in (("preset", str), ("paper", bool))
    )
    below = merge(RunConfig().plain(), preset_settings(preset, paper))
    tuning = given.get("tuning")
    if (
        isinstance(tuning, Mapping) and "steps" in tuning
    ):  # a number of steps that was asked for wins over a preset's epochs
        below["tuning"]["epochs"] = None
    return from_mapping(RunConfig, merge(below, given))


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` over `below`, mapping by mapping. A start, shape, route or head of another kind forgets the options of the kind below."""
    merged = dict(below)
    for name, value in above.items():
        under = merged.get(name)
        if name in TABLES:
            value, under = _kinded(value), _kinded(under or {})
            merged[name] = (
                {**under, **value}
                if value.get("kind", under.get("kind")) == under.get("kind")
                else value
            )
        elif isinstance(value, Mapping) and isinstance(under, Mapping):
            merged[name] = merge(under, value)
        else:
            merged[name] = value
    return merged


def _kinded(value: Any) -> dict[str, Any]:
    if isinstance(value, Choice):
        return value.plain()
    if isinstance(value, str) or (
        isinstance(value, (list, tuple))
        and all(isinstance(v, str | Mapping | Choice) for v in value)
    ):
        return {"kind": value}  # a list is for `run_configs`, which makes a run of each
    if not isinstance(value, Mapping):
        raise UserError(
            f"{value!r} is no start, shape, route or head; write a name, or a mapping such as {{kind: residual, bottleneck: 400}}."
        )
    return dict(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Choice):
        return value.plain()
    if dataclasses.is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def attribute_docs(kind: type) -> dict[str, str]:
    """The docstring under each attribute of a dataclass, which is where flags take their help from."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs = {}
    for here, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(here, ast.AnnAssign)
            and isinstance(here.target, ast.Name)
            and isinstance(after, ast.Expr)
        ):
            docs[here.target.id] = str(ast.literal_eval(after.value))
    return docs
