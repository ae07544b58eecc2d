"""What commands print: results as text or JSON, tables, scores, durations."""

import argparse
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def print_result(options: argparse.Namespace, result: Mapping[str, Any], text: str) -> None:
    print(json.dumps(result, ensure_ascii=False) if options.json else text)


def format_scores(result: Mapping[str, Any]) -> str:
    """Every metric next to the score of always predicting the majority class."""
    return ", ".join(
        f"{name} {value:.1f} (majority class {result['majority'][name]:.1f})"
        for name, value in result["metrics"].items()
    )


def invalid_answers(invalid: int, rows: int, trained: bool = True) -> str | None:
    """Why a score is low and what to do, if over a fifth of the answers matched no label.

    `trained`: more steps may help, which they do not where the loss exploded.
    """
    if invalid <= rows / 5:
        return None
    return f"{invalid} of {rows} answers matched no label; {advice_on_labels(trained)}"


def advice_on_labels(trained: bool = True) -> str:
    """What helps if a model generates other words than labels: more steps, unless untrained."""
    scoring = "use label scoring (--scoring labels)"
    return f"tune with more --steps, or {scoring}" if trained else scoring


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of a table with its columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def is_main_process() -> bool:
    """Whether this process prints: the first of those that share a run."""
    return os.environ.get("RANK", "0") == "0"
