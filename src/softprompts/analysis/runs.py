"""The runs of any folder: a single run, a cohort, a study, or the report of a study.

Nothing here needs torch: cards, results and metrics are JSON.
"""

import contextlib
import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ..artifacts.file_names import (
    CANDIDATES,
    CARD,
    CELLS,
    COHORT_TABLE,
    CONFIG,
    EXPLANATION,
    METRICS,
    PLAN,
    PREDICTIONS,
    RESULT,
    STUDY_FILE,
)
from ..config import run_config, spell
from ..errors import UserError
from ..files import read_json, short_paths
from .spread import TaskScore, finite, grouped, spread

RECORDS, PLAN_COPY = "records.json", "plan.yaml"
"""What `study report` leaves of a study in its own folder."""
SOURCE_STAGES = ("source", "mixture-source")
CHOICES = ("choice", "source-choice")
"""The stages of runs that only choose settings for others."""
OWN_ROWS = (*CHOICES, "mixture-source")
"""The stages of runs that are not scored on the rows of their task."""
Split = Literal["test", "validation"]
Kind = Literal["run", "cohort", "study", "study report"]

UNCOMPARED = (
    *("seed", "device", "trust_remote_code", "task.task", "task.data_dir", "task.train"),
    *("task.validation", "task.name", "task.encoding", "task.label", "task.skip_bad_rows"),
)
"""Settings that are no difference between methods: seed, machine, and which task it is."""


@dataclass(frozen=True)
class RunRecord:
    """One run, with what tables, tests and curves need. A score of None: it failed."""

    name: str
    task: str
    seed: int
    arm: Mapping[str, Any]
    """What sets it apart from runs on the same task with the same seed."""
    stage: str = "baseline"
    metric: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    """The first metric on the validation rows and, if the task has some, on the test rows."""
    majority: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    """Of the rows, by split."""
    predictions: Mapping[str, Mapping[str, list[Any]]] = field(default_factory=dict)
    """By split: the answers, and the score of each row."""
    history: Sequence[Mapping[str, Any]] = ()
    """One entry per evaluation."""
    config: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    trained_parameters: int | None = None
    seconds: float | None = None
    finished: float = 0.0
    """When, in seconds since 1970; 0 if unknown."""
    failed: str | None = None
    explanation: Mapping[str, Any] = field(default_factory=dict)
    """What `study explain` found about the prompt."""
    chosen: tuple[str, ...] = ()
    """The cells whose prompts retrieval chose for it, the most similar first."""


@dataclass(frozen=True)
class Runs:
    """The runs of a folder. `study` is the text of the study file, if there is one."""

    folder: Path
    kind: Kind
    records: list[RunRecord]
    unfinished: int = 0
    study: str | None = None

    @cached_property
    def _tested(self) -> set[tuple[str, bool]]:
        """The tasks of which all finished runs (or all those on `OWN_ROWS`) have a test score."""
        scored = [run for run in self.records if run.scores]
        tested = grouped(
            ((run.task, run.stage in OWN_ROWS), "test" in run.scores) for run in scored
        )
        return {key for key, values in tested.items() if all(values)}

    def split(self, run: RunRecord) -> Split:
        """The rows that a run is judged by: test rows, if all runs on its task have a score there,
        so that no two rows of a table are scored on different data."""
        return "test" if (run.task, run.stage in OWN_ROWS) in self._tested else "validation"

    def score(self, run: RunRecord) -> float | None:
        return finite(run.scores.get(self.split(run)))

    def row_scores(self, run: RunRecord) -> list[float]:
        """What paired tests compare; empty if they were not saved."""
        return list(run.predictions.get(self.split(run), {}).get("row_scores", ()))

    def task_score(self, task: str, runs: Iterable[RunRecord]) -> TaskScore:
        """The score of some runs on one task, over their seeds, with the task's majority class."""
        members = [run for run in runs if run.task == task]
        split = self.split(members[0]) if members else "validation"
        known = [run for run in members if self.score(run) is not None]
        facts = [run for run in known if split in run.majority and split in run.rows]
        return TaskScore(
            task,
            spread(score for run in known if (score := self.score(run)) is not None),
            facts[0].majority[split] if facts else None,
            facts[0].rows[split] if facts else None,
            known[0].metric if known else None,
            split,
        )


def read_runs(folder: Path) -> Runs:
    """The runs of a folder, which must hold some."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; name one that tune or study run wrote.")
    if (folder / STUDY_FILE).exists() and (folder / CELLS).is_dir():
        study = (folder / STUDY_FILE).read_text(encoding="utf-8")
        files = sorted((folder / CELLS).rglob(RESULT), key=_natural)
        begun = {path.parent for path in (folder / CELLS).rglob(PLAN)}
        unfinished = len(begun - {path.parent for path in files})
        records = [of_cell(read_json(path), path.parent) for path in files]
        runs = Runs(folder, "study", records, unfinished, study)
    elif (folder / RECORDS).exists():
        plan = folder / PLAN_COPY
        study_text = plan.read_text(encoding="utf-8") if plan.exists() else None
        records = [_of_result(record) for record in _list_of(folder / RECORDS)]
        finished = [run for run in records if run.scores or run.failed]
        runs = Runs(folder, "study report", finished, len(records) - len(finished), study_text)
    else:
        runs = _of_cards(folder)
    if not runs.records:
        raise UserError(
            f"{folder} holds no finished run; name the folder of a run, of a cohort or of a study "
            "(or wait until a run has finished)."
        )
    return runs


# -- studies ---------------------------------------------------------------------------------------


def of_cell(result: Mapping[str, Any], folder: Path) -> RunRecord:
    """The run of a study's cell, from its result and its folder."""
    return _with_files(_of_result(result), folder)


def _of_result(result: Mapping[str, Any]) -> RunRecord:
    try:
        stage = str(result["stage"] or "baseline")
        target = result["target"] if stage != "mixture-source" else None
        keys = ("variant", "backbone", "k", "similarity")
        arm = {name: result[name] for name in keys if result.get(name) is not None}
        if target is not None and result["source"] is not None:
            arm["source"] = result["source"]
        return RunRecord(
            str(result["cell"]),
            str(target or result["source"] or result["target"]),
            int(result["seed"] or 0),
            arm | {"stage": stage},
            stage,
            result.get("metric"),
            _splits(result, "score", "test"),
            _splits(result, "majority", "test_majority"),
            _splits(result, "rows", "test_rows"),
            config=result.get("config") or {},
            machine=result.get("machine") or {},
            seconds=result.get("seconds"),
            finished=result.get("finished") or 0.0,
            failed=result.get("failed"),
            chosen=tuple(str(source["cell"]) for source in result.get("chosen") or ()),
        )
    except (KeyError, TypeError, AttributeError):
        raise UserError(
            "A result in this folder is corrupted, or not that of a study's cell; "
            "run the study again."
        ) from None


def _splits(result: Mapping[str, Any], validation: str, test: str) -> dict[str, Any]:
    values = {"validation": result.get(validation), "test": result.get(test)}
    if test == "test_majority" and values["test"] is None and result.get("test") is not None:
        values["test"] = values["validation"]  # unknown in older results, and close to it
    return {split: value for split, value in values.items() if value is not None}


def _with_files(run: RunRecord, folder: Path) -> RunRecord:
    """The run with its evaluations and predictions, and what its card knows."""
    card = _mapping(folder / CARD)
    return replace(
        run,
        history=list(_lines(folder / METRICS)),
        predictions=_mapping(folder / PREDICTIONS),
        digests=card.get("task", {}).get("digests", {}),
        machine=run.machine or card.get("machine", {}),
        trained_parameters=card.get("trained_parameters"),
        explanation=_mapping(folder / EXPLANATION),
    )


# -- runs and cohorts ------------------------------------------------------------------------------


def _of_cards(folder: Path) -> Runs:
    cards = [path for path in sorted(folder.rglob(CARD), key=_natural) if _is_run(path, folder)]
    runs = _with_tasks([_of_card(path.parent, folder) for path in cards])
    failed = list(_failed(folder, {run.name for run in runs}))
    configs = [path for path in folder.rglob(CONFIG) if _is_run(path, folder)]
    lost = {path.parent for path in configs} - {path.parent for path in cards}
    kind: Kind = "run" if len(runs) == 1 and not failed else "cohort"
    unfinished = len(lost - {folder / run.name for run in failed})
    return Runs(folder, kind, [*_with_arms(runs), *failed], unfinished)


def _is_run(path: Path, folder: Path) -> bool:
    return CANDIDATES not in path.relative_to(folder).parts[:-1]


def _of_card(path: Path, folder: Path) -> RunRecord:
    card = read_json(path / CARD)
    try:
        metric, task = card["task"]["metrics"][0], card["task"]
        reports = card.get("scores", {})
        scores = {
            "validation": card["metrics"].get(metric),
            "test": (card["test"] or {}).get(metric),
        }
        majority = {"validation": card["majority"].get(metric)} | {
            split: report["baselines"]["majority"]["metrics"][metric]
            for split, report in reports.items()
            if "majority" in report.get("baselines", {})
        }
        run = RunRecord(
            str(path.relative_to(folder)),
            task["name"],
            card.get("seed") or 0,
            {},
            metric=metric,
            scores={split: score for split, score in scores.items() if score is not None},
            majority={split: value for split, value in majority.items() if value is not None},
            rows=task.get("rows", {}),
            config=card.get("config", {}),
            failed=card.get("stopped") if card.get("failed") else None,
        )
    except (KeyError, IndexError, TypeError, AttributeError):
        raise UserError(f"The card {path / CARD} is corrupted; copy it again.") from None
    return _with_files(run, path)


def _failed(folder: Path, known: set[str]) -> Iterator[RunRecord]:
    """The runs in a cohort's table that left no prompt."""
    table = folder / COHORT_TABLE
    if not table.exists():
        return
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            name = row.get("folder") or ""
            if name and name not in known and row.get("stopped"):
                seed = row.get("seed") or "0"
                number = int(seed) if seed.isdigit() else 0
                yield RunRecord(name, "", number, {}, failed=row["stopped"])


def _with_tasks(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs with their tasks named apart: data of one name in several places is several tasks,
    named by the shortest paths that differ."""
    files = grouped((run.task, file) for run in runs if (file := _own_file(run)))
    short = {
        task: dict(zip(paths, short_paths(paths), strict=True))
        for task, paths in files.items()
        if len(set(paths)) > 1
    }
    names = [short.get(run.task, {}).get(_own_file(run)) for run in runs]
    return [
        replace(run, task=f"{name}:{run.config['task'].get('label')}") if name else run
        for run, name in zip(runs, names, strict=True)
    ]


def _own_file(run: RunRecord) -> str:
    """Where a run's own data is; empty for named tasks."""
    task = run.config.get("task") or {}
    return "" if task.get("task") is not None else task.get("train") or ""


def _with_arms(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs with the settings that differ between them, but for the seed.

    A setting that a preset brings along is not listed beside the preset, nor one that only follows
    from the task: its rows, and how it is scored.
    """
    flat = [flatten(run.config) for run in runs]
    own = [_given(run.config, settings) for run, settings in zip(runs, flat, strict=True)]
    varied = _varied(flat, dict.fromkeys(name for names in own for name in names))
    tasks = grouped((run.task, settings) for run, settings in zip(runs, flat, strict=True))
    in_a_task = {name for settings in tasks.values() for name in _varied(settings, varied)}
    varied = [name for name in varied if name in in_a_task or not _of_task(name)]
    return [
        replace(run, arm={name: settings[name] for name in varied if name in settings})
        for run, settings in zip(runs, flat, strict=True)
    ]


def _varied(settings: Sequence[Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """The names whose values differ."""
    return [
        name
        for name in names
        if len({json.dumps(part.get(name), sort_keys=True) for part in settings}) > 1
    ]


def _of_task(name: str) -> bool:
    return name.startswith("task.") or name == "tuning.scoring"


def _given(config: Mapping[str, Any], flat: Mapping[str, Any]) -> list[str]:
    """The preset, and the settings that are not its defaults."""
    layer = {name: config[name] for name in ("preset", "paper") if name in config}
    defaults: dict[str, Any] = {}
    with contextlib.suppress(UserError):  # a preset of another version, or of a plugin
        defaults = flatten(run_config(layer).plain())
    return [
        name
        for name, value in flat.items()
        if name not in UNCOMPARED and (name in layer or value != defaults.get(name))
    ]


def flatten(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings by their paths: `{"tuning.lr": 0.3}`."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, Mapping) and name != "labels"
        flat |= flatten(value, f"{path}{name}.") if nested else {f"{path}{name}": value}
    return flat


def machines(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """What the runs ran on, each machine once; older results do not say it."""
    known = [dict(run.machine) for run in records if run.machine]
    return [machine for index, machine in enumerate(known) if machine not in known[:index]]


# -- names -----------------------------------------------------------------------------------------


def arm_names(records: Sequence[RunRecord]) -> list[str]:
    """A short name of each run's arm: only what differs among these runs."""
    arms = [record.arm for record in records]
    varied = _varied(arms, dict.fromkeys(key for arm in arms for key in arm))
    transfers = any("source" in arm for arm in arms)
    return [_arm_name(arm, varied, transfers) for arm in arms]


def _arm_name(arm: Mapping[str, Any], varied: Sequence[str], transfers: bool) -> str:
    parts = []
    for key in varied:
        value = arm.get(key)
        if key == "stage" and value in ("average", "mixture"):
            parts.append(f"{value} of the nearest {arm.get('k')}")
        elif key == "stage" and value == "baseline" and transfers:
            parts.append("no transfer")
        elif key == "source" and value is not None:
            parts.append(f"from {value}")
        elif key in ("preset", "variant", "backbone"):
            parts.append(str(value))
        elif value is not None and key not in ("stage", "k", "similarity", "source"):
            name = key.removesuffix(".kind").rpartition(".")[2]
            parts.append(f"{name} {spell(value)}")
    return ", ".join(parts) or ("default" if varied else "all runs")


def _natural(path: Path) -> list[tuple[int, str]]:
    """Orders numbers in names by their size."""
    parts = re.split(r"(\d+)", str(path))
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


# -- files -----------------------------------------------------------------------------------------


def _mapping(path: Path) -> dict[str, Any]:
    value = read_json(path) if path.exists() else {}
    return value if isinstance(value, dict) else {}


def _list_of(path: Path) -> list[Any]:
    value = read_json(path)
    if not isinstance(value, list):
        raise UserError(f"{path} is not the record of a study; write the report again.")
    return value


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a JSONL file; a last line that is being written is left out."""
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)
