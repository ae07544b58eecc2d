"""GLUE in T5's format, and the tasks that SPoT adds in the same format."""

import dataclasses
from collections.abc import Iterator
from ctypes import c_float

from ..errors import UserError
from .sources import Row
from .task_definition import (
    PREDICT,
    UNLABELLED,
    Definition,
    Example,
    classification,
    is_labelled,
    text_of,
)

HUB = "nyu-mll/glue"
NLI = ("entailment", "neutral", "contradiction")
TWO_WAY = ("entailment", "not_entailment")
SCORES = tuple(f"{fifth / 5:.1f}" for fifth in range(26))
"""0.0, 0.2, ... 5.0"""


def similarity(row: Row, split: str) -> Iterator[Example]:
    """A score from 0 to 5 as a word, rounded to a fifth in float32, half to even, as in T5."""
    value = row.values.get("label")
    if value is None or value in (-1, "-1", ""):
        target = UNLABELLED
    else:
        try:
            target = SCORES[_round_fifths(float(value))]
        except (TypeError, ValueError, IndexError):
            raise UserError(
                f"{row.location}: the score {value!r} is not a number from 0 to 5."
            ) from None
    yield Example(
        f"sentence1: {text_of(row, 'sentence1')} sentence2: {text_of(row, 'sentence2')}", target
    )


def _labelled_only(task: Definition) -> Definition:
    """Without the rows whose annotators did not agree, which SNLI labels -1."""

    def preprocess(row: Row, split: str) -> Iterator[Example]:
        for example in task.preprocess(row, split):
            if split == PREDICT or is_labelled(example):
                yield example

    return dataclasses.replace(task, preprocess=preprocess)


def _round_fifths(value: float) -> int:
    if not -0.1 <= value <= 5.1:
        raise ValueError
    return round(c_float(c_float(value).value * 5).value)


def _glue(
    name: str, keys: tuple[str, ...], labels: tuple[str, ...], *metrics: str, **splits: str
) -> Definition:
    return classification(
        f"glue/{name}",
        f"{HUB}:{name}",
        keys,
        labels,
        metrics or ("accuracy",),
        splits=splits,
        collapse=False,
    )


_PAIR = ("sentence1", "sentence2")
_MNLI = ("hypothesis", "premise")

DEFINITIONS = [
    _glue("cola", ("sentence",), ("unacceptable", "acceptable"), "matthews_corrcoef"),
    _glue("sst2", ("sentence",), ("negative", "positive")),
    _glue("mrpc", _PAIR, ("not_equivalent", "equivalent"), "f1", "accuracy"),
    Definition(
        "glue/stsb",
        f"{HUB}:stsb",
        similarity,
        ("pearson_corrcoef", "spearman_corrcoef"),
        SCORES,
        columns=_PAIR,
    ),
    _glue("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), "f1", "accuracy"),
    _glue("mnli", _MNLI, NLI, validation="validation_matched", test="test_matched"),
    classification(
        "glue/mnli_mismatched",
        f"{HUB}:mnli",
        _MNLI,
        NLI,
        word="mnli",
        collapse=False,
        splits={"validation": "validation_mismatched", "test": "test_mismatched"},
    ),
    _glue("qnli", ("question", "sentence"), TWO_WAY),
    _glue("rte", _PAIR, TWO_WAY),
    Definition(
        "spot_sources/cxc_sts",
        "google/crisscrossed-captions",
        similarity,
        ("pearson_corrcoef", "spearman_corrcoef"),
        SCORES,
        word="cxc",
        columns=_PAIR,
    ),
    classification(
        "nli/doc_nli",
        "saattrupdan/doc-nli",
        _MNLI,
        ("not_entailment", "entailment"),
        word="doc_nli",
    ),
    _labelled_only(classification("nli/snli", "stanfordnlp/snli", _MNLI, NLI)),
    *(
        classification(
            f"nli/anli_r{number}",
            "facebook/anli",
            ("hypothesis", "context"),
            NLI,
            aliases={"context": "premise"},
            splits={
                split: f"{hub_split}_r{number}"
                for split, hub_split in (
                    ("train", "train"),
                    ("validation", "dev"),
                    ("test", "test"),
                )
            },
        )
        for number in (1, 2, 3)
    ),
    classification(
        "similarity/paws",
        "google-research-datasets/paws:labeled_final",
        _PAIR,
        ("not_paraphrase", "paraphrase"),
    ),
]
