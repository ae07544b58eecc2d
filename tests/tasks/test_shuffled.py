"""Shuffled labels: the control experiment that must fall to chance."""

from collections import Counter

import pytest

from softprompts.config import TaskConfig
from softprompts.tasks import load_task


@pytest.mark.parametrize("name", ["helpdesk/intent", "helpdesk/intent+helpdesk/urgency"])
def test_only_the_training_labels_are_shuffled(name: str) -> None:
    plain, shuffled = (load_task(TaskConfig(task=name, shuffle_labels=on)) for on in (False, True))
    assert Counter(e.target for e in shuffled.train) == Counter(e.target for e in plain.train)
    assert [e.input for e in shuffled.train] == [e.input for e in plain.train]
    assert shuffled.validation == plain.validation
    unchanged = sum(
        one.target == other.target for one, other in zip(plain.train, shuffled.train, strict=True)
    ) / len(plain.train)
    by_chance = sum(
        (count / len(plain.train)) ** 2 for count in Counter(e.target for e in plain.train).values()
    )
    assert unchanged < by_chance + 0.15
    assert shuffled.digests != plain.digests
    assert shuffled.train == load_task(TaskConfig(task=name, shuffle_labels=True)).train
    if "+" not in name:
        assert (
            shuffled.train
            != load_task(TaskConfig(task=name, shuffle_labels=True, split_seed=1)).train
        )
