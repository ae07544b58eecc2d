"""The sentinel is a setting of the task, and never part of the texts that metrics compare."""

from pathlib import Path

import pytest

from softprompts.backbone import Backbone
from softprompts.config import TaskConfig
from softprompts.errors import UserError
from softprompts.tasks import load_task, prepend_sentinel


def test_a_sentinel_does_not_change_labels_and_examples(toy_csv: Path) -> None:
    config = {"train": str(toy_csv), "text": "review", "label": "mood"}
    plain = load_task(TaskConfig(**config))
    marked = load_task(TaskConfig(**config, sentinel=True))
    assert (plain.form.sentinel, marked.form.sentinel) == (False, True)
    assert (marked.labels, marked.train, marked.validation) == (
        plain.labels,
        plain.train,
        plain.validation,
    )
    assert marked.score([e.target for e in marked.validation])["accuracy"] == 100.0
    assert marked.form.sentinel


def test_a_mixture_can_have_a_sentinel() -> None:
    mixed = "helpdesk/intent+helpdesk/urgency"
    assert load_task(TaskConfig(task=mixed, sentinel=True)).form.sentinel
    assert not load_task(TaskConfig(task=mixed)).form.sentinel


def test_the_sentinel_precedes_the_token_ids_of_an_answer(tiny: Backbone, bart: Backbone) -> None:
    answers = tiny.tokenise_targets(["positive", "not_equivalent"])
    first = tiny.tokenizer.convert_tokens_to_ids("<extra_id_0>")
    assert prepend_sentinel(answers, tiny.tokenizer, "t5", True) == [
        [first, *ids] for ids in answers
    ]
    assert prepend_sentinel(answers, tiny.tokenizer, "t5", False) == answers
    assert prepend_sentinel(answers, bart.tokenizer, "bart", False) == answers
    with pytest.raises(
        UserError, match="of bart has no token <extra_id_0> to begin an answer with"
    ):
        prepend_sentinel(answers, bart.tokenizer, "bart", True)
