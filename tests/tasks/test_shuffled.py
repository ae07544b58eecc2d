"""Shuffled labels: the control that must fall to chance."""

from collections import Counter

import pytest

from softprompts.tasks import TaskConfig, load_task


@pytest.mark.parametrize("name", ["helpdesk/intent", "helpdesk/intent+helpdesk/urgency"])
def test_training_rows_get_each_others_answers_and_nothing_else_changes(name: str) -> None:
    told, shuffled = (load_task(TaskConfig(task=name, shuffle_labels=on)) for on in (False, True))
    assert Counter(e.target for e in shuffled.train) == Counter(e.target for e in told.train)
    assert [e.input for e in shuffled.train] == [e.input for e in told.train]
    assert shuffled.validation == told.validation
    kept = sum(
        one.target == other.target for one, other in zip(told.train, shuffled.train, strict=True)
    ) / len(told.train)
    by_chance = sum(
        (count / len(told.train)) ** 2 for count in Counter(e.target for e in told.train).values()
    )
    assert kept < by_chance + 0.15
    assert shuffled.digests != told.digests
    assert shuffled.train == load_task(TaskConfig(task=name, shuffle_labels=True)).train
    if "+" not in name:
        assert (
            shuffled.train
            != load_task(TaskConfig(task=name, shuffle_labels=True, split_seed=1)).train
        )
