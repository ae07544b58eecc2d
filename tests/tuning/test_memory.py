"""Data in memory: the same runs as from a file, with digests, cards and resuming."""

from pathlib import Path
from typing import Any

import datasets
import pandas
import pytest
import torch

import softprompts
from softprompts.config import TaskConfig
from softprompts.tasks import (
    Row,
    TextFormat,
    load_task,
    read_rows,
    register_data,
    register_rows,
)
from softprompts.tuning.cohort import Cohort

ROWS = [
    {"text": f"{'good' if i % 2 else 'bad'} number {i}", "label": "yes" if i % 2 else "no"}
    for i in range(20)
]
SETTINGS: dict[str, Any] = {
    "steps": 4,
    "checkpoint_every": 2,
    "batch_size": 4,
    "max_length": 40,
    "prompt": {"length": 3},
    "device": "cpu",
    "text": "text",
    "label": "label",
}


class PolarsFrame:
    """What we use of a polars DataFrame, which is not installed for tests."""

    columns = ("text", "label")

    def to_dicts(self) -> list[dict[str, str]]:
        return ROWS


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    pandas.DataFrame(ROWS).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    "data",
    [
        pandas.DataFrame(ROWS),
        pandas.DataFrame(ROWS).astype({"label": "category"}),
        PolarsFrame(),
        datasets.Dataset.from_list(ROWS),
        ROWS,
        tuple(ROWS),
        ([row["text"] for row in ROWS], [row["label"] for row in ROWS]),
        (pandas.Series([row["text"] for row in ROWS]), [row["label"] for row in ROWS]),
        {name: [row[name] for row in ROWS] for name in ("text", "label")},
        {name: pandas.DataFrame(ROWS)[name] for name in ("text", "label")},
    ],
    ids=[
        *("pandas", "category", "polars", "dataset", "list", "tuple", "pair", "series"),
        *("columns", "series of columns"),
    ],
)
def test_every_kind_of_data_is_the_same_task_as_the_file(data: Any, csv: Path) -> None:
    settings = register_data({"train": data, "text": "text", "label": "label"})
    from_file = load_task(TaskConfig(train=str(csv), text="text", label="label"))
    task = load_task(TaskConfig(**settings))
    assert task.digests == from_file.digests
    assert settings["train"] == register_rows(ROWS), "the name follows from the content alone"


def test_floats_of_lower_precision_are_read_as_in_a_file(tmp_path: Path) -> None:
    scores = [3.2, 0.1, None]
    rows = [{"text": "a", "score": score} for score in scores]
    frame = pandas.DataFrame({"text": "a", "score": pandas.Series(scores, dtype="float32")})
    frame.to_parquet(tmp_path / "rows.parquet")
    dataset = datasets.Dataset.from_pandas(frame)
    dataset.save_to_disk(str(tmp_path / "dataset"))
    for data in (
        frame,
        frame.astype({"score": "Float32"}),
        frame.astype({"score": "float16"}),
        frame.astype({"score": "float[pyarrow]"}),
        dataset,
        dict(frame),
        {"text": ["a"] * 3, "score": frame["score"].to_numpy()},
        {"text": ["a"] * 3, "score": torch.tensor([3.2, 0.1, torch.nan])},
        [{"text": "a", "score": score} for score in frame["score"].to_numpy()],
    ):
        assert register_rows(data) == register_rows(rows)
    pair = register_rows((["a"] * 3, frame["score"]))
    assert [row.values["label"] for row in read_rows(pair)] == scores
    for file in ("rows.parquet", "dataset"):
        assert [row.values["score"] for row in read_rows(str(tmp_path / file))] == scores


def test_hidden_columns_of_a_dataset_are_left_out() -> None:
    features = datasets.Features(
        {
            "text": datasets.Value("string"),
            "score": datasets.Value("float32"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
        }
    )
    rows = [{"text": "a", "score": 3.2, "label": 1}]
    dataset = datasets.Dataset.from_list(rows, features=features)
    visible = register_rows(dataset.with_format("python", columns=["text"]))
    assert visible == register_rows([{"text": "a"}])


def test_splits_of_a_dataset_dict_and_class_names() -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    )
    rows = datasets.Dataset.from_list(ROWS).cast(features)
    splits = datasets.DatasetDict({"train": rows.select(range(16)), "test": rows.select([17])})
    name = register_rows(splits)
    config = TaskConfig(train=name, text="text", label="label")
    task = load_task(config)
    assert task.labels == ["no", "yes"]
    assert len(task.train) + len(task.validation) == 16
    splits["validation"] = rows.select(range(16, 20))
    task = load_task(TaskConfig(train=register_rows(splits), text="text", label="label"))
    assert (len(task.train), len(task.validation)) == (16, 4)


def test_numpy_labels_and_missing_values() -> None:
    frame = pandas.DataFrame({"text": ["a", "b", "c", None] * 3, "label": [0, 1, 0, 1] * 3})
    settings = register_data({"train": (frame["text"], frame["label"].to_numpy())})
    assert (settings["text"], settings["label"]) == ("text", "label")
    with pytest.raises(softprompts.UserError, match=r"the data in memory:3: .*'text' is empty"):
        load_task(TaskConfig(**settings))
    task = load_task(TaskConfig(**settings, skip_bad_rows=True))
    assert task.labels == ["0", "1"]
    assert task.skipped == 3


def test_a_missing_label_does_not_change_the_others() -> None:
    frame = pandas.DataFrame({"text": [f"text {i}" for i in range(20)], "label": [0, 1] * 10})
    frame.loc[0, "label"] = None
    assert frame["label"].dtype == float, "pandas has no missing ints"
    name = register_rows(frame)
    config = TaskConfig(train=name, text="text", label="label", skip_bad_rows=True)
    assert load_task(config).labels == ["0", "1"]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("0", "1"), (0.0, 1.0)),
        (("0.0", "1.0"), (0, 1)),
        (("true", "false"), (True, False)),
        (("False", "True"), ("false", "TRUE")),
    ],
)
def test_a_label_in_another_spelling_is_the_same_label(
    words: tuple[str, str], values: tuple[Any, Any]
) -> None:
    form = TextFormat("{text}", "label", {word: word for word in words})
    rows = [Row({"text": "x", "label": value}, "x:1") for value in values]
    assert [example.target for example in form.examples(rows)] == list(words)


def test_boolean_labels_have_words() -> None:
    frame = pandas.DataFrame(
        {"text": [f"text {i}" for i in range(20)], "label": [True, False] * 10}
    )
    settings: dict[str, Any] = {"train": register_rows(frame), "text": "text", "label": "label"}
    for labels in ({False: "bad", True: "good"}, "true=good,false=bad"):
        task = load_task(TaskConfig(**settings, labels=labels))  # type: ignore[arg-type]
        assert {example.target for example in task.train} == {"good", "bad"}


def test_a_run_on_a_data_frame_equals_the_run_on_the_file(csv: Path) -> None:
    frame = pandas.DataFrame(ROWS)
    tuned = softprompts.tune(train=frame, **SETTINGS)
    from_file = softprompts.tune(train=csv, **SETTINGS)
    assert (tuned.prompt.table == from_file.prompt.table).all()
    assert tuned.card.task.digests == from_file.card.task.digests
    assert tuned.evaluate(frame, scoring="labels") == from_file.evaluate(csv, scoring="labels")
    report = tuned.report(frame, scoring="labels")
    assert report["metrics"] == tuned.evaluate(frame, scoring="labels")
    assert report["rows"] == len(frame)
    low, high = report["intervals"]["accuracy"]
    assert low <= report["metrics"]["accuracy"] <= high
    assert set(report["baselines"]) == {"majority"}
    assert sum(row["rows"] for row in report["classes"].values()) == len(frame)
    score = f"accuracy {tuned.metrics['accuracy']:.1f} ["
    assert f" on t5-tiny, {tuned.card.method}: {score}" in repr(tuned), "what a notebook shows"
    assert repr(tuned).endswith(f" on {tuned.card.task.rows['validation']} validation rows>")
    assert tuned.predict(frame, scoring="labels") == from_file.predict(
        [row["text"] for row in ROWS], scoring="labels"
    )
    assert len(tuned.probabilities(datasets.Dataset.from_list(ROWS[:3]))) == 3


def test_texts_with_labels_are_evaluated_whatever_the_columns_are_called() -> None:
    rows = [{"review": row["text"], "mood": row["label"]} for row in ROWS]
    tuned = softprompts.tune(train=rows, **{**SETTINGS, "text": "review", "label": "mood"})
    pair = ([row["text"] for row in ROWS], [row["label"] for row in ROWS])
    assert tuned.evaluate(pair) == tuned.evaluate(rows)


def test_a_run_resumes_with_the_same_data_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = softprompts.tune(train=ROWS, output=tmp_path / "whole", **SETTINGS)
    step = Cohort.step

    def interrupted_step(self: Cohort) -> None:
        if self.members[0][0].step == 3:
            raise KeyboardInterrupt
        step(self)

    monkeypatch.setattr(Cohort, "step", interrupted_step)
    with pytest.raises(KeyboardInterrupt):
        softprompts.tune(train=ROWS, output=tmp_path / "run", **SETTINGS)
    monkeypatch.setattr(Cohort, "step", step)
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    with pytest.raises(softprompts.UserError, match=r"The data of the run in .* has changed"):
        softprompts.tune(train=ROWS[:-1], output=tmp_path / "run", **SETTINGS)
    resumed = softprompts.tune(train=pandas.DataFrame(ROWS), output=tmp_path / "run", **SETTINGS)
    assert (resumed.prompt.table == whole.prompt.table).all()
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert f"train: {register_rows(ROWS)}" in config


def test_transfer_to_data_in_memory(tmp_path: Path) -> None:
    softprompts.tune(train=ROWS, output=tmp_path / "source", **SETTINGS)
    tuned = softprompts.transfer(
        train=pandas.DataFrame(ROWS[:-1]),
        source=tmp_path / "source",
        output=tmp_path / "transfer",
        **SETTINGS,
    )
    assert tuned.card.sources == [str(tmp_path / "source")]
    assert tuned.card.task_settings["train"] == register_rows(ROWS[:-1])


def test_rows_that_are_not_in_memory_any_more() -> None:
    config = TaskConfig(train="memory:0123456789abcdef", text="text", label="label")
    with pytest.raises(softprompts.UserError, match="pass the same data again in Python"):
        load_task(config)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "train is a int that cannot be read as rows; give a file"),
        (["a", "b"], "a list that cannot be read as rows"),
        ((["a", "b"], ["x"]), "train has 2 texts and 1 labels"),
        (("a", "b"), "a list of texts and a list of labels"),
        ([], "the data in memory has no rows"),
        (pandas.DataFrame({"text": [], "label": []}), "the DataFrame has no rows"),
        ({"text": [], "label": []}, "the dict has no rows"),
        (
            pandas.DataFrame([["a", "b", "c"]], columns=["text", "label", "text"]),
            r"The DataFrame has two columns of the same name \(text, label, text\); rename one",
        ),
        ({"text": ["a", "b"], "label": ["x"]}, r"columns of different lengths \(text: 2, label: 1"),
        ({"text": "a", "label": ["x"]}, "train must be a dict of lists, but 'text' is 'a'"),
        ({"test": ROWS}, "the dict has no split 'train'; it has test"),
        ([{"review": "a", "label": "b"}], "the data in memory has no column 'text'"),
    ],
)
def test_data_that_is_no_table(data: Any, message: str) -> None:
    with pytest.raises(softprompts.UserError, match=message):
        softprompts.tune(train=data, **SETTINGS)
