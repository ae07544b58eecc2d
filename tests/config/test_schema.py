"""Settings that differ or are wrong are reported in words."""

from typing import Any

import pytest

from softprompts.config import coerce, difference
from softprompts.config.schema import schema_of_hint
from softprompts.errors import UserError, spelled

DEFAULTS: dict[str, Any] = {"tuning": {"lr": 0.3, "sentinel": False}, "seed": 0}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            {"seed": 1, "tuning": {"lr": 0.3}},
            {"seed": 1, "tuning": {"lr": 0.3, "sentinel": False}},
            None,
        ),
        (
            {"tuning": {"lr": 0.3}},
            {"tuning": {"lr": 0.3, "sentinel": True}},
            "sentinel was False and is now True",
        ),
        (
            {"seed": 1, "tuning": {"lr": 0.1}},
            {"seed": 1, "tuning": {"lr": 0.3}},
            "lr was 0.1 and is now 0.3",
        ),
        ({"seed": 1, "gone": 5}, {"seed": 1}, "gone was 5 and is now not set"),
        (None, {"seed": 1}, "its settings are unreadable"),
    ],
)
def test_the_first_difference_is_named_and_new_settings_had_their_defaults(
    old: Any, new: Any, message: str | None
) -> None:
    change = difference(old, new, DEFAULTS)
    assert (change and spelled(change)) == message


@pytest.mark.parametrize(
    ("value", "hint", "message"),
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
def test_a_value_of_the_wrong_type_says_what_to_give(value: Any, hint: Any, message: str) -> None:
    with pytest.raises(UserError) as refused:
        coerce("x", value, schema_of_hint(hint))
    assert str(refused.value) == message
