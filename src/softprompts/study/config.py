"""What a study file says, and errors that spell settings as its keys."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ..artifacts.file_names import STUDY_FILE
from ..config import (
    DEFAULT_MODEL,
    RunConfig,
    Schema,
    Settings,
    TaskConfig,
    TuningConfig,
    merge,
    option,
    read_yaml,
    run_config,
    schema_of,
    sections,
)
from ..config.json_schema import file_schema, flat_run_settings
from ..errors import UserError, as_flag, as_key, choices, closest, setting
from ..files import safe_name
from ..library import Similarity
from ..tasks import BENCHMARKS, PREFIX_LM, data_folder, definition, has_rows
from .claims import OF_ONE_ANALYSIS, Claim, read_claims

OPTIONS = {"output", "device", "task.data_dir", "workers", "only", "ray", "reuse"}
"""Options of `softprompts study`, which it takes as flags."""
SET_BY_PLAN = ("model", "seed")
SETTINGS = sorted(
    {f.name for part in (RunConfig, TaskConfig, TuningConfig) for f in dataclasses.fields(part)}
    - set(SET_BY_PLAN)
)
"""Settings that a study may give to its runs."""


@dataclass(frozen=True)
class Retrieval(Settings):
    """For each way to use the nearest source prompts, the values of k to try it with."""

    section: ClassVar[str] = "retrieval"

    best: list[int] = field(default_factory=list)
    """Best of the top k; needs no extra runs."""
    average: list[int] = field(default_factory=list)
    """One run from the mean of the top k, weighted by similarity."""
    mixture: list[int] = field(default_factory=list)
    """A prompt tuned on the rows of the target and of the top k's tasks, and a run from it."""
    similarity: Similarity = "per_token_average_cosine"
    """How the sources of averages and mixtures are ranked."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("best", "average", "mixture"):
            ks = getattr(self, name)
            if any(k < 1 for k in ks) or len(set(ks)) < len(ks):
                raise UserError(
                    f"{setting(f'retrieval.{name}')} is {ks}; "
                    "it must be different numbers of at least 1."
                )

    @property
    def largest_k(self) -> int:
        return max([*self.best, *self.average, *self.mixture], default=0)


@dataclass(frozen=True)
class Grid(Settings):
    """Sources x targets x seeds on some backbones: a study, or one variant of it."""

    backbones: list[str] = field(default_factory=lambda: [DEFAULT_MODEL])
    sources: list[Any] = field(default_factory=list)
    """Tasks, mixtures (a+b) or benchmarks, each learned by one prompt.

    Or mappings with a name and task settings, such as those of your own data.
    """
    targets: list[Any] = field(default_factory=list)
    """Tasks; a benchmark stands for each of its tasks."""
    seeds: list[int] = field(default_factory=lambda: [0])
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of all runs, as `tune` takes them."""
    source: dict[str, Any] = field(default_factory=dict)
    """Settings of source runs, which override `settings`."""
    target: dict[str, Any] = field(default_factory=dict)
    """Settings of baselines and of all runs from another prompt, which override `settings`."""
    choose: dict[str, Any] = field(default_factory=dict)
    """Lists of values of settings, such as `lr: [0.1, 0.3]`. The best are chosen for each source
    and target, by runs with the first seed on rows held out of the training rows."""
    own_task: bool = False
    """Whether a source's prompt also starts a run on its own task.

    Means over targets are then over the same targets for every source.
    """
    retrieval: Retrieval = field(default_factory=Retrieval)


@dataclass(frozen=True)
class StudyConfig(Grid):
    """A study file."""

    name: str = "study"
    about: str = ""
    data_dir: str | None = None
    """A folder with named tasks' rows; default: SOFTPROMPTS_DATA, or the Hugging Face Hub."""
    cohort: int = option(16, minimum=1)
    """Maximum number of runs that share one forward pass."""
    claims: list[Any] = field(default_factory=list)
    """What a paper says, and how the verdict on it is reached (`study/claims.py`)."""
    variants: dict[str, Any] = field(default_factory=dict)
    """The study with other settings, by name; each lists only what differs. Only these are run: to
    run the study's settings too, add a variant that changes nothing (`base: {}`)."""

    @property
    def skips_own_settings(self) -> bool:
        """Whether every variant changes something, so that the plain study is not run."""
        return bool(self.variants) and all(self.variants.values())

    def grids(self) -> list[tuple[str | None, Grid]]:
        """The variants, or the study itself if there are none."""
        common = {f.name: getattr(self, f.name) for f in dataclasses.fields(Grid)}
        common["retrieval"] = self.retrieval.plain()
        if not self.variants:
            return [(None, Grid.of(common))]
        return [(name, _variant(name, common, part)) for name, part in self.variants.items()]


def _variant(name: str, common: Mapping[str, Any], changes: Any) -> Grid:
    if not isinstance(changes, Mapping | None):
        raise UserError(f"The variant {name} is {changes!r}; it must be a mapping of what differs.")
    with study_errors(f"The variant {name} cannot be used: "):
        return Grid.of(merge(common, changes or {}))


def read_study(path: Path) -> StudyConfig:
    """A study file; a key without a value counts as left out."""
    values = {name: value for name, value in read_yaml(path).items() if value is not None}
    return StudyConfig.of(values)


@dataclass(frozen=True)
class Subject:
    """A source or a target: a name, and the task settings it stands for."""

    name: str
    task: dict[str, Any]

    @property
    def mixable(self) -> bool:
        """Whether it can be part of a mixture, which joins tasks by their names."""
        return set(self.task) == {"task"}


def target_tasks(entry: Any) -> Sequence[Any]:
    """Targets, with each benchmark replaced by its tasks."""
    return BENCHMARKS.get(entry, (entry,)) if isinstance(entry, str) else (entry,)


def subject_of(entry: Any) -> Subject:
    """A source or target from its entry, whose `task` may be a list.

    `glue/mnli`, `a+b`, a benchmark's name, `{name: c4, task: prefix-lm, train: c4.txt}`, or your
    own data.
    """
    values = dict(entry) if isinstance(entry, Mapping) else {"task": entry}
    name, task = values.pop("name", None), values.pop("task", None)
    if name is not None and not isinstance(name, str):
        raise UserError(f"{entry!r} has a name that is not text; put quotes around it.")
    if task is None and name is not None and "train" in values:
        return Subject(name, values)
    parts = [part.strip() for part in task.split("+")] if isinstance(task, str) else task
    listed = isinstance(parts, Sequence) and all(isinstance(part, str) and part for part in parts)
    if not parts or not listed:
        raise UserError(
            f"{entry!r} names no task; write a task's name, or a mapping such as "
            "{name: mixed, task: [glue, superglue]}."
        )
    members = [task for part in parts for task in BENCHMARKS.get(part, (part,))]
    tasks = dict.fromkeys(task if task == PREFIX_LM else definition(task).name for task in members)
    default = "+".join(tasks if len(tasks) == 1 else parts)
    return Subject(name or default, {**values, "task": "+".join(tasks)})


def study_schema() -> Schema:
    schema = file_schema(StudyConfig, "A study of softprompts study run")
    variant = {name: schema["properties"][name] for name in schema_of(Grid)["properties"]}
    for properties in (schema["properties"], variant):
        properties |= {
            name: {"$ref": "#/$defs/settings"} for name in ("settings", "source", "target")
        }
    grid = {"type": "object", "properties": variant, "additionalProperties": False}
    schema["properties"]["variants"] = {"type": "object", "additionalProperties": grid}
    schema["$defs"]["settings"] = flat_run_settings()
    return schema


class StudyError(UserError):
    """A problem with a study. In Python, too, settings are the keys of its file."""

    def __str__(self) -> str:
        return self.spelled(as_key)

    @staticmethod
    def spelling(path: str, value: str | None = None) -> str:
        return as_flag(path, value) if path in OPTIONS else as_key(path, value)


@contextmanager
def study_errors(prefix: str = "") -> Iterator[None]:
    """Raise errors about a run or its data as errors of the study, after a `prefix`."""
    try:
        yield
    except UserError as error:
        raise StudyError(f"{prefix}{error.message}") from None


# -- checks that need no torch ---------------------------------------------------------------------


def default_folder(study: StudyConfig) -> Path:
    """Where a study runs, unless a folder is given."""
    return Path("runs") / safe_name(study.name)


def study_folder(path: str | Path) -> Path:
    """A folder that `run` wrote a study to."""
    if not (Path(path) / STUDY_FILE).exists():
        raise UserError(
            f"{path} is not the folder of a study; name one that `softprompts study run` wrote."
        )
    return Path(path)


def check_study(study: StudyConfig) -> None:
    """Refuse unknown tasks and settings, settings that no run can have, and unclear claims."""
    check_claims(read_claims(study.claims), dict(study.grids()))
    for _, grid in study.grids():
        for part in ("settings", "source", "target"):
            check_settings(part, getattr(grid, part))
        for role, entry in _subjects(grid):
            for choice in [{}, *candidates(grid.choose)]:
                with study_errors(f"The {role} {entry.name} cannot be used: "):
                    role_config(grid, role, sections(choice), {"task": entry.task})


def check_claims(claims: Sequence[Claim], grids: Mapping[str | None, Grid]) -> None:
    """Refuse claims about variants, sources, backbones or tasks that the study does not have."""
    known = {
        "variant": [str(name) for name in grids if name is not None],
        "source": [subject_of(entry).name for grid in grids.values() for entry in grid.sources],
        "task": [subject.name for grid in grids.values() for _, subject in _subjects(grid)],
        "backbone": [name for grid in grids.values() for name in grid.backbones],
    }
    analyses = sum(len(grid.backbones) for grid in grids.values())
    for claim in claims:
        for part in claim.expect:
            if part.kind in OF_ONE_ANALYSIS and analyses > 1:
                raise UserError(
                    f"Claim {claim.claim} expects {part.kind}, which is judged by the analysis of "
                    f"transfers, but the study has {analyses}, one for each variant and backbone; "
                    "write a study without variants, on one backbone."
                )
            selected = [pair for _, selector in part.terms for pair in selector.where]
            for name, values in [("task", part.tasks or ()), *selected]:
                names = known.get(name, values)
                for value in values:
                    if value not in names:
                        raise UserError(
                            f"Claim {claim.claim} names the {name} {value!r}, which the study "
                            f"does not have; {choices(str(value), names) if names else ''}"
                        )


def check_named_rows(study: StudyConfig, data_dir: str | None) -> None:
    """Refuse named tasks whose rows are neither in the data folder nor, without one, on the Hub."""
    available = functools.cache(has_rows)  # asks the Hub once per task
    for _, grid in study.grids():
        for role, entry in _subjects(grid):
            task = role_config(grid, role, {"task": entry.task}).task
            if task.train is None and task.task != PREFIX_LM:
                folder = data_dir or study.data_dir or task.data_dir
                check_available(dataclasses.replace(task, data_dir=folder), available)


def check_available(task: TaskConfig, available: Callable[[str, str | None], bool]) -> None:
    """Refuse a named task, or a mixture, whose rows are not `available` by name and folder."""
    folder = data_folder(task)
    names = [name for name in str(task.task).split("+") if name != PREFIX_LM]
    missing = next((name for name in names if not available(name, folder)), None)
    if missing is not None:
        where = (
            f"The rows of {missing} are not available from the Hub"
            if folder is None
            else f"{folder} holds no rows of {missing}"
        )
        raise UserError(
            f"{where}; name a folder that holds them with {setting('task.data_dir')}, "
            "or leave the task out of the study."
        )


def _subjects(grid: Grid) -> list[tuple[str, Subject]]:
    """The tasks of a grid, each with its role."""
    targets = [task for entry in grid.targets for task in target_tasks(entry)]
    return [
        *(("source", subject_of(entry)) for entry in grid.sources),
        *(("target", subject_of(task)) for task in targets),
    ]


def role_config(grid: Grid, role: str, *layers: Mapping[str, Any]) -> RunConfig:
    """The settings of runs on sources, or on targets, with layers of other settings over them."""
    return run_config(sections(grid.settings), sections(getattr(grid, role)), *layers)


def candidates(choose: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each combination of the values to choose from; none if there is nothing to choose."""
    for name, values in choose.items():
        if not isinstance(values, list) or len(values) < 2:
            raise UserError(
                f"{setting('choose')} has {name}: {values!r}; give a list of at least two values."
            )
    check_settings("choose", choose)
    combinations = itertools.product(*choose.values()) if choose else ()
    return [dict(zip(choose, values, strict=True)) for values in combinations]


def check_settings(part: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings under `part` that do not exist, or that the plan sets."""
    values = sections(settings)
    planned = [name for name in SET_BY_PLAN if name in values]
    planned += ["task"] if "task" in values.get("task", {}) else []
    if planned:
        raise UserError(
            f"{part}.{planned[0]} is set by the study; "
            "name backbones, seeds, sources and targets instead."
        )
    if unknown := [str(name) for name in settings if name not in SETTINGS]:
        similar = closest(unknown[0], SETTINGS)
        hint = (
            f"did you mean {similar}?"
            if similar
            else "`softprompts tune --help` lists the settings."
        )
        raise UserError(f"There is no setting {unknown[0]}, which is under {part}; {hint}")
