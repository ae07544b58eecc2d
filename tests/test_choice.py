"""Settings compared in words."""

from typing import Any

import pytest

from softprompts.choice import difference

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
def test_the_first_difference_is_told_and_what_is_new_was_as_usual(old: Any, new: Any, told: str | None) -> None:
    assert difference(old, new, USUAL) == told
