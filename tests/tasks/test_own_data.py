"""A user's own data: JSON arrays, nested fields, encodings, label words with commas, free text."""

import dataclasses
import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import softprompts
from softprompts.cli import main
from softprompts.config import TaskConfig
from softprompts.errors import UserError
from softprompts.tasks import Row, TextFormat, load_task, read_rows

REVIEWS = [
    {"review": {"body": f"text {i}", "tags": ["a", "b"]}, "stars": {"value": i % 2}}
    for i in range(20)
]


def test_a_json_array_and_nested_fields_by_path(tmp_path: Path) -> None:
    path = tmp_path / "reviews.json"
    path.write_text(json.dumps(REVIEWS, indent=2))
    task = load_task(TaskConfig(train=str(path), text="review.body", label="stars.value"))
    assert task.labels == ["0", "1"]
    assert {"text 0", "text 1"} <= {e.input for e in [*task.train, *task.validation]}
    template = "{review.tags.1}: {review.body}"
    task = load_task(TaskConfig(train=str(path), template=template, label="stars.value"))
    assert task.train[0].input.startswith("b: text ")
    with pytest.raises(UserError, match=r"has no column 'review\.title'"):
        load_task(TaskConfig(train=str(path), text="review.title", label="stars.value"))


@pytest.mark.parametrize("metric", ["pearson_corrcoef", "accuracy+spearman_corrcoef"])
def test_a_correlation_is_for_numbers(metric: str, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,stars,mood\n" + "".join(f"t {i},{i % 2},m{i % 2}\n" for i in range(20)))
    task = TaskConfig(train=str(path), text="text", label="stars", metric=metric)
    assert load_task(task).metrics[0] == metric
    with pytest.raises(UserError, match=r"for labels that are numbers, but .* the label 'm0'"):
        load_task(dataclasses.replace(task, label="mood"))


def test_a_column_whose_name_has_a_dot_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "flat.csv"
    path.write_text("review.body,label\n" + "".join(f"text {i},{i % 2}\n" for i in range(20)))
    task = load_task(TaskConfig(train=str(path), text="review.body", label="label"))
    assert task.train[0].input.startswith("text")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"a": 1}, 2]', r"rows\.json:2 is not a JSON object; write an array of objects"),
        ('[{"a": 1}', r"rows\.json is not valid JSON"),
        ("[]", "has no rows"),
    ],
)
def test_a_bad_json_array_is_a_clear_error(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "rows.json").write_text(content)
    with pytest.raises(UserError, match=message):
        read_rows(str(tmp_path / "rows.json"))


def test_json_lines_in_a_json_file_still_work(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"a": 1}\n{"a": 2}\n')
    assert [row.values for row in read_rows(str(tmp_path / "rows.json"))] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "latin-1"])
def test_files_in_another_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "rows.csv"
    text = "text,label\n" + "".join(f"café {i},{i % 2}\n" for i in range(20))
    path.write_bytes(text.encode(encoding))
    settings: dict[str, Any] = {"train": str(path), "text": "text", "label": "label"}
    likely = "utf-16" if encoding == "utf-16" else "cp1252"
    with pytest.raises(UserError, match=rf"is not UTF-8 text .* encoding='{likely}'"):
        load_task(TaskConfig(**settings))
    task = load_task(TaskConfig(**settings, encoding=encoding))
    assert task.train[0].input.startswith("café")
    with pytest.raises(UserError, match="There is no encoding 'klingon'"):
        load_task(TaskConfig(**settings, encoding="klingon"))


@pytest.mark.parametrize(
    "labels",
    ['"1=yes, really",0=no', '0=no, "1=yes, really"', '{"1": "yes, really", "0": "no"}'],
)
def test_label_words_with_commas(labels: str) -> None:
    assert TaskConfig(labels=labels).labels == {"1": "yes, really", "0": "no"}  # type: ignore[arg-type]


def test_free_text_is_generated_if_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "titles.jsonl"
    rows = [{"text": f"a long text {i}", "title": f"title {i} " + "x " * 30} for i in range(30)]
    path.write_text("\n".join(map(json.dumps, rows)))
    settings: dict[str, Any] = {"train": str(path), "text": "text", "label": "title"}
    with pytest.raises(UserError, match="set free_text if it is text to generate"):
        load_task(TaskConfig(**settings))
    tuned = softprompts.tune(
        **settings, free_text=True, steps=2, batch_size=4, max_length=60, device="cpu"
    )
    assert tuned.card.scoring == "generate"
    assert set(tuned.card.metrics) == {"f1", "em"}
    assert tuned.card.task.answer_length == 64, "two tokens for each word of the longest"
    assert len(tuned.predict(["a long text"])) == 1
    with pytest.raises(UserError, match="leave it out with labels"):
        load_task(TaskConfig(**settings, free_text=True, labels={"a": "b"}))
    with pytest.raises(UserError, match="leave it out with task"):
        load_task(TaskConfig(task="helpdesk/intent", free_text=True))


def test_the_commands_read_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(("text,label\n" + "ça va,yes\nnon,no\n" * 10).encode("latin-1"))
    run, flags = str(tmp_path / "run"), ["--device", "cpu", "--quiet"]
    file = [str(path), "--encoding", "latin-1"]
    settings = ["--text", "text", "--label", "label", "--steps", "2", "--max-length", "40"]
    assert main(["tune", "--train", *file, *settings, "--output", run, *flags]) == 0
    assert main(["evaluate", run, "--file", *file, *flags]) == 0
    assert main(["predict", run, "--file", *file, *flags]) == 0
    assert main(["evaluate", run, *flags]) == 0, "its own rows, as they were read"


@pytest.mark.parametrize("name", ["nan", "NaN", "Nan"])
def test_nan_is_a_text_and_a_label_like_any_other(name: str, tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    rows = [f"{name},{name if i % 2 else 'Bob'}\n" for i in range(20)]
    path.write_text("text,label\n" + "".join(rows))
    task = load_task(TaskConfig(train=str(path), text="text", label="label"))
    assert set(task.labels) == {name, "Bob"}
    assert {example.input for example in task.train} == {name}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (datetime.date(2024, 5, 6), "2024-05-06"),
        (datetime.datetime(2024, 5, 6, 7, 8), "2024-05-06 07:08:00"),
        (datetime.time(7, 8), "07:08:00"),
        (Decimal("1.50"), "1.50"),
    ],
)
def test_dates_times_and_decimals_are_read_as_a_file_would_hold_them(
    value: object, text: str
) -> None:
    form = TextFormat("{text}", "label")
    (example,) = form.row_examples(Row({"text": value, "label": value}, "rows:1"), "train")
    assert (example.input, example.target) == (text, text)
