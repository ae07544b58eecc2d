"""What to try when a prompt is no better than a baseline, in the order in which it tends to help.

Messages name settings by their paths; `errors.spelled` writes them out.
"""

from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from ..artifacts.card import Card
from ..config import run_config
from ..errors import UserError, setting
from ..tasks.score_report import BASELINE_NAMES

SIZES = (
    ("t5-tiny", *(f"google/flan-t5-{size}" for size in ("small", "base", "large", "xl", "xxl"))),
    tuple(f"google/t5-{size}-lm-adapt" for size in ("small", "base", "large", "xl", "xxl")),
    ("openai-community/gpt2", *(f"openai-community/gpt2-{size}" for size in ("medium", "large"))),
    tuple(f"HuggingFaceTB/SmolLM2-{size}" for size in ("135M", "360M", "1.7B")),
    ("google-bert/bert-base-uncased", "google-bert/bert-large-uncased"),
    ("FacebookAI/roberta-base", "FacebookAI/roberta-large"),
)
"""Models from small to large."""
FOR_TRYING = (
    "t5-tiny (14M parameters) is for trying things out; for real work take a larger model, such as "
    "google/flan-t5-small (77M), google/flan-t5-base (250M), google/flan-t5-large (780M) or "
    "HuggingFaceTB/SmolLM2-1.7B-Instruct"
)
MULTILINGUAL = "google/mt5-small"
UNKNOWN_TOKENS = 0.1
"""The share of unknown tokens from which on texts are hard to tell apart."""
LARGER = {PurePath(small).name: large for sizes in SIZES for small, large in pairwise(sizes)}


def exploded(card: Card) -> bool:
    """Whether the loss rose, or ended above that of a uniform guess: the rate was too high."""
    loss = card.loss
    if card.failed or "last" not in loss or "first" not in loss:
        return card.failed
    return loss["last"] > min(1.2 * loss["first"], loss.get("uniform", loss["last"]))


def unknown_tokens(model: str, share: float) -> str | None:
    """A warning about texts that a model's tokenizer cannot read; None if it can."""
    if share < UNKNOWN_TOKENS:
        return None
    return (
        f"{model} does not know {share:.0%} of the tokens in the training texts, so it cannot "
        f"tell such texts apart; use a multilingual model ({setting('model', MULTILINGUAL)})"
    )


def advice(card: Card, report: Mapping[str, Any] | None = None) -> str | None:
    """Which baselines a prompt does not beat, and what to try; None if it beats them all, or if
    its score is perfect.

    `report` is the plain `ScoreReport` of other rows than those that the card's are of.
    """
    report = card.judged if report is None else report
    name, value = next(iter(report.get("metrics", {}).items()), ("", 0.0))
    better = [
        f"the {BASELINE_NAMES.get(baseline, baseline)} ({scores['metrics'][name]:.1f})"
        for baseline, scores in report.get("baselines", {}).items()
        if value <= scores["metrics"][name]
    ]
    if not better or value >= 100:
        return None
    what = f"{name} {value:.1f} is no better than {' and '.join(better)}"
    steps = ", then ".join(_remedies(card))
    return f"{what}; try {steps}" if steps else what


def _remedies(card: Card) -> list[str]:
    tuning, remedies = card.config.get("tuning", {}), []
    if card.unknown_tokens >= UNKNOWN_TOKENS:  # a larger model has the same tokenizer
        remedies.append(f"a multilingual backbone ({setting('model', MULTILINGUAL)})")
    elif larger := LARGER.get(PurePath(card.backbone.name).name):
        remedies.append(f"a larger backbone ({setting('model', larger)})")
    if card.scoring == "generate" and card.task.form is not None and card.task.form.labels:
        remedies.append(f"label scoring ({setting('tuning.scoring', 'labels')})")
    rate, steps, loss = tuning.get("lr"), card.steps or 0, card.loss
    if exploded(card):
        remedies.append(f"a lower learning rate ({_rate(rate, 0.1)}), because the loss exploded")
    elif rate is not None and (usual := _usual_rate(card)) is not None and rate > 3 * usual:
        remedies.append(f"the preset's learning rate ({setting('tuning.lr', f'{usual:g}')})")
    elif loss.get("last", 0.0) > 0.95 * loss.get("first", float("inf")):
        remedies.append(f"a higher learning rate ({_rate(rate, 3)}), because the loss hardly fell")
    if steps and not exploded(card):
        remedies.append(f"more steps ({setting('tuning.steps', 4 * steps)})")
    return remedies


def _usual_rate(card: Card) -> float | None:
    """The learning rate of the run's preset; None if this version does not know the preset."""
    with suppress(UserError):
        named = {name: card.config[name] for name in card.config if name in ("preset", "paper")}
        return run_config(named).tuning.lr
    return None


def _rate(rate: float | None, factor: float) -> str:
    return setting("tuning.lr", None if rate is None else f"{factor * rate:g}")
