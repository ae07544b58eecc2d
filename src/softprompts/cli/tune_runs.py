"""What `softprompts tune` does with torch: one run, a cohort or a tournament, and its result."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.progress import Progress

from ..artifacts.file_names import TOURNAMENT, TOURNAMENT_PLOT
from ..artifacts.tournament import TournamentRecord
from ..config import Member, spell
from ..tuning import Run, RunFailedError
from ..tuning.auto import UNLIKELY, rank
from ..tuning.phases import Phases
from ..tuning.progress import RowCount, RowLines, scores
from ..tuning.summary import over_seeds, records, write_table
from ..tuning.team import leave_team
from ..tuning.tune import tune_auto, tune_cohort, tune_config
from .output import aligned, format_interval, is_main_process, print_result
from .progress import Bars, CohortProgress, RunProgress, rate_columns
from .tune_summary import cohort_table, describe

FEW_ROWS = 50
"""Held-out rows below which the choice is mostly luck."""


def tune_and_print(
    members: Sequence[Member],
    folder: Path,
    options: argparse.Namespace,
    began: float,
    default: bool,
    minutes: float | None,
) -> bool:
    """Tune one run, a cohort, or with --auto the winner of a tournament; whether a run failed."""
    how: dict[str, Any] = {
        "overwrite": options.overwrite,
        "trackers": options.trackers,
        "phases": Phases(began),
    }
    tournament: list[str] = []
    try:
        if options.auto:
            with TournamentProgress(options.quiet) as watcher:
                tuned = tune_auto(members, folder, default, minutes, watcher=watcher, **how)
        elif members[0].varied:
            return _tune_cohort(members, folder, options, how)
        else:
            with RunProgress(options.quiet) as watcher:
                tuned = tune_config(members[0].config, folder, watcher=watcher, **how)
    except RunFailedError:
        if is_main_process():
            raise
        return True
    finally:
        leave_team()
    if is_main_process():
        result = tuned.card.plain() | {"cost": tuned.cost}
        if options.auto and tuned.tournament is not None:
            result["tournament"] = tuned.tournament
            tournament = [*describe_tournament(tuned.tournament, folder), ""]
        print_result(options, result, *tournament, describe(tuned))
    return tuned.card.failed


def _tune_cohort(
    members: Sequence[Member], folder: Path, options: argparse.Namespace, how: dict[str, Any]
) -> bool:
    varied = [member.varied for member in members]
    with CohortProgress(varied, options.quiet) as watcher:
        results = tune_cohort(members, folder, watcher=watcher, exclusive=True, **how)
    runs = records(members, results, folder)
    if is_main_process():
        write_table(members, results, folder)
        result = {"runs": runs, "summary": over_seeds(runs)}
        print_result(options, result, cohort_table(runs, folder))
    return any(run["failed"] for run in runs)


class TournamentProgress(Bars):
    """A bar over all row passes, those of the winner included; lines where there is no terminal."""

    def __init__(self, quiet: bool = False) -> None:
        super().__init__(quiet, RowLines())
        self.count = RowCount()
        self.progress = Progress(*rate_columns(), console=self.console, disable=not self.shown)
        self.bar = self.progress.add_task("tournament", total=None, visible=False, unit="rows")

    def on_row_plan(self, rows: int, done: int) -> None:
        self.log.on_row_plan(rows, done)
        self.count.plan(rows, done)
        self.progress.update(self.bar, total=rows, completed=done, visible=True)

    def on_start(self, runs: Sequence[Run]) -> None:
        self.log.on_start(runs)
        self.count.add_resumed(runs)
        self.progress.update(self.bar, description="winner")

    def on_step(self, run: Run) -> None:
        self.log.on_step(run)
        self.count.add_steps(run)
        self._update()

    def on_rows_answered(self, run: Run, rows: int) -> None:
        self.log.on_rows_answered(run, rows)
        self.count.done += rows
        self._update()

    def on_evaluation(self, run: Run) -> None:
        self.log.on_evaluation(run)
        if self.shown and run.step >= run.steps:
            self.on_message(f"winner: {scores(run)}")

    def _update(self) -> None:
        self.progress.update(
            self.bar, completed=self.count.done, seconds_left=self.count.seconds_left
        )


def describe_tournament(record: TournamentRecord, folder: Path) -> list[str]:
    """The table of all rungs, the accounting, and what to bear in mind."""
    few_rows = (
        f"{record['held_out']} rows separate only candidates that differ widely; "
        "more training rows make the choice more reliable"
    )
    final = record["rungs"][-1]["standings"]
    protected = (
        "the default method won because no other candidate was significantly better "
        f"(p < {UNLIKELY:g})"
    )
    return [
        f"{len(record['candidates'])} candidates, judged by {record['metric']} on "
        f"{record['held_out']:,} rows held out of the training data (95 % intervals)",
        *aligned(_table(record)),
        *([few_rows] if record["held_out"] < FEW_ROWS else []),
        *([protected] if final[0] != min(final, key=rank) else []),
        *(
            f"left out: {', '.join(map(spell, candidate['settings'].values()))}: {candidate['why']}"
            for candidate in record["left_out"]
        ),
        _accounting(record),
        f"{TOURNAMENT} and {TOURNAMENT_PLOT} are in {folder}",
    ]


def _table(record: TournamentRecord) -> list[list[str]]:
    """Rung by rung, best first; eliminated candidates are marked."""
    names = list(next(iter(record["candidates"].values())))
    rows = [["rung", "step", *names, "held-out score", "interval", "rows", "loss", ""]]
    for number, rung in enumerate(record["rungs"], 1):
        last = number == len(record["rungs"])
        for place in rung["standings"]:
            settings = map(spell, record["candidates"][place["candidate"]].values())
            rows.append(
                [
                    *(str(number), str(rung["step"]), *settings),
                    "failed" if place["score"] is None else f"{place['score']:.1f}",
                    format_interval(place["interval"]).strip() or "-",
                    str(rung["rows"]),
                    "-" if place["loss"] is None else f"{place['loss']:.3f}",
                    "eliminated" if place["left"] else "won" if last else "stays",
                ]
            )
    return rows


def _accounting(record: TournamentRecord) -> str:
    cost = record["cost"]
    tournament = cost["tournament_training"] + cost["tournament_judging"]
    winner = cost["winner_training"] + cost["winner_evaluation"]
    return (
        f"row passes: tournament {tournament:,} (training {cost['tournament_training']:,}, judging "
        f"{cost['tournament_judging']:,}), winner {winner:,} (training "
        f"{cost['winner_training']:,}, validation {cost['winner_evaluation']:,}); in all "
        f"{cost['runs']:.2f} times the winner's run alone"
    )
