"""Settings that differ or are wrong are reported in words."""

import ast
import threading
import time
from typing import Any

import pytest

from softprompts.config import RunConfig, TaskConfig, coerce, difference, schema
from softprompts.config.schema import schema_of, schema_of_hint
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


def test_one_thread_at_a_time_describes_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads of a server that load its first prompts would fail in `ast.parse`."""
    parse, inside, most = ast.parse, list[int](), 0

    def slow(*arguments: Any) -> ast.AST:
        nonlocal most
        inside.append(1)
        most = max(most, len(inside))
        time.sleep(0.01)
        inside.pop()
        return parse(*arguments)

    monkeypatch.setattr(schema.ast, "parse", slow)
    monkeypatch.setattr(schema, "_schemas", {})
    threads = [
        threading.Thread(target=schema_of, args=(kind,)) for kind in (RunConfig, TaskConfig) * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
