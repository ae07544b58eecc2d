"""What commands print: results as text or JSON, tables, score reports, durations."""

import argparse
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import counted, spelled
from ..tasks.metrics import in_order

MAX_LABELS = 10
"""The most labels whose confusion matrix is printed."""
LABEL_WIDTH = 24
"""Characters of a label in a table."""
NAMES = {"majority": "majority class", "bag_of_words": "bag of words"}
NO_LABEL = "(no label)"


def print_result(options: argparse.Namespace, result: Mapping[str, Any], *lines: str | None) -> int:
    """Print a result as text, or as JSON if asked for; the exit code of success."""
    text = json.dumps(result, ensure_ascii=False, default=str) if options.json else joined(*lines)
    print(text.encode("utf-8", "backslashreplace").decode())  # half of a surrogate pair
    return 0


def joined(*lines: str | None) -> str:
    """The lines of a text, with its settings spelled; those that are None are left out."""
    return spelled("\n".join(line for line in lines if line is not None))


def rows_in(file: Path, rows: int) -> str:
    """What a command says about the file that it has written."""
    return f"{counted(rows, 'row')} {'is' if rows == 1 else 'are'} in {file}"


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


# -- score reports ---------------------------------------------------------------------------------


def describe_report(report: Mapping[str, Any], split: str | None = None) -> list[str]:
    """A line of scores, and one of baselines."""
    metrics, intervals = report["metrics"], report["intervals"]
    scores = [
        f"{name} {value:.1f}{format_interval(intervals.get(name))}"
        for name, value in metrics.items()
    ]
    rows = counted(report["rows"], f"{split} row" if split else "row")
    first = next(iter(metrics))
    beside = [
        f"{NAMES.get(name, name)} {baseline['metrics'][first]:.1f}{format_p(baseline.get('p'))}"
        for name, baseline in report["baselines"].items()
    ]
    ece = report["ece"]
    return [
        f"{', '.join(scores)} on {rows} (95 % intervals)",
        *([f"for comparison: {', '.join(beside)}"] if beside else []),
        *([f"calibration error (ECE) {ece:.1f}"] if ece is not None else []),
    ]


def format_interval(limits: Sequence[float] | None) -> str:
    return "" if limits is None else f" [{limits[0]:.1f}, {limits[1]:.1f}]"


def format_p(p: float | None) -> str:
    if p is None:
        return ""
    return " (p < 0.001)" if p < 0.001 else f" (p = {p:.2g})"


def describe_classes(report: Mapping[str, Any]) -> list[str]:
    """Precision, recall and confusion of each class; of many classes, the weakest three."""
    classes = {name: report["classes"][name] for name in in_order(report.get("classes", ()))}
    if len(classes) > MAX_LABELS:
        known = {name: values for name, values in classes.items() if values["rows"]}
        weakest = sorted(known, key=lambda name: known[name]["recall"])[:3]
        shown = [
            f"{_short(name)} {known[name]['recall']:.1f} ({known[name]['rows']})"
            for name in weakest
        ]
        return [f"lowest recall (rows): {', '.join(shown)}"]
    if len(classes) < 2:
        return []
    answers = [*classes, *([NO_LABEL] if report["invalid"] else [])]
    table = [["target", "rows", "precision", "recall", "predicted:", *map(_short, answers)]]
    for target, values in classes.items():
        counts = report["confusion"].get(target, {})
        others = sum(counts.values()) - sum(counts.get(name, 0) for name in classes)
        cells = [counts.get(name, others if name == NO_LABEL else 0) for name in answers]
        percent = [
            "-" if values[k] is None else f"{values[k]:.1f}" for k in ("precision", "recall")
        ]
        table.append([_short(target), str(values["rows"]), *percent, "", *map(str, cells)])
    return list(aligned(table))


def _short(label: str) -> str:
    """A label in a table: on one line, and not too long."""
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in label)
    return text if len(text) <= LABEL_WIDTH else f"{text[: LABEL_WIDTH - 1]}…"
