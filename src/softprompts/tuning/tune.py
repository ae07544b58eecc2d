"""Tuning from settings to saved prompts: loads, resumes, trains and finishes runs."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, overload

from ..artifacts.run_folder import RunFolder
from ..backbone import Backbone
from ..config import Member, RunConfig, Settings, TaskConfig, expand_lists, sections
from ..config.candidates import check_minutes, make_candidates
from ..errors import UserError, spelled
from ..tasks import Task, doubtful_classes, load_task, register_data, repeated_rows
from .advice import FOR_TRYING, unknown_tokens
from .auto_tune import refuse_unfinished, tune_by_tournament
from .checkpoint import load_checkpoint, longer_schedule
from .cohort import Cohort
from .finish import finish, preparing
from .phases import Phases
from .progress import make_watcher
from .run import Run, RunFailedError
from .summary import write_table
from .team import Team, make_team
from .track import Tracking, check_trackers
from .tuned import Tuned
from .watch import Watcher

Value = str | float | os.PathLike[str] | Settings | None
Setting = Value | Mapping[str, Value | Mapping[str, Any]]
"""A setting that is not a list."""
OnStart = Callable[[Sequence[Run]], object]
"""Called with the runs before their first step."""


@overload
def tune(
    task: str | None = None,
    *,
    auto: Literal[True],
    minutes: float | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    trackers: Sequence[str] = (),
    verbose: bool = True,
    **settings: Any,
) -> Tuned: ...


@overload
def tune(
    task: str | None = None,
    *,
    train: Any = None,
    validation: Any = None,
    auto: Literal[False] = False,
    minutes: None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    trackers: Sequence[str] = (),
    verbose: bool = True,
    **settings: Setting,
) -> Tuned: ...


@overload
def tune(
    task: str | Sequence[str | Mapping[str, Any]] | None = None,
    *,
    auto: Literal[False] = False,
    minutes: None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    trackers: Sequence[str] = (),
    verbose: bool = True,
    **settings: Any,
) -> list[Tuned | RunFailedError]: ...


def tune(
    task: str | Sequence[str | Mapping[str, Any]] | None = None,
    *,
    auto: bool = False,
    minutes: float | None = None,
    output: str | Path | None = None,
    overwrite: bool = False,
    trackers: Sequence[str] = (),
    verbose: bool = True,
    **settings: Any,
) -> Tuned | list[Tuned | RunFailedError]:
    """Tune a prompt. `settings` are those of the command line: `steps=200`, `lr=0.1`,
    `prompt={"length": 10}`, `train="a.csv"`, ... `train` and `validation` may also be data in
    memory: a DataFrame, a dataset, a list of rows, a dict of columns, or a tuple of texts and
    labels. A task of a list may be a mapping of settings, such as
    `{"name": "stars", "train": "a.csv", "label": "stars"}`.

    Returns a `Tuned`. Settings that are lists (`seed=[0, 1, 2]`) make a cohort: one run for each
    combination, all on one backbone, each in its own folder below `output`. The result is then a
    list in their order, in which the `RunFailedError` of a run stands for the prompt it did not
    leave.

    With `auto`, methods and settings compete on rows held out of the training data, and the winner
    is tuned and returned; its record is `Tuned.tournament`. `minutes` is a budget instead of steps.

    `overwrite`: start over even if `output` holds a run.
    """
    named = {} if task is None else {"task": task}
    layer = sections(register_data({**named, **settings}))
    minutes = check_minutes(minutes, auto, layer)
    folder = None if output is None else Path(output)
    if auto:
        resumed = not overwrite and folder is not None and RunFolder(folder).tournament.exists()
        candidates, default = make_candidates(layer, minutes=minutes, resumed=resumed)
        with make_watcher(verbose, auto=True) as watcher:
            return tune_auto(
                candidates, folder, default, minutes, overwrite, watcher, trackers=trackers
            )
    members = expand_lists(layer)
    with make_watcher(verbose, [member.varied for member in members]) as watcher:
        if not members[0].varied:
            return tune_config(members[0].config, folder, overwrite, watcher, trackers=trackers)
        results = tune_cohort(
            members, folder, overwrite, watcher, trackers=trackers, exclusive=True
        )
    if folder is not None and make_team(members[0].config.device).is_main:
        write_table(members, results, folder)
    return results


def tune_config(
    config: RunConfig,
    folder: Path | None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    backbone: Backbone | None = None,
    trackers: Sequence[str] = (),
    phases: Phases | None = None,
    exclusive: bool = True,
) -> Tuned:
    """Tune one prompt, resuming if the folder holds a checkpoint.

    Processes that a launcher started share the work. Without `exclusive`, the caller keeps others
    out of the folder.
    """
    if folder is not None and exclusive and not overwrite:
        refuse_unfinished(RunFolder(folder))
    member = Member(config, {}, "")
    (result,) = tune_cohort(
        *([member], folder, overwrite, watcher, backbone, trackers),
        exclusive=exclusive,
        phases=phases,
    )
    if isinstance(result, RunFailedError):
        raise result
    return result


def tune_auto(
    members: Sequence[Member],
    folder: Path | None,
    default: bool = False,
    minutes: float | None = None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    backbone: Backbone | None = None,
    trackers: Sequence[str] = (),
    phases: Phases | None = None,
) -> Tuned:
    """Let candidates compete, and tune the winner; resumes where the folder's tournament left off.

    `default`: the members are the built-in candidates, of which a small budget takes fewer.
    `minutes`: a budget, instead of the members' steps. Only the winner's run is tracked.
    """
    check_trackers(trackers)
    config, team = members[0].config, make_team(members[0].config.device)
    watcher, phases = watcher or Watcher(), phases or Phases()
    run_folder = None if folder is None else RunFolder(folder)
    with team.exclusive(folder):
        watcher.on_message("reading the data")
        with phases("data"):
            (task,) = team.on_all(lambda: load_tasks([config]))
        if backbone is None:
            _announce(config.model, watcher)
        with phases("model"):
            frozen = backbone or team.on_all(lambda: _load_backbone(team, config))

        def tune_winner(config: RunConfig) -> Tuned:
            return tune_config(config, folder, False, watcher, frozen, trackers, phases, False)

        return tune_by_tournament(
            *(members, default, minutes, task, frozen, run_folder, overwrite),
            *(team, watcher, phases, tune_winner),
        )


def tune_cohort(
    members: Sequence[Member],
    folder: Path | None,
    overwrite: bool = False,
    watcher: Watcher | None = None,
    backbone: Backbone | None = None,
    trackers: Sequence[str] = (),
    on_start: OnStart = lambda runs: None,
    curves: bool = True,
    exclusive: bool = False,
    phases: Phases | None = None,
) -> list[Tuned | RunFailedError]:
    """Tune all members on one backbone, each in its own folder below `folder`, where it resumes if
    there is a checkpoint.

    A run that leaves no prompt gives its error, once all others are saved. Without `curves`, no
    learning curves are drawn, which may take longer than short runs do. With `exclusive`, no other
    process may work in `folder` meanwhile; the workers of a study share theirs.
    """
    team = make_team(members[0].config.device)
    watcher, phases = watcher or Watcher(), phases or Phases()
    folders = [None if folder is None else RunFolder(folder / member.name) for member in members]
    configs = [member.config for member in members]
    with team.exclusive(folder if exclusive else None):
        check_trackers(trackers)
        runs = _load(team, configs, folders, overwrite, backbone, watcher, phases)
        on_start(runs)
        watcher.on_start(runs)
        with preparing(runs, curves and team.is_main and any(folders)):
            with Tracking(trackers if team.is_main else (), runs, folders, watcher) as tracking:
                Cohort(runs, folders, tracking, phases, calibrates=curves).train()
            if test_rows := sum(len(run.task.test) for run in runs):
                watcher.on_message(f"answering {test_rows:,} test rows")
            with phases("finish"):
                results = [
                    finish(run, run_folder, curves, phases)
                    for run, run_folder in zip(runs, folders, strict=True)
                ]
    for run in runs:
        if run.cost is not None:
            run.cost["phases"] = phases.seconds()
    return results


def _load(
    team: Team,
    configs: Sequence[RunConfig],
    folders: Sequence[RunFolder | None],
    overwrite: bool,
    backbone: Backbone | None,
    watcher: Watcher,
    phases: Phases,
) -> list[Run]:
    """The runs, each at step 0 or where its checkpoint left off, with their folders ready."""
    watcher.on_message("reading the data")
    with phases("data"):
        tasks = team.on_all(lambda: load_tasks(configs))
    doubts = [doubt(task) for task in tasks for doubt in (doubtful_classes, repeated_rows)]
    for doubt in dict.fromkeys(filter(None, doubts)):
        watcher.on_message(f"warning: {spelled(doubt)}")
    if backbone is None:
        _announce(configs[0].model, watcher)
    with phases("model"):
        frozen = backbone or team.on_all(lambda: _load_backbone(team, configs[0]))
    resumed = team.on_main(
        lambda: [bool(not overwrite and folder and folder.has_checkpoint) for folder in folders]
    )
    configs = team.on_main(
        lambda: [
            keep_scoring(config, [folder, *_alike(config, configs, folders)])
            if folder and not overwrite
            else config
            for config, folder in zip(configs, folders, strict=True)
        ]
    )
    with phases("data"):
        runs = team.on_all(
            lambda: [
                Run(config, task, frozen, resumes, team)
                for config, task, resumes in zip(configs, tasks, resumed, strict=True)
            ]
        )
    if any(run.config.tuning.chat for run in runs):
        watcher.on_message(f"using the chat template of {frozen.name}")
    team.on_main(lambda: _open_folders(runs, folders, overwrite))
    for run, folder, resumes in zip(runs, folders, resumed, strict=True):
        if folder is not None and resumes:
            load_checkpoint(run, folder)
            if not run.finished:
                watcher.on_message(f"resuming {folder.path} at step {run.step:,} of {run.steps:,}")
            elif len(runs) == 1:
                watcher.on_message(
                    f"the run in {folder.path} already finished, at step {run.step:,}"
                )
            if warning := longer_schedule(run, folder.read_checkpoint_note()):
                watcher.on_message(warning)
    if warning := unknown_tokens(frozen.name, max(run.unknown_tokens for run in runs)):
        watcher.on_message(f"warning: {spelled(warning)}")
    for run, folder in zip(runs, folders, strict=True):
        if folder is not None and team.is_main:
            folder.write_config(run.config)
    return runs


def _announce(model: str, watcher: Watcher) -> None:
    watcher.on_message(f"loading {model}")
    if model == "t5-tiny":
        watcher.on_message(FOR_TRYING)


def keep_scoring(config: RunConfig, folders: Iterable[RunFolder]) -> RunConfig:
    """A config with the scoring, and the use of a chat template, of the first of these runs that
    exists.

    Earlier versions chose others by default. A run that exists keeps its own, and a new run is
    scored as those that it is compared with.
    """
    tuning = config.tuning
    if tuning.scoring != "auto" and tuning.chat is not None:
        return config
    scoring, chat = next(filter(None, map(_saved_scoring, folders)), (tuning.scoring, tuning.chat))
    tuning = dataclasses.replace(
        tuning,
        scoring=scoring if tuning.scoring == "auto" else tuning.scoring,
        chat=chat if tuning.chat is None else tuning.chat,
    )
    return dataclasses.replace(config, tuning=tuning)


def _saved_scoring(folder: RunFolder) -> tuple[Literal["generate", "labels"], bool] | None:
    """How a run that has a checkpoint or a prompt is scored, and whether it uses a chat template;
    None if it has neither."""
    scoring: Any = None
    chat = False
    with contextlib.suppress(UserError):  # a corrupted file is reported when it is loaded
        if folder.has_checkpoint:
            saved = folder.read_checkpoint_note().get("config", {}).get("tuning", {})
            scoring, chat = saved.get("scoring"), saved.get("chat") is True
        elif folder.has_prompt:
            scoring, chat = folder.card().scoring, folder.card().chat
    return (scoring, chat) if scoring in ("generate", "labels") else None


def _alike(
    config: RunConfig, configs: Sequence[RunConfig], folders: Sequence[RunFolder | None]
) -> list[RunFolder]:
    """The folders of runs with the same task, model, scoring and use of a chat template."""
    return [
        folder
        for other, folder in zip(configs, folders, strict=True)
        if folder is not None
        and (other.task, other.model, other.tuning.scoring, other.tuning.chat)
        == (config.task, config.model, config.tuning.scoring, config.tuning.chat)
    ]


def _load_backbone(team: Team, config: RunConfig) -> Backbone:
    whole_model = config.tuning.trains == "model"
    dtype = "fp32" if whole_model and config.dtype == "auto" else config.dtype
    return team.load(config.model, dtype, config.device, config.trust_remote_code)


def _open_folders(
    runs: Sequence[Run], folders: Sequence[RunFolder | None], overwrite: bool
) -> None:
    """Check all folders before anything is removed from one."""
    for run, folder in zip(runs, folders, strict=True):
        if folder is not None:
            folder.check_available(run.config, run.steps, overwrite)
    for folder in filter(None, folders):
        folder.remove_stale()
        if overwrite:
            folder.clear()


def load_tasks(configs: Sequence[RunConfig]) -> list[Task]:
    """Each run's task; runs of the same task, and mixtures of it, share its rows."""
    loaded: dict[str, Task] = {}

    def load(config: TaskConfig) -> Task:
        if str(config) not in loaded:
            loaded[str(config)] = load_task(config, load)
        return loaded[str(config)]

    return [load(config.task) for config in configs]
