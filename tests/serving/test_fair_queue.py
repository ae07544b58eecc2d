"""Fair shares, priorities and budgets of a queue."""

from hypothesis import given
from hypothesis import strategies as st

from softprompts.serving.fair_queue import QUANTUM, FairQueue


def test_tenants_take_turns_however_much_one_asks() -> None:
    queue = FairQueue[str]()
    for number in range(100):
        queue.push(f"busy {number}", "busy", QUANTUM)
    for number in range(3):
        queue.push(f"quiet {number}", "quiet", QUANTUM)
    taken = queue.take(6, 10**9)
    assert sorted(taken) == ["busy 0", "busy 1", "busy 2", "quiet 0", "quiet 1", "quiet 2"]
    assert len(queue) == 97


def test_a_share_is_counted_in_tokens() -> None:
    queue = FairQueue[str]()
    for _ in range(50):
        queue.push("long", "long texts", QUANTUM)
        queue.push("short", "short texts", QUANTUM // 8)
    taken = queue.take(27, 10**9)
    assert 20 <= taken.count("short") <= 26


def test_higher_priorities_go_first() -> None:
    queue = FairQueue[str]()
    queue.push("later", "a", 1)
    queue.push("first", "b", 1, priority=2)
    queue.push("next", "a", 1, priority=1)
    assert queue.take(9, 9) == ["first", "next", "later"]


def test_a_batch_keeps_its_budget_but_is_never_empty() -> None:
    queue = FairQueue[int]()
    for cost in (50, 30, 5000, 10):
        queue.push(cost, "a", cost)
    assert queue.take(9, 85) == [50, 30]
    assert queue.take(9, 85) == [5000], "alone, however long"
    assert queue.take(0, 85) == []
    assert queue.take(9, 85, lambda item: False) == []
    assert queue.take(9, 85) == [10]
    assert queue.take(9, 85) == []


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 2000), st.integers(-1, 1))),
    st.integers(1, 5),
    st.integers(1, 3000),
)
def test_everything_leaves_once_and_a_tenants_own_in_order(
    pushed: list[tuple[str, int, int]], most: int, budget: int
) -> None:
    queue = FairQueue[int]()
    for number, (tenant, cost, priority) in enumerate(pushed):
        queue.push(number, tenant, cost, priority)
    queue.remove(lambda number: number % 5 == 4)
    taken: list[int] = []
    while len(queue):
        batch = queue.take(most, budget)
        assert 1 <= len(batch) <= most
        assert len(batch) == 1 or sum(pushed[number][1] for number in batch) <= budget
        taken += batch
    assert sorted(taken) == [n for n in range(len(pushed)) if n % 5 != 4]
    for tenant in "abc":
        for priority in (-1, 0, 1):
            own = [n for n in taken if pushed[n][0] == tenant and pushed[n][2] == priority]
            assert own == sorted(own)
