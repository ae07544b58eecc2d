"""The sentinel is a setting of the task: told in its form, never part of the words that are judged."""

from pathlib import Path

import pytest

from softprompts.backbone import Backbone
from softprompts.errors import UserError
from softprompts.tasks import TaskConfig, load_task
from softprompts.tasks.sentinel import opened


def test_a_task_says_that_answers_have_a_sentinel_and_keeps_its_words(toy_csv: Path) -> None:
    config = {"train": str(toy_csv), "text": "review", "label": "mood"}
    plain, marked = load_task(TaskConfig(**config)), load_task(TaskConfig(**config, sentinel=True))
    assert (plain.form.sentinel, marked.form.sentinel) == (False, True)
    assert (marked.labels, marked.train, marked.validation) == (
        plain.labels,
        plain.train,
        plain.validation,
    )
    assert marked.score([e.target for e in marked.validation])["accuracy"] == 100.0
    assert marked.card()["form"]["sentinel"] is True


def test_a_mixture_says_so_too() -> None:
    mixed = "helpdesk/intent+helpdesk/urgency"
    assert load_task(TaskConfig(task=mixed, sentinel=True)).form.sentinel
    assert not load_task(TaskConfig(task=mixed)).form.sentinel


def test_the_sentinel_stands_before_the_ids_that_an_answer_has_anyway(
    tiny: Backbone, bart: Backbone
) -> None:
    answers = tiny.tokenise_targets(["positive", "not_equivalent"])
    first = tiny.tokenizer.convert_tokens_to_ids("<extra_id_0>")
    assert opened(answers, tiny.tokenizer, "t5", True) == [[first, *ids] for ids in answers]
    assert opened(answers, tiny.tokenizer, "t5", False) == answers
    assert opened(answers, bart.tokenizer, "bart", False) == answers
    with pytest.raises(UserError, match="bart has no <extra_id_0> to begin an answer with"):
        opened(answers, bart.tokenizer, "bart", True)
