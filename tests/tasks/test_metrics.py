"""Metrics on small cases worked by hand."""

import pytest

from softprompts.tasks import Example, Form, Task
from softprompts.tasks.metrics import accuracy, macro_f1


def asked(targets: str) -> list[Example]:
    return [Example("", target) for target in targets]


def test_accuracy_counts_a_non_label_as_wrong() -> None:
    assert accuracy(asked("abaa"), ["a", "b", "", "zebra"], ["a", "b"]) == 50.0


def test_macro_f1_by_hand() -> None:
    # a: 2 hits of 3 asked, 3 told -> 4/6; b: 1 of 2 asked, 2 told -> 2/4
    assert macro_f1(asked("aaabb"), list("aabba"), []) == pytest.approx(100 * (4 / 6 + 2 / 4) / 2)
    assert macro_f1(asked("ab"), ["x", "y"], []) == 0.0


def test_the_majority_is_the_training_sets() -> None:
    train, held = ([Example("", label) for label in labels] for labels in ("aab", "bbba"))
    assert Task("t", Form("{text}", "y"), train, held, ("accuracy",)).majority() == {
        "accuracy": 25.0
    }
