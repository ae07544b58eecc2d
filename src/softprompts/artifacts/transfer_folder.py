"""A transfer's folder: that of the run it kept, and beside the run's files

choice.json     what the transfer was asked for, what it chose and why, and what came of it
runs/NAME/      the folders of its runs
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from ..errors import setting
from ..files import read_object

CHOICE, RUNS = "choice.json", "runs"
RANKED = ("name", "task", "similarity", "step", "seed", "length")
"""What is recorded of a source; its similarity is None if the strategy does not rank."""


class TransferRecord(TypedDict, total=False):
    """All of the file: first the request, then the choice, then the results."""

    request: dict[str, Any]
    probe: dict[str, Any] | None  # steps and folder
    ranked: list[dict[str, Any]]  # RANKED of each source
    chosen: list[str]
    left_out: list[dict[str, str]]  # name and why
    mixture: dict[str, Any] | None  # task and folder
    weights: dict[str, float] | None
    runs: list[dict[str, Any]]  # name, sources and start of each
    results: list[dict[str, Any]]  # of `runs`; a score of None if a run left no prompt
    baseline: dict[str, Any] | None
    kept: str
    gain: dict[str, Any] | None  # points, error_reduction, p and rows of a paired test; split


def read_record(folder: Path) -> TransferRecord | None:
    remedy = f"choose another {setting('output')}"
    record: TransferRecord | None = read_object(folder / CHOICE, ["request"], remedy)
    return record


def is_complete(record: Mapping[str, Any]) -> bool:
    """Whether a record holds a complete choice, from which a transfer can resume."""
    try:
        rows = {row["name"]: row for row in record["ranked"]}
        return (
            {"probe", "left_out", "mixture", "weights"} <= record.keys()
            and set(record["chosen"]) <= rows.keys()
            and all(row.keys() >= set(RANKED) for row in rows.values())
            and len(record["runs"]) > 0
            and all(
                isinstance(run["name"], str) and run["start"]["sources"] for run in record["runs"]
            )
        )
    except (KeyError, TypeError, AttributeError):
        return False
