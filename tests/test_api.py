"""Three lines of Python."""

from pathlib import Path

import pytest

import softprompts


def test_three_lines_tune_save_and_predict(tmp_path: Path) -> None:
    tuned = softprompts.tune("helpdesk/register", steps=2, batch_size=4, shots=4, max_length=40, prompt={"length": 3}, device="cpu")
    tuned.save(tmp_path / "register")
    answers = softprompts.load(tmp_path / "register", device="cpu").predict(["hey there", "Dear Sir or Madam,"], scoring="labels")
    assert answers == tuned.predict(["hey there", "Dear Sir or Madam,"], scoring="labels")
    assert set(answers) <= {"formal", "casual"}


def test_rows_with_several_columns(tmp_path: Path) -> None:
    path = tmp_path / "nli.csv"
    path.write_text("premise,hypothesis,label\n" + "".join(f"p{i},h{i},{'yes' if i % 2 else 'no'}\n" for i in range(20)))
    tuned = softprompts.tune(
        train=str(path), template="premise: {premise} hypothesis: {hypothesis}", label="label", steps=1, batch_size=4, prompt={"length": 3}
    )
    assert tuned.inputs([{"premise": "a", "hypothesis": "b"}]) == ["premise: a hypothesis: b"]
    with pytest.raises(softprompts.UserError, match="not one text"):
        tuned.predict(["a"])


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError):
        _ = softprompts.nonsense
