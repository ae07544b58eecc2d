"""A folder's runs as tables, tests and curves: what `softprompts report` shows.

Means are over seeds. Every difference is tested against the best arm of its column, or against one
reference, by a paired test, and all p-values of a table are corrected together (Holm 1979).
Nothing here needs torch.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any, TypedDict

from ..errors import UserError, choices
from .compare import Comparison, compare
from .runs import CHOICES, SOURCE_STAGES, RunRecord, Runs, arm_names, flatten, machines
from .spread import SIGNIFICANCE, RoundedSpread, Spread, finite, grouped, holm, spread

MEAN = "mean"
"""The column of means over tasks."""


class TaskFacts(TypedDict):
    """A column: what it is scored by and on, and whether its best arm beats the majority class."""

    name: str
    metric: str | None
    split: str
    rows: int | None
    majority: float | None
    weak: bool


class Score(RoundedSpread):
    """A number of the table. `tied`: no significant difference from the best of its column."""

    best: bool
    tied: bool


class Difference(Comparison):
    """An arm against the reference: on one task, or on the mean of all."""

    arm: str
    reference: str
    task: str
    p_corrected: float | None


class Arm(TypedDict):
    name: str
    scores: dict[str, Score | None]  # by task, and their mean
    runs: int
    trained_parameters: int | None
    seconds: float | None  # of one run


class Table(TypedDict):
    title: str
    tasks: list[TaskFacts]
    arms: list[Arm]
    differences: list[Difference]


class CurvePoint(RoundedSpread):
    step: int


class Curves(TypedDict):
    """Learning curves (scores or losses) on one task: for each arm, a point per evaluation."""

    task: str
    metric: str
    arms: dict[str, list[CurvePoint]]


class Summary(TypedDict):
    title: str
    folder: str
    kind: str
    runs: int
    unfinished: int
    failed: dict[str, str]
    seeds: list[int]
    tables: list[Table]
    curves: list[Curves]
    choices: list[dict[str, Any]]  # settings that were tried on held-out rows, by arm and task
    common: dict[str, Any]  # settings that all runs share
    settings: dict[str, dict[str, Any]]  # those that differ, by arm
    configs: dict[str, dict[str, Any]]  # the whole config of each run, by its name
    machines: list[dict[str, str]]
    study: str | None
    claims: list[dict[str, Any]]
    files: list[str]  # where it was written


def summarize(runs: Runs, against: str | None = None) -> Summary:
    """The tables, curves, settings and machines of a folder's runs.

    `against` names the arm that all others are compared with, instead of the best of each column.
    """
    compared = [run for run in runs.records if run.stage not in CHOICES]
    sources = [run for run in compared if run.stage in SOURCE_STAGES and run.scores]
    targets = [run for run in compared if run.stage not in SOURCE_STAGES and run.scores]
    groups = {"Scores": targets, "Source prompts": sources}
    arms = {
        title: grouped(zip(arm_names(part), part, strict=True))
        for title, part in groups.items()
        if part
    }
    names = [name for part in arms.values() for name in part]
    if against is not None and against not in names:
        raise UserError(f"There is no arm {against!r}; {choices(against, list(names))}")
    tables = [
        _table(title, runs, part, against if against in part else None)
        for title, part in arms.items()
    ]
    shown = next(iter(arms.values()), {})
    common, settings = _settings(runs, arms)
    return {
        "title": runs.folder.name,
        "folder": runs.folder.name,
        "kind": runs.kind,
        "runs": len(compared),
        "unfinished": runs.unfinished,
        "failed": {run.name: run.failed for run in compared if run.failed},
        "seeds": sorted({run.seed for run in compared}),
        "tables": tables,
        "curves": _curves(shown),
        "choices": _choices(runs),
        "common": common,
        "settings": settings,
        "configs": {run.name: _portable(run, runs) for run in compared if run.config},
        "machines": machines(compared),
        "study": runs.study,
        "claims": [],
        "files": [],
    }


Arms = Mapping[str, Sequence[RunRecord]]


def _portable(run: RunRecord, runs: Runs) -> dict[str, Any]:
    """A run's config without the folders of the machine that it ran on."""
    config: dict[str, Any] = _without_folders(run.config, runs.folder.resolve())
    return {**config, "model": run.arm.get("backbone", config.get("model"))}


def _without_folders(value: Any, folder: Path) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_folders(part, folder) for name, part in value.items()}
    if isinstance(value, list):
        return [_without_folders(part, folder) for part in value]
    if not isinstance(value, str) or not Path(value).is_absolute():
        return value
    path = Path(value)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name


# -- tables ----------------------------------------------------------------------------------------


def _table(title: str, runs: Runs, arms: Arms, against: str | None) -> Table:
    tasks = list(dict.fromkeys(run.task for part in arms.values() for run in part))
    columns = {task: {name: runs.task_score(task, part) for name, part in arms.items()}
               for task in tasks}  # fmt: skip
    spreads: dict[str, dict[str, Spread | None]] = {
        task: {name: known.score for name, known in column.items()}
        for task, column in columns.items()
    }
    means = {name: mean_over(runs, part, tasks) for name, part in arms.items()}
    if len(tasks) > 1 and any(means.values()):
        spreads[MEAN] = means
    best = {}
    for column, scores in spreads.items():
        known = {name: score.mean for name, score in scores.items() if score}
        best[column] = max(known, key=known.__getitem__, default="")
    facts = {task: column[best[task] or next(iter(arms))] for task, column in columns.items()}
    differences = _differences(runs, arms, list(spreads), tasks, best, against)
    tied = {(row["task"], row["arm"]) for row in differences if against is None and _is_tied(row)}
    return {
        "title": title,
        "tasks": [
            {
                "name": task,
                "metric": fact.metric,
                "split": fact.split,
                "rows": fact.rows,
                "majority": fact.majority,
                "weak": fact.weak,
            }
            for task, fact in facts.items()
        ],
        "arms": [
            {
                "name": name,
                "scores": {
                    column: _score(scores[name], best[column] == name, (column, name) in tied)
                    for column, scores in spreads.items()
                },
                "runs": len(part),
                "trained_parameters": next(
                    (run.trained_parameters for run in part if run.trained_parameters), None
                ),
                "seconds": _mean_of([run.seconds for run in part]),
            }
            for name, part in arms.items()
        ],
        "differences": differences,
    }


def _is_tied(row: Difference) -> bool:
    """Whether a difference is not significant. A test over a few seeds never is, so there the
    interval decides."""
    if row["over"] == "seeds" and row["interval"] is not None:
        low, high = row["interval"]
        return low <= 0 <= high
    return row["p_corrected"] is None or row["p_corrected"] >= SIGNIFICANCE


def _mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 3) if known else None


def _score(value: Spread | None, best: bool, tied: bool) -> Score | None:
    if value is None:
        return None
    return {**value.rounded(), "best": best, "tied": tied and not best}


def mean_over(runs: Runs, part: Sequence[RunRecord], tasks: Sequence[str]) -> Spread | None:
    """The mean over tasks, and its spread over seeds; None if a task or a run is missing."""
    scores = {(run.seed, run.task): runs.score(run) for run in part if run.task in tasks}
    by_seed = grouped((seed, score) for (seed, _), score in scores.items() if score is not None)
    complete = all(len(by_seed.get(seed, ())) == len(tasks) for seed, _ in scores)
    return spread(map(fmean, by_seed.values())) if complete else None


# -- differences -----------------------------------------------------------------------------------


def _differences(
    runs: Runs,
    arms: Arms,
    columns: Sequence[str],
    tasks: Sequence[str],
    best: Mapping[str, str],
    against: str | None,
) -> list[Difference]:
    rows: list[Difference] = []
    for column in columns:
        reference, chosen = against or best[column], tasks if column == MEAN else [column]
        for name in arms:
            if not reference or name == reference:
                continue
            found = compare(runs, arms[name], arms[reference], chosen)
            if found is not None:
                names = {"arm": name, "reference": reference, "task": column}
                rows.append({**found, **names, "p_corrected": None})  # type: ignore[typeddict-item]
    tested = [row for row in rows if row["p"] is not None]
    for row, p in zip(tested, holm([row["p"] or 0.0 for row in tested]), strict=True):
        row["p_corrected"] = float(f"{p:.4g}")
    return rows


def _choices(runs: Runs) -> list[dict[str, Any]]:
    """The first of the best is chosen, as `study run` does."""
    tried = [run for run in runs.records if run.stage in CHOICES]
    choices = [
        {
            "arm": name,
            "task": run.task,
            "settings": run.name.split("/")[-2],
            "score": run.scores.get("validation"),
            "best": False,
        }
        for run, name in zip(tried, arm_names(tried), strict=True)
    ]
    scored = [choice for choice in choices if choice["score"] is not None]
    for group in grouped(((choice["arm"], choice["task"]), choice) for choice in scored).values():
        max(group, key=itemgetter("score"))["best"] = True
    return choices


# -- curves ----------------------------------------------------------------------------------------


def _curves(arms: Arms) -> list[Curves]:
    """The first metric of each task by step; of a single run, its training loss as well."""
    records = [run for part in arms.values() for run in part]
    tasks = {run.task: run.metric for run in records if len(run.history) > 1 and run.metric}
    wanted = list(tasks.items())
    if len(records) == 1:
        wanted += [(task, "loss") for task in tasks]
    curves: list[Curves] = [
        {
            "task": task,
            "metric": metric,
            "arms": {
                name: points
                for name, part in arms.items()
                if (points := _points([run for run in part if run.task == task], metric))
            },
        }
        for task, metric in wanted
    ]
    return [curve for curve in curves if curve["arms"]]


def _points(part: Sequence[RunRecord], metric: str) -> list[CurvePoint]:
    values = grouped(
        (int(entry["step"]), float(value))
        for run in part
        for entry in run.history
        if isinstance(value := entry.get(metric), int | float) and finite(value) is not None
    )
    known = {step: spread(scores) for step, scores in sorted(values.items())}
    return [{"step": step, **value.rounded()} for step, value in known.items() if value]


# -- settings --------------------------------------------------------------------------------------


def _settings(
    runs: Runs, arms: Mapping[str, Arms]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The settings that all runs share, and those of each arm that differ from them.

    Seeds, and what says which task it is, differ by design; whole configs are listed elsewhere.
    """
    flat = {
        name: [
            {key: value for key, value in flatten(_portable(run, runs)).items() if key != "seed"}
            for run in part
            if run.config
        ]
        for table in arms.values()
        for name, part in table.items()
    }
    everything = [settings for part in flat.values() for settings in part]
    if not everything:
        return {}, {}
    common = {
        key: value
        for key, value in everything[0].items()
        if all(key in other and other[key] == value for other in everything)
    }
    return common, {
        name: {
            key: value
            for key, value in part[0].items()
            if key not in common and all(other.get(key) == value for other in part)
        }
        for name, part in flat.items()
        if part
    }
