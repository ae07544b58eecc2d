"""Messages name settings by their paths, and whoever speaks spells them."""

import pytest

from softprompts.errors import (
    UserError,
    as_argument,
    as_flag,
    as_key,
    counted,
    setting,
    speaking,
    spelled,
)

MESSAGE = f"lower {setting('tuning.lr')}, or set {setting('tuning.scoring', 'labels')}"


@pytest.mark.parametrize(
    ("value", "argument"),
    [
        ("labels", "scoring='labels'"),
        ("400", "scoring=400"),
        ("0.03", "scoring=0.03"),
        ("1e-05", "scoring=1e-05"),
        ("-1", "scoring=-1"),
        ("3d", "scoring='3d'"),
        ("google/flan-t5-base", "scoring='google/flan-t5-base'"),
    ],
)
def test_numbers_are_not_quoted(value: str, argument: str) -> None:
    assert as_argument("tuning.scoring", value) == argument
    assert as_flag("tuning.scoring", value) == f"--scoring {value}"
    assert as_key("tuning.scoring", value) == f"scoring: {value}"


def test_sections_whose_settings_are_unique_are_left_out() -> None:
    for path in ("lr", "tuning.lr", "config.tuning.lr", "run.lr", "target.tuning.lr"):
        assert as_flag(path) == "--lr"
    assert as_flag("task.task") == "--task"
    assert as_flag("target.prompt.start.low") == "--prompt.start.low"


def test_whoever_speaks_spells_the_settings() -> None:
    assert spelled(MESSAGE) == "lower lr, or set scoring='labels'"
    with speaking(as_flag):
        assert str(UserError(MESSAGE)) == "lower --lr, or set --scoring labels"
        assert spelled(MESSAGE, as_key) == "lower lr, or set scoring: labels"
    assert str(UserError(MESSAGE)) == "lower lr, or set scoring='labels'"


def test_one_is_not_several() -> None:
    shown = [counted(number, "row") for number in (0, 1, 2000)]
    assert shown == ["0 rows", "1 row", "2,000 rows"]
