"""`softprompts tune --auto`: the tournament's progress, and its result as text."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress

from ..artifacts.file_names import TOURNAMENT, TOURNAMENT_PLOT
from ..artifacts.tournament import TournamentRecord
from ..config import Member, spell
from ..tuning import Run
from ..tuning.phases import Phases
from ..tuning.progress import RowCount, RowLines, scores
from ..tuning.tune import tune_auto
from .output import aligned, format_interval, is_main_process, print_result
from .progress import Bars, rate_columns
from .tune_summary import describe

FEW_ROWS = 50
"""Held-out rows below which the choice is mostly luck."""


def tune_and_print(
    members: Sequence[Member],
    default: bool,
    minutes: float | None,
    folder: Path,
    options: argparse.Namespace,
    began: float,
) -> bool:
    """Run the tournament and tune its winner; whether the winner's run failed."""
    with TournamentProgress(options.quiet or not is_main_process()) as watcher:
        tuned = tune_auto(
            members,
            folder,
            default,
            minutes,
            options.overwrite,
            watcher,
            trackers=options.trackers,
            phases=Phases(began),
        )
    if is_main_process() and tuned.tournament is not None:
        result = tuned.card.plain() | {"cost": tuned.cost, "tournament": tuned.tournament}
        text = [*describe_tournament(tuned.tournament, folder), "", describe(tuned)]
        print_result(options, result, "\n".join(text))
    return tuned.card.failed


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
    lines = [
        f"{len(record['candidates'])} candidates, judged by {record['metric']} on "
        f"{record['held_out']:,} rows held out of the training data (95 % intervals)",
        *aligned(_table(record)),
    ]
    if record["held_out"] < FEW_ROWS:
        lines.append(
            f"{record['held_out']} rows separate only candidates that differ widely; "
            "more training rows make the choice more reliable"
        )
    for candidate in record["left_out"]:
        settings = ", ".join(map(spell, candidate["settings"].values()))
        lines.append(f"left out: {settings}: {candidate['why']}")
    return [*lines, _accounting(record), f"{TOURNAMENT} and {TOURNAMENT_PLOT} are in {folder}"]


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
