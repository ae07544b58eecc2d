"""The order of rows: every row once an epoch, similar lengths together, and a pure function of seed
and position."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from softprompts.tuning.batches import Batches, by_length

ORDER = [[27, 44, 41, 5], [35, 55, 9, 42], [12, 22, 9, 3], [42, 29, 26, 36]]


def make_batches(lengths: Sequence[int], size: int, seed: int) -> Batches:
    return Batches(lambda rows: [lengths[row] for row in rows], size, seed, [len(lengths)])


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=200), st.integers(1, 40), st.integers(0, 9)
)
def test_every_row_once_an_epoch(lengths: list[int], size: int, seed: int) -> None:
    batches = make_batches(lengths, size, seed)
    for epoch in (0, 1):
        seen = [
            row
            for place in range(batches.per_epoch)
            for row in batches[epoch * batches.per_epoch + place]
        ]
        assert sorted(seen) == list(range(len(lengths)))
    later = make_batches(lengths, size, seed)
    assert later[batches.per_epoch + 0] == batches[batches.per_epoch], (
        "a fresh one can start anywhere"
    )


def test_seeds_and_epochs_differ_and_padding_is_small() -> None:
    lengths = [(7 * i) % 100 + 1 for i in range(800)]
    batches = make_batches(lengths, 16, 0)
    assert batches[0] != make_batches(lengths, 16, 1)[0] != batches[batches.per_epoch]
    padded = sum(
        len(rows) * max(lengths[row] for row in rows) for rows in (batches[i] for i in range(50))
    )
    assert padded < 1.1 * sum(lengths)


def test_rows_of_a_small_set_meet_other_rows_each_epoch() -> None:
    batches = make_batches(list(range(1, 251)), 16, 0)

    def pairs(epoch: int) -> set[tuple[int, int]]:
        rows = [sorted(batches[epoch * batches.per_epoch + i]) for i in range(batches.per_epoch)]
        return {(a, b) for batch in rows for a in batch for b in batch if a < b}

    again = len(pairs(0) & pairs(1)) / len(pairs(0))
    assert again < 0.3, "a single chunk sorted by length gives 0.9"


def test_only_the_lengths_of_a_batch_s_chunk_are_asked_for() -> None:
    asked: list[int] = []

    def lengths(rows: Sequence[int]) -> list[int]:
        asked.extend(rows)
        return [row % 90 for row in rows]

    batches = Batches(lengths, 8, 0, [100_000])
    first = [batches[index] for index in range(5)]
    assert len(asked) <= 5 * 50 * 8
    assert first == [batches[index] for index in range(5)]
    assert len(asked) == len(set(asked)), "each once"
    assert batches.rows_before(5) == sorted(row for batch in first for row in batch)
    assert len(batches.rows_before(batches.per_epoch)) == 100_000


def test_the_order_is_that_of_earlier_versions() -> None:
    """A resumed run depends on it."""
    batches = make_batches([(7 * i) % 23 for i in range(60)], 4, 3)
    assert [batches[index] for index in (0, 7, 15, 29)] == ORDER


def test_evaluation_takes_the_longest_first() -> None:
    assert by_length([3, 9, 1, 9], 2) == [[1, 3], [0, 2]]
