"""The record of a tournament among candidates (`tune --auto`): tournament.json in the folder of the
winner's run, and while it lasts, tournament/NAME/ with the state of each candidate."""

from typing import Any, TypedDict

from ..errors import setting
from ..files import read_object, write_json
from .run_folder import RunFolder


class Standing(TypedDict):
    """A candidate at the end of a rung."""

    candidate: str
    score: float | None  # None if its run failed
    interval: list[float] | None
    loss: float | None  # mean training loss of the rung, which decides between equal scores
    left: bool


class RungRecord(TypedDict):
    """Where candidates were judged, best first."""

    step: int
    rows: int
    standings: list[Standing]


class TournamentRecord(TypedDict, total=False):
    """All of the file: first request and plan, then a rung at a time, then the winner's result."""

    request: dict[
        str, Any
    ]  # candidates (their settings in full), minutes, hashes of data and model
    candidates: dict[str, dict[str, Any]]  # the settings that differ, by name
    left_out: list[dict[str, Any]]  # candidate and why
    default: str  # the candidate that wins unless another is clearly better; absent from lists
    metric: str
    steps: int  # of the winner
    batch_rows: int
    held_out: int  # rows
    held_out_share: float  # of the training rows of each class; absent from earlier versions
    rung_steps: list[int]
    rungs: list[RungRecord]
    winner: str
    cost: dict[str, float]  # row passes
    result: dict[str, Any]  # split, rows, score and interval of the winner's run


PLANNED = (
    *("request", "candidates", "left_out", "metric", "steps", "batch_rows", "held_out"),
    *("rung_steps", "rungs"),
)


def read_tournament(folder: RunFolder) -> TournamentRecord | None:
    remedy = f"choose another {setting('output')}, or start again with {setting('overwrite')}"
    record: TournamentRecord | None = read_object(folder.tournament, PLANNED, remedy)
    return record


def write_tournament(folder: RunFolder, record: TournamentRecord) -> None:
    write_json(folder.tournament, record)
