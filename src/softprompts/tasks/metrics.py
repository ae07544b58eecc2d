"""Metrics, in per cent, exactly as T5 computes them: a prediction that is no label is class -1, and each metric says what that costs.

A metric takes the examples, the predictions and the label words. They are written out in numpy, so that the core needs no further library;
BLEU and ROUGE come from sacrebleu and rouge-score.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ..errors import UserError
from .definition import Example

Metric = Callable[[Sequence[Example], Sequence[str], Sequence[str]], float]


def accuracy(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    """The share of predictions that are their target to the letter; without a label, anything that is none is right (T5).

    Where examples tell whether their target is the right one (WSC), naming it or not is what counts.
    """
    if examples and "label" in examples[0].facts:
        return _percent(
            wsc_match(p, e.target) == e.facts["label"]
            for e, p in zip(examples, predictions, strict=True)
        )
    if not labels:
        return _percent(e.target == p for e, p in zip(examples, predictions, strict=True))
    targets, told = _classes(examples, predictions, labels)
    return _percent(targets == told)


def macro_f1(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    """The mean over the targets' classes of their F1; predictions of no class count as misses only."""
    return _mean_f1(sorted({e.target for e in examples}), [e.target for e in examples], predictions)


def mean_3class_f1(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    """The mean over all label words of their F1; a class that neither is asked for nor told has 0."""
    return _mean_f1(labels, [e.target for e in examples], predictions)


def f1(examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]) -> float:
    """Of two classes: F1 of the second, an invalid prediction taken as the opposite of its target. Of answers: SQuAD's F1."""
    if not labels:
        return _answers(_token_f1, examples, predictions)
    targets, told = _classes(examples, predictions, labels)
    told = np.where((told != 0) & (told != 1), 1 - targets, told)
    hits, asked, given = (targets & told).sum(), targets.sum(), told.sum()
    return float(200.0 * hits / (asked + given)) if asked + given else 0.0


def exact_match(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    """The share of questions all of whose answers are judged rightly (MultiRC)."""
    groups: dict[object, bool] = {}
    for example, prediction in zip(examples, predictions, strict=True):
        group = example.facts.get("question")
        groups[group] = groups.get(group, True) and example.target == prediction
    return _percent(groups.values())


def em(examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]) -> float:
    """SQuAD's exact match, against the answer that fits best."""
    return _answers(lambda answer, told: float(answer == told), examples, predictions)


def matthews_corrcoef(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    """Over all classes that occur, an invalid prediction being one of its own."""
    targets, told = _classes(examples, predictions, labels)
    classes = sorted({*targets.tolist(), *told.tolist()})
    asked, given = (
        np.array([(side == c).sum() for c in classes], dtype=float) for side in (targets, told)
    )
    count, hits = float(len(targets)), float((targets == told).sum())
    scale = math.sqrt(count**2 - float(given @ given)) * math.sqrt(count**2 - float(asked @ asked))
    return 100.0 * (hits * count - float(asked @ given)) / scale if scale else 0.0


def pearson_corrcoef(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    return _correlation(*_numbers(examples, predictions))


def spearman_corrcoef(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    return _correlation(*(_ranks(side) for side in _numbers(examples, predictions)))


DETERMINERS = frozenset(
    (
        *(
            "a",
            "an",
            "few",
            "her",
            "his",
            "each",
            "every",
            "many",
            "much",
            "my",
            "our",
            "some",
            "that",
            "the",
            "their",
            "these",
            "this",
        ),
        *("those", "which", "whose", "your"),
    )
)


def wsc_match(prediction: str, referent: str) -> int:
    """1: the words of one are among the other's; 0: they are not; -1: nothing was predicted."""

    def cleaned(text: str) -> str:
        return " ".join(word for word in text.strip().lower().split(" ") if word not in DETERMINERS)

    told, asked = cleaned(prediction), cleaned(referent)
    if not told:
        return -1
    if ("'" in told) != ("'" in asked):  # "Bob" is not "Bob's hat"
        return 0
    words, others = set(told.split(" ")), set(asked.split(" "))
    return int(words <= others or others <= words)


def bleu(examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]) -> float:
    """sacrebleu as T5 calls it: the international tokenizer, force on."""
    try:
        import sacrebleu
    except ImportError:
        raise UserError("BLEU needs sacrebleu: pip install 'softprompts[generation]'.") from None
    scored = sacrebleu.corpus_bleu(
        list(predictions),
        [[e.target for e in examples]],
        smooth_method="exp",
        force=True,
        tokenize="intl",
    )
    return float(scored.score)


def _rouge(kind: str) -> Metric:
    def rouge(
        examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
    ) -> float:
        try:
            from rouge_score import rouge_scorer
        except ImportError:
            raise UserError(
                "ROUGE needs rouge-score: pip install 'softprompts[generation]'."
            ) from None
        scorer = rouge_scorer.RougeScorer([kind], use_stemmer=False)
        found = [
            scorer.score(e.target, p)[kind].fmeasure
            for e, p in zip(examples, predictions, strict=True)
        ]
        return float(100.0 * sum(found) / len(found))

    return rouge


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "mean_3class_f1": mean_3class_f1,
    "f1": f1,
    "exact_match": exact_match,
    "em": em,
    "matthews_corrcoef": matthews_corrcoef,
    "pearson_corrcoef": pearson_corrcoef,
    "spearman_corrcoef": spearman_corrcoef,
    "bleu": bleu,
    "rouge1": _rouge("rouge1"),
    "rouge2": _rouge("rouge2"),
    "rougeL": _rouge("rougeL"),
}


def score(
    metrics: Sequence[str],
    examples: Sequence[Example],
    predictions: Sequence[str],
    labels: Sequence[str],
) -> dict[str, float]:
    return {name: METRICS[name](examples, predictions, labels) for name in metrics}


def settled(scores: Mapping[str, float]) -> dict[str, float]:
    """For runs and cards: what is not a number (the correlation with a constant) counts as 0, rounded to four places."""
    return {name: 0.0 if math.isnan(value) else round(value, 4) for name, value in scores.items()}


# -- parts ---------------------------------------------------------------------------------------------------------------------


def _percent(right: Iterable[bool]) -> float:
    return float(100.0 * np.mean([bool(r) for r in right]))


def _classes(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Targets and predictions as class numbers, -1 for what is no label."""
    numbers = {word: number for number, word in enumerate(labels)}
    return np.array([numbers.get(e.target, -1) for e in examples]), np.array(
        [numbers.get(p, -1) for p in predictions]
    )


def _mean_f1(classes: Sequence[str], targets: Sequence[str], predictions: Sequence[str]) -> float:
    hits = Counter(t for t, p in zip(targets, predictions, strict=True) if t == p)
    asked, told = Counter(targets), Counter(predictions)
    return 100.0 * sum(2 * hits[c] / max(1, asked[c] + told[c]) for c in classes) / len(classes)


def _numbers(
    examples: Sequence[Example], predictions: Sequence[str]
) -> tuple[np.ndarray, np.ndarray]:
    """What is no number is -1."""

    def number(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            return -1.0

    return np.array([number(e.target) for e in examples]), np.array(
        [number(p) for p in predictions]
    )


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Pearson's; not a number where one side is constant."""
    one, other = one - one.mean(), other - other.mean()
    scale = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return 100.0 * max(-1.0, min(1.0, float(one @ other) / scale)) if scale else math.nan


def _ranks(values: np.ndarray) -> np.ndarray:
    """From 1, equal values sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    shared: np.ndarray = (ends - (counts - 1) / 2)[inverse]
    return shared


def normalised(text: str) -> str:
    """SQuAD's: lower case, no ASCII punctuation, no articles, single spaces."""
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _token_f1(answer: str, told: str) -> float:
    common = Counter(answer.split()) & Counter(told.split())
    same = sum(common.values())
    if not same:
        return 0.0
    precision, recall = same / len(told.split()), same / len(answer.split())
    return 2 * precision * recall / (precision + recall)


def _answers(
    measure: Callable[[str, str], float], examples: Sequence[Example], predictions: Sequence[str]
) -> float:
    """The mean over questions of the best over a question's answers; a question that stands several times counts once (ReCoRD)."""
    seen: set[object] = set()
    found = []
    for example, prediction in zip(examples, predictions, strict=True):
        group = example.facts.get("group")
        if group is not None:
            group = tuple(group) if isinstance(group, list) else group
            if group in seen:
                continue
            seen.add(group)
        told = normalised(prediction)
        answers = example.facts.get("answers") or [example.target]
        found.append(max(measure(normalised(answer), told) for answer in answers))
    return 100.0 * sum(found) / len(found)
