"""Study: which prompts help which tasks (Vu 2022, SPoT). A YAML file names sources, targets and seeds; the plan is every run it takes.

Source prompts are tuned first, and baselines beside them. Then every target starts from every source's prompt of the same seed. Retrieval
ranks the source prompts of all seeds by their likeness to the baseline's task embedding: the best of the top k is one of the runs there
are, a weighted average takes one run more, a mixture of the top k's tasks with the target's two more.
"""

import dataclasses
import difflib
import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..backbone import DEFAULT
from ..config.choice import from_mapping
from ..config.run import merge, read_yaml
from ..errors import UserError
from ..files.names import safe_name
from ..library.search import SIMILARITIES
from ..prompt.route import WITHOUT_ROUTER
from ..tasks.registry import BENCHMARKS, definition
from ..tasks.starter import STARTERS
from ..tasks.text import PREFIX_LM
from ..tuning import RunConfig, run_config
from ..tuning.api import SECTIONS, sections

LONGEST = 80
"""Characters of one part of a cell's name."""
PER_CELL = ("model", "seed")
"""Settings that the plan gives to each run."""
KNOWN = sorted(
    {*SECTIONS["task"], *SECTIONS["tuning"], *(own.name for own in dataclasses.fields(RunConfig))}
    - set(PER_CELL)
)
"""Settings that a study may give to its runs."""


@dataclass(frozen=True)
class Retrieval:
    """For each way to use the nearest source prompts, the ks to try it with."""

    best: list[int] = field(default_factory=list)
    """Best of the top k: k runs, which the study has anyway."""
    average: list[int] = field(default_factory=list)
    """One run from the mean of the top k, weighted by similarity."""
    mixture: list[int] = field(default_factory=list)
    """A prompt tuned on the target's rows and those of the top k's tasks, and a run from it."""
    similarity: str = "per_token_average_cosine"
    """What the averages and mixtures are chosen by."""

    def __post_init__(self) -> None:
        if self.similarity not in SIMILARITIES:
            raise UserError(
                f"There is no similarity {self.similarity!r}; choose one of {', '.join(SIMILARITIES)}."
            )
        for name in ("best", "average", "mixture"):
            ks = getattr(self, name)
            if any(k < 1 for k in ks) or len(set(ks)) < len(ks):
                raise UserError(
                    f"retrieval.{name} is {ks}; it must be different numbers of at least 1."
                )

    @property
    def most(self) -> int:
        return max([*self.best, *self.average, *self.mixture], default=0)


@dataclass(frozen=True)
class Grid:
    """Sources x targets x seeds on some backbones: a whole study, or one variant of it."""

    backbones: list[str] = field(default_factory=lambda: [DEFAULT])
    sources: list[Any] = field(default_factory=list)
    """Tasks, mixtures (a+b) or benchmarks, each learned by one prompt; or mappings with a name and task settings, such as own data's."""
    targets: list[Any] = field(default_factory=list)
    """Tasks; a benchmark stands for each of its tasks."""
    seeds: list[int] = field(default_factory=lambda: [0])
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of all runs, as `tune` takes them."""
    source: dict[str, Any] = field(default_factory=dict)
    """Settings of source runs, over those of all."""
    target: dict[str, Any] = field(default_factory=dict)
    """Settings of baselines and of all that starts from another prompt, over those of all."""
    own_task: bool = False
    """Whether a source's prompt starts its own task's run too, so that means over targets are over the same ones for every source."""
    retrieval: Retrieval = field(default_factory=Retrieval)


@dataclass(frozen=True)
class Study(Grid):
    """What a study file says."""

    name: str = "study"
    about: str = ""
    data_dir: str | None = None
    """A folder with named tasks' rows; none: SOFTPROMPTS_DATA, or the Hugging Face hub."""
    cohort: int = 16
    """Runs that share one forward pass, at most."""
    variants: dict[str, Any] = field(default_factory=dict)
    """The study again with other settings, by name; each says only what is different."""

    def __post_init__(self) -> None:
        if self.cohort < 1:
            raise UserError(f"cohort is {self.cohort}; it must be at least 1.")

    def grids(self) -> list[tuple[str | None, Grid]]:
        """The variants, or the study itself where there are none."""
        own = {f.name: getattr(self, f.name) for f in dataclasses.fields(Grid)}
        own["retrieval"] = dataclasses.asdict(self.retrieval)
        if not self.variants:
            return [(None, from_mapping(Grid, own))]
        for name, other in self.variants.items():
            if other is not None and not isinstance(other, Mapping):
                raise UserError(
                    f"The variant {name} is {other!r}; it must be a mapping of what is different."
                )
        return [
            (name, from_mapping(Grid, merge(own, other or {}), name))
            for name, other in self.variants.items()
        ]


def read_study(path: Path) -> Study:
    """An entry with nothing after it is as if it were left out."""
    return from_mapping(
        Study, {name: value for name, value in read_yaml(path).items() if value is not None}
    )


@dataclass(frozen=True)
class Cell:
    """One run of a study, in the folder of its name."""

    name: str
    stage: str
    """source, baseline, transfer, average, mixture-source or mixture."""
    backbone: str
    variant: str | None
    source: str | None
    target: str | None
    seed: int
    config: RunConfig
    """All but where it starts from, which other cells give."""
    starts: tuple[str, ...] = ()
    """The cells it starts from, or chooses among."""
    like: str | None = None
    """The baseline whose task embedding it chooses by."""
    k: int | None = None
    similarity: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        """Cells that come first."""
        return self.starts + ((self.like,) if self.like is not None else ())

    def hopeless(self, failed: Set[str]) -> bool:
        """Whether it cannot run, because what it needs failed. One that chooses among prompts does with the others, if k are left."""
        if self.like is None:
            return not failed.isdisjoint(self.starts)
        return self.like in failed or len(set(self.starts) - failed) < (self.k or 1)

    @property
    def whole_model(self) -> bool:
        return self.config.tuning.trains == "model"

    def plain(self) -> dict[str, Any]:
        """What makes it this cell and no other: not the machine it runs on, nor where the rows lie."""
        config = self.config.plain()
        del config["device"], config["task"]["data_dir"]
        own = {
            name: getattr(self, name)
            for name in (
                "stage",
                "backbone",
                "variant",
                "source",
                "target",
                "seed",
                "like",
                "k",
                "similarity",
            )
        }
        return {**own, "starts": list(self.starts), "config": config}


@dataclass(frozen=True)
class Subject:
    """A source or a target: a name, and the task settings it stands for."""

    name: str
    task: dict[str, Any]

    @property
    def mixable(self) -> bool:
        """Whether it can be part of a mixture, which joins tasks by their names."""
        return set(self.task) == {"task"}


def plan(study: Study, device: str | None = None, data_dir: str | None = None) -> list[Cell]:
    """All cells of a study, each after those it needs."""
    machine: dict[str, Any] = {"device": device} if device else {}
    if data_dir or study.data_dir:
        machine["task"] = {"data_dir": data_dir or study.data_dir}
    cells = [
        cell
        for variant, grid in study.grids()
        for backbone in grid.backbones
        for cell in _Planner(grid, variant, backbone, machine).cells()
    ]
    if not cells:
        raise UserError(
            "The study has no backbones, no seeds, or neither sources nor targets, so there is nothing to run."
        )
    names = [cell.name.lower() for cell in cells]
    if len(set(names)) < len(names):
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise UserError(
            f"Two cells of the study would be {twice}; name every backbone, source, target and seed once."
        )
    return cells


class _Planner:
    """The cells of one grid on one backbone."""

    def __init__(
        self, grid: Grid, variant: str | None, backbone: str, machine: Mapping[str, Any]
    ) -> None:
        self.grid, self.variant, self.backbone, self.machine = grid, variant, backbone, machine
        self.sources = [_subject(entry) for entry in grid.sources]
        self.targets = [_subject(entry) for entry in grid.targets for entry in _each(entry)]
        known = {subject.name for subject in self.sources}
        if len(known) < len(self.sources):
            raise UserError("The study names a source twice; name every source once.")
        for part in ("settings", "source", "target"):
            given = sections(getattr(grid, part))
            wrong = [name for name in PER_CELL if name in given]
            if wrong or "task" in given.get("task", {}):
                raise UserError(
                    f"{part}.{(wrong or ['task'])[0]} is the study's to set; name backbones, seeds, sources and targets instead."
                )
            if unknown := [name for name in getattr(grid, part) if name not in KNOWN]:
                near = difflib.get_close_matches(str(unknown[0]), KNOWN, 1)
                hint = (
                    f"did you mean {near[0]}?"
                    if near
                    else "they are those of softprompts tune, see its --help."
                )
                raise UserError(
                    f"There is no setting {unknown[0]}, which stands under {part}; {hint}"
                )

    def cells(self) -> Iterator[Cell]:
        seeds, retrieval = self.grid.seeds, self.grid.retrieval
        yield from (
            self._cell("source", seed, source=source) for source in self.sources for seed in seeds
        )
        yield from (
            self._cell("baseline", seed, target=target) for target in self.targets for seed in seeds
        )
        for target, source, seed in itertools.product(self.targets, self.sources, seeds):
            if (
                source.name != target.name or self.grid.own_task
            ):  # going on with a task's own prompt is no transfer
                start = self._name("source", seed, source)
                yield self._cell("transfer", seed, source, target, starts=(start,))
        if retrieval.most:
            self._check_retrieval()
        for target, seed in itertools.product(self.targets, seeds):
            for k in retrieval.average:
                yield self._chosen("average", seed, target, k)
            for k in retrieval.mixture:
                yield self._chosen("mixture-source", seed, target, k)
                start = self._name("mixture-source", seed, None, target, k)
                yield self._cell(
                    "mixture",
                    seed,
                    None,
                    target,
                    k,
                    starts=(start,),
                    similarity=retrieval.similarity,
                )

    def _chosen(self, stage: str, seed: int, target: Subject, k: int) -> Cell:
        """A cell that chooses among the source prompts of all seeds; of tasks with settings of their own, none can be mixed in."""
        named = [source for source in self.sources if stage != "mixture-source" or source.mixable]
        others = [source for source in named if source.name != target.name]
        starts = tuple(
            self._name("source", own, source) for source in others for own in self.grid.seeds
        )
        like = self._name("baseline", seed, None, target)
        return self._cell(
            stage,
            seed,
            None,
            target,
            k,
            starts=starts,
            like=like,
            similarity=self.grid.retrieval.similarity,
        )

    def _cell(
        self,
        stage: str,
        seed: int,
        source: Subject | None = None,
        target: Subject | None = None,
        k: int | None = None,
        **rest: Any,
    ) -> Cell:
        from_source = stage in ("source", "mixture-source")
        subject = target or source
        assert subject is not None
        own = self.grid.source if from_source else self.grid.target
        name = self._name(stage, seed, source, target, k)
        try:
            config = run_config(
                sections(self.grid.settings), sections(own), self.machine,
                {"model": self.backbone, "seed": own_seed(subject.name, seed), "task": subject.task},
            )  # fmt: skip
        except UserError as error:
            raise UserError(f"{name} cannot be run so: {error}") from None
        told = [subject.name if subject is not None else None for subject in (source, target)]
        return Cell(
            name, stage, self.backbone, self.variant, told[0], told[1], seed, config, k=k, **rest
        )

    def _name(
        self,
        stage: str,
        seed: int,
        source: Subject | None = None,
        target: Subject | None = None,
        k: int | None = None,
    ) -> str:
        subjects = "--".join(
            _short(subject.name) for subject in (source, target) if subject is not None
        )
        parts = [
            self.variant,
            self.backbone,
            stage,
            subjects,
            f"k{k}" if k is not None else None,
            f"seed{seed}",
        ]
        return "/".join(_short(part) for part in parts if part is not None)

    def _check_retrieval(self) -> None:
        """What retrieval could not do is told before anything runs."""
        retrieval = self.grid.retrieval
        for part in ("targets", "sources", "seeds"):
            if not getattr(self.grid, part):
                raise UserError(
                    f"The study names no {part}, which retrieval needs; add {part}, or leave retrieval out."
                )
        fewest = min(self._prompts(target, self.sources) for target in self.targets)
        if fewest < retrieval.most:
            raise UserError(
                f"retrieval asks for the top {retrieval.most}, but there are {fewest} source prompts; lower its numbers."
            )
        most, mixable = (
            max(retrieval.mixture, default=0),
            [source for source in self.sources if source.mixable],
        )
        fewest = min(self._prompts(target, mixable) for target in self.targets)
        if fewest < most:
            raise UserError(
                f"retrieval.mixture asks for the top {most}, but only {fewest} source prompts can be mixed in, because data with settings "
                "of its own (such as train) cannot; lower its numbers, add named tasks as sources, or leave retrieval.mixture out."
            )
        baseline = self._cell("baseline", self.grid.seeds[0], target=self.targets[0]).config.prompt
        source = self._cell("source", self.grid.seeds[0], self.sources[0]).config.prompt
        if 0 in (baseline.length, source.length):
            raise UserError(
                "retrieval needs prompts, and model tuning has none; leave retrieval out of that variant."
            )
        if retrieval.average and source.count > 1 and source.route.kind not in WITHOUT_ROUTER:
            raise UserError(
                "Prompts of several each cannot be averaged; choose a preset with one prompt, or leave retrieval.average out."
            )
        odd = [target.name for target in self.targets if retrieval.mixture and not target.mixable]
        if odd:
            raise UserError(
                f"The target {odd[0]} has task settings of its own, so it cannot be mixed; leave retrieval.mixture out."
            )

    def _prompts(self, target: Subject, sources: Sequence[Subject]) -> int:
        """How many prompts of these sources, of all seeds, a target can choose among."""
        return sum(source.name != target.name for source in sources) * len(self.grid.seeds)


def own_seed(subject: str, seed: int) -> int:
    """The seed of a task's runs: tasks that began with the same words would be alike for that alone."""
    return int.from_bytes(hashlib.sha256(f"{subject} {seed}".encode()).digest()[:4]) >> 1


def _each(entry: Any) -> Sequence[Any]:
    """A benchmark as a target is each of its tasks."""
    return BENCHMARKS.get(entry, (entry,)) if isinstance(entry, str) else (entry,)


def _subject(entry: Any) -> Subject:
    """`glue/mnli`, `a+b`, a benchmark's name, `{name: c4, task: prefix-lm, train: c4.txt}`, or own data; task may be a list."""
    given = dict(entry) if isinstance(entry, Mapping) else {"task": entry}
    name, task = given.pop("name", None), given.pop("task", None)
    if name is not None and not isinstance(name, str):
        raise UserError(f"{entry!r} has a name that is no text; put quotes around it.")
    if task is None and name is not None and "train" in given:
        return Subject(name, given)
    parts = [part.strip() for part in task.split("+")] if isinstance(task, str) else task
    if (
        not isinstance(parts, Sequence)
        or not parts
        or not all(isinstance(part, str) and part for part in parts)
    ):
        raise UserError(
            f"{entry!r} names no task; write a task's name, or a mapping such as {{name: mixed, task: [glue, superglue]}}."
        )
    tasks = list(
        dict.fromkeys(_known(one) for part in parts for one in BENCHMARKS.get(part, (part,)))
    )
    return Subject(
        name or (tasks[0] if len(tasks) == 1 else "+".join(parts)),
        {**given, "task": "+".join(tasks)},
    )


def _known(name: str) -> str:
    """A task's full name."""
    return name if name in STARTERS or name == PREFIX_LM else definition(name).name


def _short(part: str) -> str:
    name = safe_name(part)
    return (
        name
        if len(name) <= LONGEST
        else f"{name[: LONGEST - 9]}-{hashlib.sha256(part.encode()).hexdigest()[:8]}"
    )
