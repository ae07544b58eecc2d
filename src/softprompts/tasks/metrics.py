"""Metrics, in percent, computed exactly as in T5.

A prediction that is not a label counts as class -1; each metric says what that costs. BLEU and
ROUGE come from sacrebleu and rouge-score. Other packages add metrics with `register_metric`.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from ..config import load_plugins
from ..errors import UserError, choices, require
from .task_definition import Example

Metric = Callable[[Sequence[Example], Sequence[str], Sequence[str]], float]
"""Scores predictions, given the examples and the label words; higher is better."""

INSTALL = "pip install 'softprompts[generation]'"

METRICS: dict[str, Metric] = {}
"""The registered metrics by name; look them up with `metric`, which also loads plugins."""


def register_metric(name: str) -> Callable[[Metric], Metric]:
    """Add a metric under a name that tasks and the setting `task.metric` can use.

    @register_metric("contains")
    def contains(examples, predictions, labels):
        pairs = zip(examples, predictions, strict=True)
        return 100 * sum(e.target in p for e, p in pairs) / len(examples)
    """

    def register(function: Metric) -> Metric:
        if name in METRICS and METRICS[name].__module__ == __name__:
            raise UserError(f"There already is a metric {name!r}; choose another name.")
        METRICS[name] = function
        return function

    return register


def has_metric(name: str) -> bool:
    """Whether there is a metric of this name, in the package or in a plugin."""
    parts = set(name.split("+"))
    if not parts <= METRICS.keys():
        load_plugins()
    return parts <= METRICS.keys()


def metric(name: str) -> Metric:
    """The metric of this name, from the package or a plugin; `a+b` is the mean of a and b."""
    parts = name.split("+")
    if not has_metric(name):
        missing = next(part for part in parts if part not in METRICS)
        raise UserError(f"There is no metric {missing!r}; {choices(missing, METRICS)}")
    if len(parts) == 1:
        return METRICS[name]
    return lambda examples, predictions, labels: fmean(
        METRICS[part](examples, predictions, labels) for part in parts
    )


def score(
    metrics: Sequence[str],
    examples: Sequence[Example],
    predictions: Sequence[str],
    labels: Sequence[str],
) -> dict[str, float]:
    return {name: metric(name)(examples, predictions, labels) for name in metrics}


def rounded(scores: Mapping[str, float]) -> dict[str, float]:
    """Scores for runs and cards: to four digits, and 0 for NaN (correlation with a constant)."""
    return {name: 0.0 if math.isnan(value) else round(value, 4) for name, value in scores.items()}


@register_metric("accuracy")
def accuracy(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    """The fraction of predictions that equal their target.

    As in T5, any prediction that is not a label is correct for a target that is not one. If the
    examples say whether their target is the correct one (WSC), what counts is whether a prediction
    names it.
    """
    pairs = list(zip(examples, predictions, strict=True))
    if examples and "label" in examples[0].metadata:
        return _percent(wsc_match(p, e.target) == e.metadata["label"] for e, p in pairs)
    if not labels:
        return _percent(e.target == p for e, p in pairs)
    gold, predicted = _classes(examples, predictions, labels)
    return _percent(g == p for g, p in zip(gold, predicted, strict=True))


@register_metric("macro_f1")
def macro_f1(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    """The mean F1 over the classes of the targets."""
    return _mean_f1(sorted({e.target for e in examples}), [e.target for e in examples], predictions)


@register_metric("mean_3class_f1")
def mean_3class_f1(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    """The mean F1 over all labels; a label that occurs on neither side has 0."""
    return _mean_f1(labels, [e.target for e in examples], predictions)


@register_metric("f1")
def f1(examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]) -> float:
    """For two classes, F1 of the second; for free text, SQuAD's F1.

    A prediction that is not a label counts as the opposite of its target.
    """
    if not labels:
        return _best_answers(_token_f1, examples, predictions)
    gold, predicted = _classes(examples, predictions, labels)
    predicted = [p if p in (0, 1) else 1 - g for g, p in zip(gold, predicted, strict=True)]
    hits = sum(g & p for g, p in zip(gold, predicted, strict=True))
    positives = sum(gold) + sum(predicted)
    return 200.0 * hits / positives if positives else 0.0


@register_metric("exact_match")
def exact_match(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    """The fraction of questions with only correct predictions (MultiRC)."""
    correct: dict[object, bool] = {}
    for example, prediction in zip(examples, predictions, strict=True):
        question = example.metadata.get("question")
        correct[question] = correct.get(question, True) and example.target == prediction
    return _percent(correct.values())


@register_metric("em")
def em(examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]) -> float:
    """SQuAD's exact match with any of the answers."""
    return _best_answers(
        lambda answer, predicted: float(answer == predicted), examples, predictions
    )


@register_metric("matthews_corrcoef")
def matthews_corrcoef(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    """Over all classes that occur; predictions that are not a label are a class of their own."""
    gold, predicted = _classes(examples, predictions, labels)
    gold_counts, counts = Counter(gold), Counter(predicted)
    size = len(gold)
    hits = sum(g == p for g, p in zip(gold, predicted, strict=True))
    covariance = hits * size - sum(gold_counts[c] * counts[c] for c in counts)
    scale = math.prod(
        math.sqrt(size**2 - sum(count**2 for count in side.values()))
        for side in (counts, gold_counts)
    )
    return 100.0 * covariance / scale if scale else 0.0


@register_metric("pearson_corrcoef")
def pearson_corrcoef(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    return _correlation(*_numbers(examples, predictions))


@register_metric("spearman_corrcoef")
def spearman_corrcoef(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> float:
    return _correlation(*(_ranks(side) for side in _numbers(examples, predictions)))


@register_metric("bleu")
def bleu(examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]) -> float:
    """sacrebleu with T5's arguments: the international tokenizer, force on."""
    sacrebleu = require("sacrebleu", f"BLEU needs sacrebleu: {INSTALL}.")
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
        rouge_scorer = require("rouge_score.rouge_scorer", f"ROUGE needs rouge-score: {INSTALL}.")
        scorer = rouge_scorer.RougeScorer([kind], use_stemmer=False)
        targets = (_sentences(example.target) for example in examples)
        pairs = zip(targets, map(_sentences, predictions), strict=True)
        scores = [scorer.score(target, prediction)[kind].fmeasure for target, prediction in pairs]
        return float(100.0 * sum(scores) / len(scores))

    return rouge


def _sentences(text: str) -> str:
    """One sentence per line, as T5 prepares texts for ROUGE-Lsum; the other kinds do not mind."""
    return text.replace(" . ", " .\n")


for _kind in ("rouge1", "rouge2", "rougeL", "rougeLsum"):
    register_metric(_kind)(_rouge(_kind))


# fmt: off
DETERMINERS = frozenset((
    "a", "an", "few", "her", "his", "each", "every", "many", "much", "my", "our", "some", "that",
    "the", "their", "these", "this", "those", "which", "whose", "your",
))
# fmt: on


def wsc_match(prediction: str, referent: str) -> int:
    """1 if the words of one are among the other's, 0 if not, -1 if nothing was predicted."""
    predicted, expected = (
        " ".join(word for word in text.strip().lower().split(" ") if word not in DETERMINERS)
        for text in (prediction, referent)
    )
    if not predicted:
        return -1
    if ("'" in predicted) != ("'" in expected):  # "Bob" is not "Bob's hat"
        return 0
    words, others = set(predicted.split(" ")), set(expected.split(" "))
    return int(words <= others or others <= words)


def _percent(correct: Iterable[bool]) -> float:
    flags = [bool(flag) for flag in correct]
    return 100.0 * (sum(flags) / len(flags))


def _classes(
    examples: Sequence[Example], predictions: Sequence[str], labels: Sequence[str]
) -> tuple[list[int], list[int]]:
    """Targets and predictions as class numbers, -1 for what is not a label."""
    numbers = {word: number for number, word in enumerate(labels)}
    return [numbers.get(e.target, -1) for e in examples], [numbers.get(p, -1) for p in predictions]


def _mean_f1(classes: Sequence[str], targets: Sequence[str], predictions: Sequence[str]) -> float:
    hits = Counter(t for t, p in zip(targets, predictions, strict=True) if t == p)
    gold, predicted = Counter(targets), Counter(predictions)
    return 100.0 * sum(2 * hits[c] / max(1, gold[c] + predicted[c]) for c in classes) / len(classes)


def is_number(text: str) -> bool:
    """Whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def in_order(labels: Iterable[str]) -> list[str]:
    """Labels as a table shows them: by number if all are numbers."""
    labels = list(labels)
    return sorted(labels, key=float) if all(map(is_number, labels)) else labels


def _numbers(
    examples: Sequence[Example], predictions: Sequence[str]
) -> tuple[list[float], list[float]]:
    """Targets and predictions as numbers, -1 for what is not a finite number."""
    texts = [e.target for e in examples], predictions
    first, second = ([float(t) if is_number(t) else -1.0 for t in side] for side in texts)
    return first, second


def _correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Pearson's correlation, NaN if one side is constant."""
    x_mean, y_mean = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    xs, ys = [x - x_mean for x in xs], [y - y_mean for y in ys]
    scale = math.hypot(*xs) * math.hypot(*ys)
    covariance = math.fsum(x * y for x, y in zip(xs, ys, strict=True))
    return 100.0 * max(-1.0, min(1.0, covariance / scale)) if scale else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share their mean rank."""
    ranks: dict[float, float] = {}
    smaller = 0
    for value, count in sorted(Counter(values).items()):
        ranks[value] = smaller + (count + 1) / 2
        smaller += count
    return [ranks[value] for value in values]


def normalise(text: str) -> str:
    """SQuAD's normalisation: lower case, no ASCII punctuation, no articles, single spaces."""
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _token_f1(answer: str, predicted: str) -> float:
    hits = (Counter(answer.split()) & Counter(predicted.split())).total()
    if not hits:
        return 0.0
    precision, recall = hits / len(predicted.split()), hits / len(answer.split())
    return 2 * precision * recall / (precision + recall)


def _best_answers(
    measure: Callable[[str, str], float], examples: Sequence[Example], predictions: Sequence[str]
) -> float:
    """The mean over questions of the best value over the answers of a question.

    A question that occurs several times (ReCoRD) counts once.
    """
    best: dict[object, float] = {}
    for number, (example, prediction) in enumerate(zip(examples, predictions, strict=True)):
        group = example.metadata.get("group")
        question = number if group is None else repr(group)
        if question not in best:
            predicted = normalise(prediction)
            answers = example.metadata.get("answers") or [example.target]
            best[question] = max(measure(normalise(answer), predicted) for answer in answers)
    return 100.0 * sum(best.values()) / len(best)
