"""Settings compared, and refused, in words."""

from typing import Any

import pytest

from softprompts.config.choice import coerce, difference
from softprompts.errors import UserError

USUAL: dict[str, Any] = {"tuning": {"lr": 0.3, "sentinel": False}, "seed": 0}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ({"seed": 1, "tuning": {"lr": 0.3}}, {"seed": 1, "tuning": {"lr": 0.3, "sentinel": False}}, None),
        ({"tuning": {"lr": 0.3}}, {"tuning": {"lr": 0.3, "sentinel": True}}, "tuning.sentinel False where it says True now"),
        ({"seed": 1, "tuning": {"lr": 0.1}}, {"seed": 1, "tuning": {"lr": 0.3}}, "tuning.lr 0.1 where it says 0.3 now"),
        ({"seed": 1, "gone": 5}, {"seed": 1}, "gone 5 where it says None now"),
        (None, {"seed": 1}, "they are not told, or not by this version"),
    ],
)  # fmt: skip
def test_the_first_difference_is_told_and_what_is_new_was_as_usual(
    old: Any, new: Any, told: str | None
) -> None:
    assert difference(old, new, USUAL) == told


@pytest.mark.parametrize(
    ("value", "hint", "told"),
    [
        (
            "positive,negative",
            dict[str, str] | None,
            "x is 'positive,negative'; give VALUE=WORD pairs such as 0=negative,1=positive.",
        ),
        ("span", dict[str, float], "x is 'span'; give NAME=NUMBER pairs such as span=1,prefix=1."),
        ("ten", int, "x is 'ten'; give a whole number."),
        (2.5, int | None, "x is 2.5; give a whole number."),
        ("fast", float, "x is 'fast'; give a number."),
        ("maybe", bool, "x is 'maybe'; give yes or no."),
        (["a"], str, "x is ['a']; give a text."),
        (3, list[int], "x is 3; give a list, each part a whole number."),
    ],
)
def test_a_value_of_another_type_is_told_what_is_wanted(value: Any, hint: Any, told: str) -> None:
    with pytest.raises(UserError) as refused:
        coerce("x", value, hint)
    assert str(refused.value) == told
