"""Three lines of Python."""

from pathlib import Path
from typing import Any

import pytest

import softprompts
from softprompts.config import expand_lists
from softprompts.tasks import register_data
from softprompts.tuning import Watcher
from softprompts.tuning.tune import tune_cohort

SHORT: dict[str, Any] = {
    "steps": 2,
    "batch_size": 4,
    "shots": 4,
    "cap_validation": 8,
    "max_length": 40,
    "device": "cpu",
}


def test_three_lines_tune_save_and_predict(tmp_path: Path) -> None:
    tuned = softprompts.tune(
        "helpdesk/register",
        steps=2,
        batch_size=4,
        shots=4,
        max_length=40,
        prompt={"length": 3},
        device="cpu",
    )
    tuned.save(tmp_path / "register")
    answers = softprompts.load(tmp_path / "register", device="cpu").predict(
        ["hey there", "Dear Sir or Madam,"], scoring="labels"
    )
    assert answers == tuned.predict(["hey there", "Dear Sir or Madam,"], scoring="labels")
    assert set(answers) <= {"formal", "casual"}


def test_lists_tune_a_list_of_prompts_in_order(tmp_path: Path) -> None:
    tuned = softprompts.tune(
        "helpdesk/register", seed=[1, 0], prompt={"length": [3, 4]}, output=tmp_path, **SHORT
    )
    assert [(t.card.config["prompt"]["length"], t.card.seed) for t in tuned] == [
        (3, 1),
        (3, 0),
        (4, 1),
        (4, 0),
    ]
    assert [t.folder.name for t in tuned] == [
        f"length={length}_seed={seed}" for length in (3, 4) for seed in (1, 0)
    ]
    assert tuned[2].prompt.table.shape[1] == 4
    assert (tmp_path / "cohort.csv").read_text().count("\n") == 1 + 4 + 2 * 2
    assert all(t.backbone is tuned[0].backbone for t in tuned), "one frozen model"


def test_overwrite_starts_a_run_or_a_cohort_again(tmp_path: Path) -> None:
    settings = {**SHORT, "output": tmp_path / "run"}
    softprompts.tune("helpdesk/register", prompt={"length": 3}, **settings)
    with pytest.raises(softprompts.UserError, match="start the run again with overwrite"):
        softprompts.tune("helpdesk/register", prompt={"length": 4}, **settings)
    tuned = softprompts.tune("helpdesk/register", prompt={"length": 4}, overwrite=True, **settings)
    assert tuned.prompt.table.shape[1] == 4
    settings["output"] = tmp_path / "cohort"
    softprompts.tune("helpdesk/register", lr=0.1, seed=[0], **settings)
    (tuned,) = softprompts.tune("helpdesk/register", lr=0.2, seed=[0], overwrite=True, **settings)
    assert tuned.card.config["tuning"]["lr"] == 0.2


class Messages(Watcher):
    def __init__(self) -> None:
        self.messages = list[str]()

    def on_message(self, message: str) -> None:
        self.messages.append(message)


@pytest.mark.parametrize(
    ("template", "unknown"), [("{text}", True), (f"{'a good and a long text ' * 5}{{text}}", False)]
)
def test_texts_that_the_tokenizer_cannot_read_are_warned_of_once(
    template: str, unknown: bool
) -> None:
    texts = [f"这个产品很{'好' if i % 2 else '差'}" for i in range(20)]
    task = register_data({"train": (texts, ["no", "yes"] * 10), "template": template})
    settings = {"steps": 1, "batch_size": 4, "max_length": 40}
    members = expand_lists(
        {"task": {**task, "label": "label"}, "tuning": settings, "seed": [0, 1], "device": "cpu"}
    )
    watcher = Messages()
    results = tune_cohort(members, None, watcher=watcher)
    warnings = [message for message in watcher.messages if "does not know" in message]
    assert warnings == unknown * [
        "warning: t5-tiny does not know 36% of the tokens in the training texts, so it cannot "
        "tell such texts apart; use a multilingual model (model='google/mt5-small')"
    ]
    for tuned in results:
        assert isinstance(tuned, softprompts.Tuned)
        assert tuned.advice is not None
        assert ("multilingual" in tuned.advice) == unknown
        assert ("larger" in tuned.advice) != unknown, "it would have the same tokenizer"


def test_rows_with_several_columns(tmp_path: Path) -> None:
    path = tmp_path / "nli.csv"
    path.write_text(
        "premise,hypothesis,label\n"
        + "".join(f"p{i},h{i},{'yes' if i % 2 else 'no'}\n" for i in range(20))
    )
    tuned = softprompts.tune(
        train=str(path),
        template="premise: {premise} hypothesis: {hypothesis}",
        label="label",
        steps=1,
        batch_size=4,
        prompt={"length": 3},
    )
    assert tuned.inputs([{"premise": "a", "hypothesis": "b"}]) == ["premise: a hypothesis: b"]
    with pytest.raises(softprompts.UserError, match="not one text"):
        tuned.predict(["a"])


def test_a_question_is_a_text_or_a_mapping(tmp_path: Path) -> None:
    tuned = softprompts.tune(
        "helpdesk/register",
        steps=1,
        batch_size=4,
        shots=4,
        cap_validation=4,
        max_length=40,
        device="cpu",
    )
    assert tuned.inputs("hey") == tuned.inputs({"text": "hey"}) == ["hey"]
    for questions, told in (
        ([3], "Question 1 is 3"),
        (["hey", None], "Question 2 is None"),
        (3, "Question 1 is 3"),
    ):
        with pytest.raises(
            softprompts.UserError, match=f"{told}; a question is a text, or a mapping of columns"
        ):
            tuned.predict(questions)


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError):
        _ = softprompts.nonsense
