"""The confusion matrix as a picture. It needs matplotlib (`pip install 'softprompts[plots]'`)."""

from pathlib import Path

from ..files import write_atomically
from ..tasks.score_report import ScoreReport

MAX_LABELS = 30
NO_LABEL = "(no label)"


def draw_confusion(report: ScoreReport, title: str, path: Path) -> bool:
    """Draw targets against predictions, with counts, shaded by the share of their target.

    False, and no picture, without matplotlib, without labels, or with more than 30.
    """
    labels = list(report.classes)
    if not 2 <= len(labels) <= MAX_LABELS:
        return False
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    columns = [*labels, NO_LABEL] if report.invalid else labels
    rows = []
    for target in labels:
        counts = report.confusion.get(target, {})
        row = [counts.get(label, 0) for label in labels]
        rows.append([*row, sum(counts.values()) - sum(row)][: len(columns)])
    shares = [[count / max(1, sum(row)) for count in row] for row in rows]
    size = 2.5 + 0.55 * len(columns)
    figure = Figure(figsize=(max(5.0, size + 1), max(3.5, size)), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(labels)), labels)
    for i, row in enumerate(rows):
        for j, count in enumerate(row):
            if count:
                dark = shares[i][j] > 0.5
                axes.text(j, i, str(count), ha="center", va="center", color="w" if dark else "k")
    axes.set(xlabel="prediction", ylabel="target")
    axes.set_title(f"{title}\n{report.rows} rows", fontsize="medium")
    figure.colorbar(image, label="share of the target's rows")
    write_atomically(path, lambda temporary: figure.savefig(temporary, format="png", dpi=150))
    return True
