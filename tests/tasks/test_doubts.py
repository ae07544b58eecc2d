"""Warnings about rows whose scores mean less than they seem to."""

from pathlib import Path

import pytest

from softprompts.config import TaskConfig
from softprompts.tasks import STARTERS, load_task, repeated_rows


def write_rows(path: Path, texts: list[str]) -> str:
    path.write_text("text,label\n" + "".join(f"{t},{i % 2}\n" for i, t in enumerate(texts)))
    return str(path)


def test_validation_rows_that_are_training_rows_get_a_warning(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(40)]
    train = write_rows(tmp_path / "train.csv", texts)
    other = write_rows(tmp_path / "other.csv", [f"other {text}" for text in texts])
    few = write_rows(tmp_path / "few.csv", [*texts[:1], *(f"other {text}" for text in texts)])
    for validation, warned in ((train, True), (other, False), (few, False), (None, False)):
        task = load_task(TaskConfig(train=train, validation=validation, text="text", label="label"))
        warning = repeated_rows(task)
        assert (warning is not None) == warned, validation
        assert warning is None or "40 of 40 validation rows are also training rows" in warning


def test_duplicates_on_both_sides_of_the_automatic_split_get_a_warning(tmp_path: Path) -> None:
    train = write_rows(tmp_path / "train.csv", [f"text {number // 4}" for number in range(40)])
    warning = repeated_rows(load_task(TaskConfig(train=train, text="text", label="label")))
    assert "4 of 4 validation rows are also training rows" in str(warning)


@pytest.mark.parametrize("name", STARTERS)
def test_the_starter_data_gets_no_warning(name: str) -> None:
    assert repeated_rows(load_task(TaskConfig(task=name))) is None
