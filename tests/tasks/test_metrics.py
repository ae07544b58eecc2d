"""Metrics on small cases computed by hand."""

import math

import pytest

from softprompts.errors import UserError
from softprompts.tasks import Example, Task, TextFormat
from softprompts.tasks.metrics import (
    accuracy,
    macro_f1,
    metric,
    pearson_corrcoef,
    spearman_corrcoef,
)
from softprompts.tasks.statistics import interval, row_scores, scored_rows


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


def test_a_sum_of_names_is_the_mean_of_the_metrics() -> None:
    rows, answers, labels = examples("aaabb"), list("aabba"), ["a", "b"]
    both = [metric(name)(rows, answers, labels) for name in ("accuracy", "macro_f1")]
    assert metric("accuracy+macro_f1")(rows, answers, labels) == pytest.approx(sum(both) / 2)
    with pytest.raises(UserError, match="no metric 'macro_f2'; did you mean macro_f1"):
        metric("accuracy+macro_f2")
    low, high = interval("accuracy+macro_f1", rows * 20, answers * 20, labels) or (0, 0)
    assert low < sum(both) / 2 < high


def test_each_row_score_has_a_row_that_decides_it() -> None:
    """A question counts once (ReCoRD), and no row decides about several (MultiRC's exact match)."""
    metadata = [{"group": 1, "answers": ["x", "y"]}, {"group": 1, "answers": ["x", "y"]}, {}]
    rows = [Example("", target, m) for target, m in zip("xyz", metadata, strict=True)]
    for name in ("f1", "em", "f1+em"):
        assert row_scores(name, rows, ["y", "no", "no"], []) == [100.0, 0.0]
        assert scored_rows(name, rows, []) == [0, 2]
    assert scored_rows("accuracy", rows, []) == [0, 1, 2]
    questions = [Example("", "x", {"question": number}) for number in (1, 1, 2)]
    assert scored_rows("exact_match", questions, ["x"]) is None


def test_the_majority_label_is_that_of_the_training_set() -> None:
    train, validation = ([Example("", label) for label in labels] for labels in ("aab", "bbba"))
    assert Task("t", TextFormat("{text}", "y"), train, validation, ("accuracy",)).majority() == {
        "accuracy": 25.0
    }


def test_correlations_ignore_what_is_not_a_number() -> None:
    gold = [Example("", text) for text in ("1", "2", "3", "4")]
    for correlation in (pearson_corrcoef, spearman_corrcoef):
        assert correlation(gold, ["1", "2", "3", "4"], []) == pytest.approx(100.0)
        assert correlation(gold, ["4", "3", "2", "1"], []) == pytest.approx(-100.0)
        assert math.isnan(correlation(gold, ["3.8"] * 4, [])), "a constant has no correlation"
        for text in ("nan", "inf", "-inf", "many"):
            same = correlation(gold, ["-1", "2", "3", "4"], [])
            assert correlation(gold, [text, "2", "3", "4"], []) == same
