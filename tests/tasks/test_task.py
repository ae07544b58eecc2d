"""A user's own data becomes a task, and its rows are checked."""

import json
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softprompts.config import TaskConfig
from softprompts.errors import UserError
from softprompts.tasks import Example, load_task
from softprompts.tasks.sampling import few_shot, split_held_out
from softprompts.tasks.task import MEAN, Mixture, Task

from ..conftest import DATA


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    rows = [{"a": f"premise {i}", "b": f"claim {i}", "y": i % 2} for i in range(40)]
    return write(tmp_path / "pairs.jsonl", rows)


def test_a_template_and_label_words(pairs: str) -> None:
    config = TaskConfig(
        train=pairs,
        template="premise: {a} hypothesis: {b}",
        label="y",
        labels={"0": "no", "1": "yes"},
    )
    task = load_task(config)
    assert task.labels == ["no", "yes"]
    assert Example("premise: premise 3 hypothesis: claim 3", "yes") in [
        *task.train,
        *task.validation,
    ]
    assert (len(task.train), len(task.validation)) == (36, 4)
    assert task.name == "pairs.jsonl:y"


def test_a_cap_keeps_all_labels_and_validation_rows(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"text": f"word {i}", "kind": f"k{i % 12}"} for i in range(240)
    ]
    train = write(tmp_path / "train.jsonl", rows)
    validation = write(tmp_path / "validation.jsonl", rows[:48])
    capped = load_task(
        TaskConfig(train=train, validation=validation, text="text", label="kind", cap=5)
    )
    assert (len(capped.train), len(capped.validation), len(capped.labels)) == (5, 48, 12)
    without_file = load_task(TaskConfig(train=train, text="text", label="kind", cap=24))
    assert (len(without_file.train), len(without_file.validation)) == (24, 24)


def test_without_label_words_a_value_is_its_own_word(toy_csv: Path) -> None:
    task = load_task(TaskConfig(train=str(toy_csv), text="review", label="mood"))
    assert task.labels == ["negative", "positive"]
    assert task.majority()["accuracy"] == 50.0


def test_a_validation_file_is_used_unchanged(toy_csv: Path, tmp_path: Path) -> None:
    validation = write(tmp_path / "v.jsonl", [{"review": "fine", "mood": "positive"}])
    task = load_task(
        TaskConfig(train=str(toy_csv), validation=validation, text="review", label="mood")
    )
    assert task.validation == [Example("fine", "positive")]
    assert len(task.train) == 24


@pytest.mark.parametrize(
    ("labels", "second"), [(None, "positive"), ({"positive": "yes", "negative": "no"}, "no")]
)
def test_f1_counts_the_second_class(
    toy_csv: Path, labels: dict[str, str] | None, second: str
) -> None:
    """The second of `labels`; without them, the second in alphabetical order."""
    task = load_task(
        TaskConfig(train=str(toy_csv), text="review", label="mood", labels=labels, metric="f1")
    )
    assert task.score([second] * 2)["f1"] == pytest.approx(66.6667)
    assert task.score([word for word in task.labels if word != second] * 2)["f1"] == 0


def test_shots_are_per_class_and_seeded(toy_csv: Path) -> None:
    def shots(seed: int) -> list[Example]:
        return load_task(
            TaskConfig(train=str(toy_csv), text="review", label="mood", shots=3, split_seed=seed)
        ).train

    assert Counter(e.target for e in shots(0)) == {"positive": 3, "negative": 3}
    assert shots(0) == shots(0) != shots(1)
    with pytest.raises(UserError, match="fewer than the 50 shots"):
        load_task(TaskConfig(train=str(toy_csv), text="review", label="mood", shots=50))


@settings(deadline=None)
@given(st.lists(st.sampled_from("abc"), min_size=4, max_size=80), st.integers(0, 99))
def test_a_split_is_stratified_and_loses_nothing(labels: list[str], seed: int) -> None:
    examples = [Example(str(i), label) for i, label in enumerate(labels)]
    counts = Counter(labels)
    if max(counts.values()) < 2:
        return
    train, validation = split_held_out(examples, 0.1, seed)
    assert sorted([*train, *validation]) == sorted(examples)
    for label, count in counts.items():
        assert sum(e.target == label for e in validation) == (
            max(1, round(0.1 * count)) if count > 1 else 0
        )
    assert split_held_out(examples, 0.1, seed) == (train, validation)


@given(st.integers(1, 5))
def test_few_shot_keeps_the_order(shots: int) -> None:
    examples = [Example(str(i), "ab"[i % 2]) for i in range(20)]
    sampled = few_shot(examples, shots, 0)
    assert sampled == sorted(sampled, key=lambda e: int(e.input))
    assert len(sampled) == 2 * shots


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        (
            [{"t": "a", "y": "x"}, {"t": "b", "y": ""}],
            {},
            r"d.jsonl:2: the column 'y' is empty.*skip_bad_rows",
        ),
        ([{"t": "a", "y": "x"}, {"t": None, "y": "z"}], {}, r"d.jsonl:2: the column 't' is empty"),
        ([{"t": "a", "y": float("nan")}], {}, r"d.jsonl:1: the column 'y' is empty"),
        ([{"t": "a", "y": ["x"]}], {}, "holds a list"),
        ([{"t": "a", "y": "x"}, {"t": "b"}], {}, r"d.jsonl:2 has no column 'y'; its columns are t"),
        ([{"t": "a", "y": "x"}] * 9, {}, "nothing to learn from one class"),
        (
            [{"t": "a", "y": "xz"[i % 2]} for i in range(20)],
            {"labels": {"x": "good", "z": "good"}},
            "labels gives x and z the same word 'good', and no row has another",
        ),
        ([{"t": f"{i}", "y": f"id{i}"} for i in range(30)], {}, "30 different values in 30 rows"),
        (
            [{"t": "a", "y": "x"}, {"t": "b", "y": "w"}],
            {"labels": {"x": "yes"}},
            r"the label 'w' is not one of x. Correct it, give it a label word with labels, "
            r"or leave such rows out with skip_bad_rows.$",
        ),
        (
            [{"t": "a", "y": "x"}] * 9,
            {"text": "T"},
            r"no column 'T'; did you mean 't'\? Its columns are t, y: name one with text.$",
        ),
        (
            [{"t": "a", "y": "x"}] * 9,
            {"label": "Y"},
            r"no column 'Y'; did you mean 'y'\? Its columns are t, y: name one with label.$",
        ),
        (
            [{"t": "a", "y": "x"}] * 9,
            {"text": None, "template": "{t} {u}"},
            r"no column 'u'; .*: name one with template.$",
        ),
        (
            [{"t": "a", "y": "x"}] * 9,
            {"text": "T", "skip_bad_rows": True},
            "no column 'T'; .*: name one with text.$",
        ),
        (
            [{"t": "a", "y": "x"}],
            {"label": None},
            "No label column is named; choose one with label from t, y",
        ),
        ([{"t": "a", "y": "x"}], {"text": None}, "either text='COLUMN' or template"),
        (
            [{"t": "a", "y": "x"}],
            {"text": None, "template": "no columns"},
            "must name columns in braces",
        ),
        ([{"t": "a", "y": "x"}], {"text": None, "template": "{t"}, "must name columns"),
        ([{"t": "a", "y": "x"}], {"text": None, "template": "{t!r}"}, "has no column 't!r'"),
        ([{"t": "a", "y": " "}], {}, "the column 'y' is empty"),
        ([{"t": "caf\udce9", "y": "x"}], {}, "not valid Unicode"),
        ([{"t": "a", "y": "x"}], {"metric": "bleurt"}, "no metric 'bleurt'"),
        ([{"t": "a", "y": "x"}, {"t": "b", "y": "w"}], {}, "too few rows"),
    ],
)
def test_bad_rows_and_settings_are_clear_errors(
    tmp_path: Path, rows: list[dict[str, object]], changes: dict[str, object], message: str
) -> None:
    settings: dict[str, object] = {
        "train": write(tmp_path / "d.jsonl", rows),
        "text": "t",
        "label": "y",
        **changes,
    }
    with pytest.raises(UserError, match=message):
        load_task(TaskConfig(**settings))  # type: ignore[arg-type]


def test_a_validation_file_with_other_columns_is_a_clear_error(
    toy_csv: Path, tmp_path: Path
) -> None:
    validation = write(tmp_path / "v.jsonl", [{"text": "fine", "mood": "positive"}])
    message = (
        r"v.jsonl has no column 'review'; its columns are text, mood: "
        r"rename one as in .*reviews.csv.$"
    )
    settings = {"train": str(toy_csv), "text": "review", "label": "mood"}
    with pytest.raises(UserError, match=message):
        load_task(TaskConfig(**settings, validation=validation))


def test_bad_rows_can_be_skipped(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"t": f"text {i}", "y": "ab"[i % 2]} for i in range(20)]
    path = write(tmp_path / "d.jsonl", [*rows, {"t": "", "y": "a"}, {"t": "x", "y": None}])
    task = load_task(TaskConfig(train=path, text="t", label="y", skip_bad_rows=True))
    assert len(task.train) + len(task.validation) == 20


@pytest.mark.parametrize(
    "name", ["helpdesk/../../secret", "helpdesk", "nope", "../helpdesk/intent"]
)
def test_an_unknown_task_is_a_clear_error(name: str) -> None:
    with pytest.raises(UserError, match="There is no task"):
        load_task(TaskConfig(task=name))


def test_the_real_sst2_loads() -> None:
    if not DATA.is_dir():
        pytest.skip(f"no data folder at {DATA}")
    folder = DATA / "glue" / "sst2"
    files = {name: str(folder / f"{name}.jsonl.gz") for name in ("train", "validation")}
    config = TaskConfig(
        **files, text="sentence", label="label", labels={"0": "negative", "1": "positive"}
    )
    task = load_task(config)
    assert len(task.validation) == 872
    assert task.majority()["accuracy"] == pytest.approx(50.9, abs=0.1)


def test_the_mean_of_a_mixture_is_the_rounded_exact_sum() -> None:
    """As in its report."""
    scores = [52.5253, 49.004, 55.6391, 1.9718]
    members = tuple(
        Mock(Task, metrics=["em"], validation=[], score=Mock(return_value={"em": score}))
        for score in scores
    )
    for number, member in enumerate(members):
        member.name = str(number)
    mixture = Mock(Mixture, members=members)
    assert Mixture.score(mixture, [])[MEAN] == 39.785
