"""Metrics over predicted and target strings, in per cent. A prediction that is no label is simply wrong."""

from collections import Counter
from collections.abc import Callable, Sequence

Metric = Callable[[Sequence[str], Sequence[str]], float]


def accuracy(targets: Sequence[str], predictions: Sequence[str]) -> float:
    return 100.0 * sum(t == p for t, p in zip(targets, predictions, strict=True)) / len(targets)


def macro_f1(targets: Sequence[str], predictions: Sequence[str]) -> float:
    """The mean over the targets' classes of their F1; predictions of no class count as misses only."""
    classes = sorted(set(targets))
    hits = Counter(t for t, p in zip(targets, predictions, strict=True) if t == p)
    asked, told = Counter(targets), Counter(predictions)
    return 100.0 * sum(2 * hits[c] / (asked[c] + told[c]) for c in classes) / len(classes)


METRICS: dict[str, Metric] = {"accuracy": accuracy, "macro_f1": macro_f1}


def score(metrics: Sequence[str], targets: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    return {name: round(METRICS[name](targets, predictions), 4) for name in metrics}
