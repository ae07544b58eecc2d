"""`choice.json`: what a transfer was asked for, what it chose and why, and what came of it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from ..artifacts.run_folder import RunFolder
from ..config import RunConfig, difference
from ..errors import UserError, setting
from ..files import read_json

CHOICE, RUNS = "choice.json", "runs"
PROBE, BASELINE, MIXTURE = "probe", "baseline", "mixture"
"""Names of runs, in their folder `runs`; the others are named after their sources."""
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
    gain: dict[str, Any] | None  # points, error_reduction or None, p and rows of a paired test


def open_record(
    request: dict[str, Any], output: Path, overwrite: bool
) -> tuple[TransferRecord, list[str]]:
    """The record in a folder if it is of this request, or a new one.

    And the names of runs in the folder that belong to a choice being overwritten.
    """
    path, new = output / CHOICE, TransferRecord(request=request)
    if not path.exists():
        if RunFolder(output).has_prompt or RunFolder(output).has_config:
            raise UserError(
                f"{output} already holds a run of another command; "
                f"choose another {setting('output')}."
            )
        return new, []
    try:
        record: TransferRecord = read_json(path)
    except UserError:
        record = {}
    if not isinstance(record, dict) or "request" not in record:
        raise UserError(
            f"{path} is corrupted, or not written by softprompts; "
            f"choose another {setting('output')}."
        )
    complete = "runs" not in record or _is_complete(record)
    if overwrite:
        runs = record.get("runs", []) if complete else []
        return new, [PROBE, MIXTURE, BASELINE, *(Path(run["name"]).name for run in runs)]
    defaults = json.loads(json.dumps({"target": RunConfig().plain()}))
    if change := difference(record["request"], json.loads(json.dumps(request)), defaults):
        raise UserError(
            f"{output} holds a transfer with other settings ({change}); "
            f"choose another {setting('output')}, or replace it with {setting('overwrite')}."
        )
    if not complete:
        raise UserError(
            f"{path} is corrupted or of another version; "
            f"start again with {setting('overwrite')}, or choose another {setting('output')}."
        )
    return record, []


def _is_complete(record: Mapping[str, Any]) -> bool:
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
