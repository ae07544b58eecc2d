"""How many tokens passes get, on machines with different fixed times and times for each token."""

import random

import pytest

from softprompts.serving.pace import FEW_TOKENS, FIRST_TOKENS, Pace

LATENCY, MOST = 0.08, 16384


def paced(fixed: float, each: float, waiting: int, passes: int = 60) -> Pace:
    """After passes with up to `waiting` tokens, whose times are noisy."""
    rng, pace = random.Random(0), Pace(LATENCY, MOST)
    pace.add(300, 2.0)  # the first is slow everywhere
    for _ in range(passes):
        tokens = int(min(pace.budget, rng.uniform(0.7, 1.3) * waiting))
        seconds = (fixed + each * tokens) * rng.uniform(0.9, 1.2)
        pace.add(tokens, seconds)
        pace.choose(tokens, seconds)
    return pace


def test_the_first_pass_is_cautious_and_does_not_count() -> None:
    pace = Pace(LATENCY, MOST)
    assert pace.budget == FIRST_TOKENS
    pace.add(300, 100.0)
    pace.choose(300, 100.0)
    assert pace.budget == FIRST_TOKENS
    assert Pace(LATENCY, 100).budget == 100


@pytest.mark.parametrize("fixed", [0.0, 0.01, 0.03])
def test_passes_take_about_as_long_as_allowed(fixed: float) -> None:
    each = 5e-5
    pace = paced(fixed, each, waiting=10 * MOST)
    assert fixed + each * pace.budget == pytest.approx(LATENCY, rel=0.3)


@pytest.mark.parametrize("fixed", [0.04, 0.09, 0.3])
def test_where_tokens_cost_little_passes_have_many(fixed: float) -> None:
    """A smaller pass would take as long: with a fixed time beyond the target, it would never be
    short enough, and the queue would grow."""
    assert paced(fixed, 5e-7, waiting=10 * MOST).budget > MOST / 2


def test_a_slow_model_still_gets_a_few_tokens() -> None:
    assert paced(0.01, 1e-2, waiting=10 * MOST).budget == FEW_TOKENS


def test_passes_do_not_become_large_without_having_been_seen_to_be_fast() -> None:
    pace, seen = Pace(LATENCY, MOST), 0
    for tokens in (100, 100, 150, 200, 120):
        pace.add(tokens, 0.001)
        pace.choose(tokens, 0.001)
        seen = max(seen, tokens)
        assert pace.budget <= max(FIRST_TOKENS, 2 * seen)


def test_a_model_that_becomes_slower_gets_less() -> None:
    pace = paced(0.001, 1e-6, waiting=10 * MOST)
    assert pace.budget == MOST
    for _ in range(30):
        tokens, seconds = int(pace.budget), 0.001 + 1e-4 * pace.budget
        pace.add(tokens, seconds)
        pace.choose(tokens, seconds)
    assert pace.budget < 1000


def test_one_slow_pass_is_soon_forgotten() -> None:
    """Whatever else the machine did then, passes that are fast enough become larger at once."""
    pace = paced(0.004, 4e-6, waiting=700)
    pace.add(1270, 0.5)
    pace.choose(1270, 0.5)
    for _ in range(4):
        tokens = int(pace.budget)
        pace.add(tokens, 0.004 + 4e-6 * tokens)
        pace.choose(tokens, 0.004 + 4e-6 * tokens)
    assert pace.budget >= 16 * FEW_TOKENS
