"""Cards: what `prompt.json` says about a prompt.

A card names the task and the backbone, how the prompt was tuned and how well it scored, and holds
all that is needed to answer new texts with it. Cards of older versions lack some keys, and those of
imported and recycled prompts describe no training. Keys that a file lacks stay out of it when the
card is written again, and keys that this version does not know stay in.
"""

import dataclasses
import functools
import math
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, get_args, get_origin, get_type_hints

from ..config import Choice, PromptConfig, locate_data
from ..errors import UserError, setting
from ..files import read_json, write_json
from ..tasks import MEAN, TextFormat, check_template, has_metric
from ..version import __version__
from .file_names import CARD

if TYPE_CHECKING:
    from ..backbone import Backbone  # a card is read without torch

FORMAT = 1
"""The version of the format. A card without one is of version 1."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A JSON object whose keys are the fields of a subclass, in their order."""

    absent: frozenset[str] = frozenset()
    """Keys that stay out of the file as long as they have their default."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Keys that this version does not know."""

    @classmethod
    def describing(cls, thing: "PromptConfig | Backbone") -> Self:
        """The part whose fields are attributes of a thing: a prompt's config, or a backbone."""
        return cls(**{name: getattr(thing, name) for name in _keys(cls)})

    def plain(self) -> dict[str, Any]:
        values = {
            name: _plain(getattr(self, name))
            for name, key in _keys(type(self)).items()
            if name not in self.absent or getattr(self, name) != _default(key)
        }
        return {**values, **self.extra}


@dataclass(frozen=True, kw_only=True)
class PromptCard(Part):
    """The folded prompt: its size, and how it is routed, placed and answered with."""

    length: int
    count: int = 1
    route: Choice = field(default_factory=lambda: Choice("single"))
    place: str = "prefix"
    head: Choice = field(default_factory=lambda: Choice("auto"))

    def __post_init__(self) -> None:
        if self.length < 0 or self.count < 1:
            raise ValueError(f"prompt is {self.count} x {self.length}")

    def config(self) -> PromptConfig:
        return PromptConfig.of(dataclasses.replace(self, extra={}).plain())


@dataclass(frozen=True, kw_only=True)
class BackboneCard(Part):
    """The only backbone that the prompt works with."""

    name: str
    fingerprint: str
    family: str | None = None
    dtype: str | None = None
    hidden: int | None = None

    def __post_init__(self) -> None:
        if not (self.name and self.fingerprint):
            raise ValueError("backbone has no name or fingerprint")


@dataclass(frozen=True, kw_only=True)
class TaskCard(Part):
    """The task: how its rows are read, how predictions are scored, which rows there were."""

    name: str
    form: TextFormat | None = None
    commonest: str | None = None
    """The most frequent target of the training rows."""
    metrics: list[str] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    """Numbers of rows: train, validation, skipped."""
    digests: dict[str, str] = field(default_factory=dict)
    """Hashes of the rows, by split."""
    answer_length: int | None = None
    """The most tokens of an answer, for tasks without labels."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("task has no name")


@dataclass(frozen=True, kw_only=True)
class EmbeddingCard(Part):
    """The task embedding beside the prompt."""

    step: int


@dataclass(frozen=True, kw_only=True)
class Lineage(Part):
    """The prompt of another backbone that this one was recycled from."""

    recycled_from: str
    method: str | None = None
    backbone: BackboneCard | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    how: dict[str, Any] = field(default_factory=dict)
    """The options of the recycling."""


class Answering(NamedTuple):
    """What it takes to answer new texts with a prompt."""

    form: TextFormat
    scoring: str
    max_length: int
    answer_length: int | None
    chat: bool


UNTRAINED = frozenset(
    {
        *("model", "invalid", "test", "best_step", "embedding", "steps", "stopped", "failed"),
        *("cut_texts", "trained_parameters", "seed", "lineage", "machine", "scores"),
        *("loss", "unknown_tokens"),
    }
)
"""Keys that the card of an imported or a recycled prompt lacks."""


@dataclass(frozen=True, kw_only=True)
class Card(Part):
    prompt: PromptCard
    method: str | None = None
    backbone: BackboneCard
    model: str | None = None
    """The folder of the tuned model beside the card, if the run tuned the whole model."""
    task: TaskCard
    metrics: dict[str, float] = field(default_factory=dict)
    """Scores on the validation rows."""
    invalid: int | None = None
    """Validation answers that matched no label."""
    majority: dict[str, float] = field(default_factory=dict)
    """Scores of always answering with the most frequent target."""
    test: dict[str, float] | None = None
    """Scores on the test rows, if the task has some."""
    scores: dict[str, Any] = field(default_factory=dict)
    """The full `ScoreReport` of each split: rows, intervals, baselines, classes, confusion."""
    loss: dict[str, float] = field(default_factory=dict)
    """The mean training losses of the `first` and the `last` steps, and that of a `uniform`
    guess."""
    scoring: str | None = None
    best_step: int | None = None
    embedding: EmbeddingCard | None = None
    steps: int | None = None
    stopped: str | None = None
    """Why the run ended before its last step, if it did."""
    failed: bool = False
    cut_texts: int = 0
    """Training texts that were longer than the model reads."""
    unknown_tokens: float = 0.0
    """The share of unknown tokens in a sample of the training texts."""
    trained_parameters: int | None = None
    seed: int | None = None
    config: dict[str, Any] = field(default_factory=dict)
    """The settings of the run. Other versions' settings may differ, so they stay plain data."""
    machine: dict[str, str] = field(default_factory=dict)
    """Where the run ran: device, precision, versions."""
    lineage: Lineage | None = None
    version: str | None = __version__
    format: int = FORMAT

    absent: frozenset[str] = frozenset({"lineage", "machine", "scores", "loss", "unknown_tokens"})
    path: Path | None = field(default=None, compare=False, repr=False)

    # -- files -------------------------------------------------------------------------------------

    @classmethod
    def read(cls, path: Path) -> Self:
        return cls.of(read_json(path), path)

    @classmethod
    def of_folder(cls, folder: Path) -> Self:
        if not (folder / CARD).exists():
            raise UserError(
                f"{folder} holds no {CARD}: either it is not a prompt, or its run has not "
                "finished (run the same command again)."
            )
        return cls.read(folder / CARD)

    @classmethod
    def of(cls, data: Any, path: Path | None = None) -> Self:
        """The card that `prompt.json` holds as `data`, with every value checked."""
        try:
            card: Self = _parsed(cls, data, "")
            _ = card.start, card.max_length
        except (ValueError, UserError) as error:
            raise _corrupted(path, str(error).rstrip(".")) from None
        if card.format > FORMAT:
            raise UserError(
                f"The card {_named(path)} was written by a newer version of softprompts "
                f"(card format {card.format}); upgrade softprompts."
            )
        return dataclasses.replace(card, path=path)

    def write(self, path: Path) -> None:
        write_json(path, self.plain())

    # -- what follows from it ----------------------------------------------------------------------

    @property
    def metric(self) -> str:
        """The name of the metric that the best step was chosen by."""
        return self.task.metrics[0]

    @property
    def score(self) -> float:
        return self.metrics[self.metric]

    @property
    def judged(self) -> dict[str, Any]:
        """The report that the prompt is judged by: of the test rows if there are some.

        Cards of older versions have none.
        """
        return dict(self.scores.get("test") or self.scores.get("validation") or {})

    @property
    def embedded_at(self) -> int | None:
        """The step of the task embedding; without one, the prompt's own step."""
        return self.best_step if self.embedding is None else self.embedding.step

    @property
    def max_length(self) -> int | None:
        length = self._settings("tuning").get("max_length")
        return None if length is None else int(length)

    @property
    def chat(self) -> bool:
        """Whether texts go through the backbone's chat template; older cards do not say."""
        return self._settings("tuning").get("chat") is True

    @property
    def task_settings(self) -> dict[str, Any]:
        """The settings of the task, with the current paths of its data."""
        settings = self._settings("task")
        return settings if self.path is None else locate_data(settings, self.path.parent)

    @property
    def start(self) -> Choice | None:
        """Where the prompt's numbers came from."""
        start = self._settings("prompt").get("start")
        return None if start is None else Choice.of(start)

    @property
    def sources(self) -> list[str]:
        """The folders of the prompts that this one started from."""
        sources = self.start.options.get("sources") if self.start is not None else None
        return [str(source) for source in sources] if isinstance(sources, list) else []

    @property
    def source_weights(self) -> list[float] | None:
        """Their weights in a weighted average."""
        weights = self.start.options.get("weights") if self.start is not None else None
        return weights if isinstance(weights, list) else None

    def _settings(self, section: str) -> dict[str, Any]:
        settings = self.config.get(section, {})
        if not isinstance(settings, dict):
            raise ValueError(f"config.{section} is {settings!r}")
        return settings

    # -- checks ------------------------------------------------------------------------------------

    def answering(self) -> Answering:
        """How new texts are answered; an error if the card does not say so."""
        return self._answering

    @functools.cached_property
    def _answering(self) -> Answering:
        form, scoring, max_length = self.task.form, self.scoring, self.max_length
        if form is None or scoring is None or max_length is None:
            parts = {"task.form": form, "scoring": scoring, "config.tuning.max_length": max_length}
            missing = next(name for name, value in parts.items() if value is None)
            raise _corrupted(self.path, f"it lacks {missing}")
        if form.definition is None:
            check_template(form.template)
        if scoring != "generate" and not (scoring == "labels" and form.labels):
            raise _corrupted(self.path, f"scoring is {scoring!r}")
        for name in self.task.metrics:
            metric = name.rpartition(":")[2]
            if metric != MEAN and not has_metric(metric):
                raise _corrupted(self.path, f"there is no metric {name!r}")
        return Answering(form, scoring, max_length, self.task.answer_length, self.chat)

    def check_backbone(self, backbone: "Backbone", prompt: Path | str) -> None:
        """Refuse any backbone but the prompt's own; `prompt` names the prompt in the error."""
        if self.backbone.fingerprint == backbone.fingerprint:
            return
        name = self.backbone.name
        if name == backbone.name:
            raise UserError(
                f"The prompt {prompt} was tuned on another version of {name} and does not work "
                f"with this one; name the folder of that version as {setting('model')}, map the "
                "prompt to this one with `softprompts prompts recycle`, or tune it again."
            )
        raise UserError(
            f"The prompt {prompt} was tuned on {name} and does not work with another model; "
            "use that model, or tune it again."
        )


# -- reading and writing parts ---------------------------------------------------------------------


def _named(path: Path | None) -> str:
    return "of this prompt" if path is None else str(path)


def _corrupted(path: Path | None, why: str) -> UserError:
    return UserError(
        f"The card {_named(path)} is corrupted ({why}); "
        "copy the file again, or tune the prompt again."
    )


def _keys(kind: Any) -> dict[str, dataclasses.Field[Any]]:
    """The fields of a part that are keys of the file."""
    internal = {"absent", "extra", "path"} if issubclass(kind, Part) else set()
    return {key.name: key for key in dataclasses.fields(kind) if key.name not in internal}


_hints = functools.cache(get_type_hints)


def _default(key: dataclasses.Field[Any]) -> Any:
    factory = key.default_factory
    return key.default if factory is dataclasses.MISSING else factory()


def _plain(value: Any) -> Any:
    if isinstance(value, Part | Choice):
        return value.plain()
    return dataclasses.asdict(value) if isinstance(value, TextFormat) else value


def _parsed(kind: Any, data: Any, where: str) -> Any:
    """An object of the file as the dataclass `kind`."""
    if not isinstance(data, dict):
        raise ValueError(f"{where or 'it'} is {data!r}")
    keys, hints, prefix = _keys(kind), _hints(kind), f"{where}." if where else ""
    for name, key in keys.items():
        if name not in data and _default(key) is dataclasses.MISSING:
            raise ValueError(f"it lacks {prefix}{name}")
    values = {
        name: _checked(hints[name], data[name], f"{prefix}{name}")
        for name, key in keys.items()
        if data.get(name) is not None or _default(key) is dataclasses.MISSING
    }
    unknown = {name: value for name, value in data.items() if name not in keys}
    if issubclass(kind, Part):
        return kind(**values, absent=frozenset(keys.keys() - data.keys()), extra=unknown)
    if unknown:
        raise ValueError(f"{prefix}{next(iter(unknown))} is unknown")
    return kind(**values)


def _checked(hint: Any, value: Any, where: str) -> Any:
    """A value of the file, if it is of the type that the field has."""
    kind = get_args(hint)[0] if isinstance(hint, types.UnionType) else hint  # X | None
    plain, arguments = get_origin(kind) or kind, get_args(kind)
    if kind is Any:
        return value
    if kind is Choice:
        return Choice.of(value)
    if dataclasses.is_dataclass(kind):
        return _parsed(kind, value, where)
    allowed: Any = (int, float) if plain is float else plain
    if not isinstance(value, allowed) or (isinstance(value, bool) and plain is not bool):
        raise ValueError(f"{where} is {value!r}")
    if plain is float and not math.isfinite(value):
        raise ValueError(f"{where} is {value}")
    if plain is dict:
        return {name: _checked(arguments[1], v, f"{where}.{name}") for name, v in value.items()}
    if plain is list:
        return [_checked(arguments[0], item, where) for item in value]
    return value
