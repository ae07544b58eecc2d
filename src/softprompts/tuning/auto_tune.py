"""`tune --auto` from settings to a saved prompt: the tournament, then the winner's run."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..artifacts.run_folder import RunFolder
from ..artifacts.tournament import TournamentRecord, read_tournament, write_tournament
from ..backbone import Backbone
from ..config import Member, RunConfig, absolute_data
from ..config.candidates import BUDGET, steps_needed, winner_steps
from ..errors import UserError, setting
from ..tasks import Task
from .auto import (
    MOST,
    MOST_ON_CPU,
    Tournament,
    affordable_steps,
    fitting,
    hold_out,
    in_words,
    plan,
    planned_steps,
    row_passes,
    winner_config,
)
from .phases import Phases
from .team import Team
from .tournament_picture import draw_tournament
from .tuned import Tuned
from .watch import Watcher

TuneWinner = Callable[[RunConfig], Tuned]


def tune_by_tournament(
    members: Sequence[Member],
    default: bool,
    minutes: float | None,
    task: Task,
    backbone: Backbone,
    folder: RunFolder | None,
    overwrite: bool,
    team: Team,
    watcher: Watcher,
    phases: Phases,
    tune_winner: TuneWinner,
) -> Tuned:
    """Let the members compete, and tune the winner with `tune_winner`.

    `default`: they are the built-in candidates, of which the first ones are enough.
    """
    request = _request(members, minutes, task, backbone)
    record = team.on_main(lambda: _open(folder, request, members, overwrite))
    if record is None:
        with phases("plan"):
            record = _plan(members, default, minutes, task, backbone, team, watcher, phases)
        record["request"] = request
    validation = len(task.validation)
    judged = hold_out(task, record)
    if folder is not None and team.is_main:
        write_tournament(folder, record)
    if "winner" not in record:
        tournament = Tournament(members, judged, backbone, record, folder, team, watcher, phases)
        watcher.on_row_plan(int(row_passes(record, validation)["total"]), tournament.rows_done)
        tournament.play()
    config = winner_config(
        next(member.config for member in members if member.name == record["winner"]),
        record["steps"],
    )
    if folder is not None and team.is_main:
        folder.write_config(config)
        draw_tournament(record, folder, task, backbone)
    cost = row_passes(record, validation)
    single = int(cost["winner_training"]) + validation
    watcher.on_row_plan(int(cost["total"]), int(cost["total"]) - single)
    winner = in_words(record["candidates"][record["winner"]])
    watcher.on_message(f"tuning the winner, {winner}, for {record['steps']:,} steps")
    tuned = tune_winner(config)
    record |= {"cost": cost, "result": _result(tuned)}
    tuned.tournament = record
    if folder is not None and team.is_main:
        write_tournament(folder, record)
        draw_tournament(record, folder, task, backbone)
    return tuned


def refuse_unfinished(folder: RunFolder) -> None:
    """Refuse a run without a tournament in the folder of one that is not decided yet."""
    record = read_tournament(folder)
    if record is not None and "winner" not in record:
        raise UserError(
            f"{folder.path} holds a tournament that is not finished; resume it with "
            f"{setting('auto')}, choose another {setting('output')}, or start again with "
            f"{setting('overwrite')}."
        )


def _plan(
    members: Sequence[Member],
    default: bool,
    minutes: float | None,
    task: Task,
    backbone: Backbone,
    team: Team,
    watcher: Watcher,
    phases: Phases,
) -> TournamentRecord:
    on_cpu = backbone.device.type == "cpu"
    most = (MOST_ON_CPU if on_cpu else MOST) if default else None
    fit, left_out = (
        team.on_all(lambda: fitting(members, task, backbone)) if default else (members, [])
    )
    for candidate in left_out:
        watcher.on_message(f"leaving out {in_words(candidate['settings'])}: {candidate['why']}")
    if minutes is None:
        steps = planned_steps(members[0].config, task)
    else:
        watcher.on_message("measuring how long a row takes")
        seconds = 60 * minutes - sum(phases.seconds().values())
        timed = affordable_steps(fit, task, backbone, team, seconds)
        steps = team.on_main(lambda: timed)
        if steps < (needed := steps_needed(2 if default else len(members))):
            raise UserError(
                f"A budget of {minutes:g} min is enough for a run of {BUDGET * steps} steps here, "
                f"and a tournament needs {BUDGET * needed}; raise {setting('minutes')}."
            )
        watcher.on_message(
            f"a budget of {minutes:g} min is enough for a tournament and {winner_steps(steps):,} "
            f"steps of its winner, or for a run of about {BUDGET * steps:,} steps without it"
        )
    return plan(fit, task, steps, most, left_out)


def _request(
    members: Sequence[Member], minutes: float | None, task: Task, backbone: Backbone
) -> dict[str, Any]:
    configs = {member.name: member.config.plain() for member in members}
    return {
        "candidates": {
            name: {**config, "task": absolute_data(config["task"])}
            for name, config in configs.items()
        },
        "minutes": minutes,
        "data": task.digest,
        "backbone": backbone.fingerprint,
    }


def _open(
    folder: RunFolder | None,
    request: dict[str, Any],
    members: Sequence[Member],
    overwrite: bool,
) -> TournamentRecord | None:
    """The record to resume from; None if there is none. The folder is ready after that."""
    if folder is None:
        return None
    record = None if overwrite else read_tournament(folder)
    if record is None:
        folder.check_available(members[0].config, 1, overwrite)
        if folder.has_checkpoint and not overwrite:
            raise UserError(
                f"{folder.path} holds a run without a tournament; choose another "
                f"{setting('output')}, or start again with {setting('overwrite')}."
            )
        folder.remove_stale()
        if overwrite:
            folder.clear()
        folder.write_config(members[0].config)  # marks the folder as ours
        return None
    folder.remove_stale()
    _check_request(folder.path, record["request"], request, members)
    return record


def _check_request(
    path: Path, saved: dict[str, Any], request: dict[str, Any], members: Sequence[Member]
) -> None:
    elsewhere = f"choose another {setting('output')}, or start again with {setting('overwrite')}"
    configs = saved.get("candidates", {})
    if saved.get("minutes") != request["minutes"] or configs.keys() != {m.name for m in members}:
        changed: str | None = "its candidates, or its minutes"
    else:
        changes = (member.config.changed(configs[member.name]) for member in members)
        changed = next(filter(None, changes), None)
    if changed is not None:
        raise UserError(f"{path} holds a tournament with other settings ({changed}); {elsewhere}.")
    for what in ("data", "backbone"):
        if saved.get(what) != request[what]:
            raise UserError(
                f"The {what} of the tournament in {path} has changed since; {elsewhere}."
            )


def _result(tuned: Tuned) -> dict[str, Any]:
    """The winner's first metric on the rows that it is judged by, which chose nothing."""
    card = tuned.card
    split = "validation" if card.test is None else "test"
    report = card.scores.get(split, {})
    score = card.score if card.test is None else card.test[card.metric]
    return {
        "split": split,
        "rows": report.get("rows"),
        "score": None if not math.isfinite(score) else score,
        "interval": report.get("intervals", {}).get(card.metric),
    }
