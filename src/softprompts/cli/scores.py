"""Score reports as text: rows, intervals, baselines with paired tests, classes and confusion."""

from collections.abc import Mapping
from typing import Any

from .output import aligned

MAX_LABELS = 10
"""The most labels whose confusion matrix is printed."""
NAMES = {"majority": "majority class", "bag_of_words": "bag of words"}
NO_LABEL = "(no label)"


def describe_report(report: Mapping[str, Any], split: str | None = None) -> list[str]:
    """A line of scores, one of baselines, and a table of classes; empty for older cards."""
    if not report:
        return []
    metrics, intervals = report["metrics"], report["intervals"]
    scores = [
        f"{name} {value:.1f}{format_interval(intervals.get(name))}"
        for name, value in metrics.items()
    ]
    rows = f"{report['rows']:,} {split or ''} rows".replace("  ", " ")
    lines = [f"{', '.join(scores)} on {rows} (95 % intervals)"]
    first = next(iter(metrics))
    beside = [
        f"{NAMES.get(name, name)} {baseline['metrics'][first]:.1f}{format_p(baseline.get('p'))}"
        for name, baseline in report["baselines"].items()
    ]
    if beside:
        lines.append(f"for comparison: {', '.join(beside)}")
    if report["ece"] is not None:
        lines.append(f"calibration error (ECE) {report['ece']:.1f}")
    return lines


def format_interval(limits: tuple[float, float] | None) -> str:
    return "" if limits is None else f" [{limits[0]:.1f}, {limits[1]:.1f}]"


def format_p(p: float | None) -> str:
    """The p-value of a paired test."""
    if p is None:
        return ""
    return " (p < 0.001)" if p < 0.001 else f" (p = {p:.2g})"


def describe_classes(report: Mapping[str, Any]) -> list[str]:
    """Precision, recall and confusion of each class; of many classes, the weakest three."""
    classes = report.get("classes", {})
    if len(classes) > MAX_LABELS:
        known = {name: values for name, values in classes.items() if values["rows"]}
        weakest = sorted(known, key=lambda name: known[name]["recall"])[:3]
        shown = [f"{name} {known[name]['recall']:.1f} ({known[name]['rows']})" for name in weakest]
        return [f"lowest recall (rows): {', '.join(shown)}"]
    if len(classes) < 2:
        return []
    answers = [*classes, *([NO_LABEL] if report["invalid"] else [])]
    table = [["target", "rows", "precision", "recall", "predicted:", *answers]]
    for target, values in classes.items():
        counts = report["confusion"].get(target, {})
        others = sum(counts.values()) - sum(counts.get(name, 0) for name in classes)
        cells = [counts.get(name, others if name == NO_LABEL else 0) for name in answers]
        percent = [
            "-" if values[k] is None else f"{values[k]:.1f}" for k in ("precision", "recall")
        ]
        table.append([target, str(values["rows"]), *percent, "", *map(str, cells)])
    return list(aligned(table))
