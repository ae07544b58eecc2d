"""Metrics on small cases computed by hand."""

import math

import pytest

from softprompts.tasks import Example, Task, TextFormat
from softprompts.tasks.metrics import accuracy, macro_f1, pearson_corrcoef, spearman_corrcoef


def examples(targets: str) -> list[Example]:
    return [Example("", target) for target in targets]


def test_accuracy_counts_a_non_label_as_wrong() -> None:
    assert accuracy(examples("abaa"), ["a", "b", "", "zebra"], ["a", "b"]) == 50.0


def test_macro_f1_by_hand() -> None:
    # a: 2 hits, 3 gold, 3 predicted -> 4/6; b: 1 hit, 2 gold, 2 predicted -> 2/4
    assert macro_f1(examples("aaabb"), list("aabba"), []) == pytest.approx(
        100 * (4 / 6 + 2 / 4) / 2
    )
    assert macro_f1(examples("ab"), ["x", "y"], []) == 0.0


def test_the_majority_label_is_that_of_the_training_set() -> None:
    train, validation = ([Example("", label) for label in labels] for labels in ("aab", "bbba"))
    assert Task("t", TextFormat("{text}", "y"), train, validation, ("accuracy",)).majority() == {
        "accuracy": 25.0
    }


def test_correlations_ignore_what_is_not_a_number() -> None:
    gold = [Example("", text) for text in ("1", "2", "3", "4")]
    for metric in (pearson_corrcoef, spearman_corrcoef):
        assert metric(gold, ["1", "2", "3", "4"], []) == pytest.approx(100.0)
        assert metric(gold, ["4", "3", "2", "1"], []) == pytest.approx(-100.0)
        assert math.isnan(metric(gold, ["3.8"] * 4, [])), "a constant has no correlation"
        for text in ("nan", "inf", "-inf", "many"):
            same = metric(gold, ["-1", "2", "3", "4"], [])
            assert metric(gold, [text, "2", "3", "4"], []) == same
