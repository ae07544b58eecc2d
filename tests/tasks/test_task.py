"""Own data becomes a task, and every promise about its rows is checked."""

import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softprompts.errors import UserError
from softprompts.tasks import Example, TaskConfig, load_task
from softprompts.tasks.draw import few_shot, stratified_split

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


def test_a_cap_leaves_every_class_its_word_and_validation_its_rows(tmp_path: Path) -> None:
    found = [{"text": f"word {i}", "kind": f"k{i % 12}"} for i in range(240)]
    train, held = write(tmp_path / "train.jsonl", found), write(tmp_path / "held.jsonl", found[:48])
    capped = load_task(TaskConfig(train=train, validation=held, text="text", label="kind", cap=5))
    assert (len(capped.train), len(capped.validation), len(capped.labels)) == (5, 48, 12)
    alone = load_task(TaskConfig(train=train, text="text", label="kind", cap=24))
    assert (len(alone.train), len(alone.validation)) == (24, 24)


def test_without_words_a_value_is_its_own_word(toy_csv: Path) -> None:
    task = load_task(TaskConfig(train=str(toy_csv), text="review", label="mood"))
    assert task.labels == ["negative", "positive"]
    assert task.majority()["accuracy"] == 50.0


def test_a_validation_file_is_used_as_it_is(toy_csv: Path, tmp_path: Path) -> None:
    held = write(tmp_path / "v.jsonl", [{"review": "fine", "mood": "positive"}])
    task = load_task(TaskConfig(train=str(toy_csv), validation=held, text="review", label="mood"))
    assert task.validation == [Example("fine", "positive")]
    assert len(task.train) == 24


@pytest.mark.parametrize(
    ("labels", "counted"), [(None, "positive"), ({"positive": "yes", "negative": "no"}, "no")]
)
def test_f1_counts_the_second_class(
    toy_csv: Path, labels: dict[str, str] | None, counted: str
) -> None:
    """Of --labels the one named second; without them, in alphabetical order."""
    task = load_task(
        TaskConfig(train=str(toy_csv), text="review", label="mood", labels=labels, metric="f1")
    )
    assert task.score([counted] * 2)["f1"] == pytest.approx(66.6667)
    assert task.score([word for word in task.labels if word != counted] * 2)["f1"] == 0


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
    train, held = stratified_split(examples, 0.1, seed)
    assert sorted([*train, *held]) == sorted(examples)
    for label, many in counts.items():
        assert sum(e.target == label for e in held) == (
            max(1, round(0.1 * many)) if many > 1 else 0
        )
    assert stratified_split(examples, 0.1, seed) == (train, held)


@given(st.integers(1, 5))
def test_few_shot_keeps_the_order(shots: int) -> None:
    examples = [Example(str(i), "ab"[i % 2]) for i in range(20)]
    kept = few_shot(examples, shots, 0)
    assert kept == sorted(kept, key=lambda e: int(e.input))
    assert len(kept) == 2 * shots


@pytest.mark.parametrize(
    ("rows", "settings_", "why"),
    [
        (
            [{"t": "a", "y": "x"}, {"t": "b", "y": ""}],
            {},
            r"d.jsonl:2: the column 'y' is empty.*--skip-bad-rows",
        ),
        ([{"t": "a", "y": "x"}, {"t": None, "y": "z"}], {}, r"d.jsonl:2: the column 't' is empty"),
        ([{"t": "a", "y": float("nan")}], {}, r"d.jsonl:1: the column 'y' is empty"),
        ([{"t": "a", "y": ["x"]}], {}, "holds a list"),
        ([{"t": "a", "y": "x"}, {"t": "b"}], {}, r"d.jsonl:2 has no column 'y'; its columns are t"),
        ([{"t": "a", "y": "x"}] * 9, {}, "nothing to learn from one class"),
        ([{"t": f"{i}", "y": f"id{i}"} for i in range(30)], {}, "30 different values in 30 rows"),
        (
            [{"t": "a", "y": "x"}, {"t": "b", "y": "w"}],
            {"labels": {"x": "yes"}},
            r"the label 'w' is none of x. Mend it, give it a word with --labels, or leave such rows out with --skip-bad-rows.$",
        ),
        (
            [{"t": "a", "y": "x"}] * 9,
            {"text": "T"},
            r"d.jsonl has no column 'T'; its columns are t, y: name one with --text.$",
        ),
        (
            [{"t": "a", "y": "x"}] * 9,
            {"label": "Y"},
            r"d.jsonl has no column 'Y'; its columns are t, y: name one with --label.$",
        ),
        (
            [{"t": "a", "y": "x"}] * 9,
            {"text": None, "template": "{t} {u}"},
            r"no column 'u'; .*: name one with --template.$",
        ),
        (
            [{"t": "a", "y": "x"}] * 9,
            {"text": "T", "skip_bad_rows": True},
            "no column 'T'; .*: name one with --text.$",
        ),
        (
            [{"t": "a", "y": "x"}],
            {"label": None},
            "No label column is named; choose one with --label from t, y",
        ),
        ([{"t": "a", "y": "x"}], {"text": None}, "either --text COLUMN or --template"),
        (
            [{"t": "a", "y": "x"}],
            {"text": None, "template": "no columns"},
            "must name columns in braces",
        ),
        ([{"t": "a", "y": "x"}], {"text": None, "template": "{t"}, "must name columns"),
        ([{"t": "a", "y": "x"}], {"text": None, "template": "{t!r}"}, "has no column 't!r'"),
        ([{"t": "a", "y": "NaN"}], {}, "the column 'y' is empty"),
        ([{"t": "caf\udce9", "y": "x"}], {}, "not valid Unicode"),
        ([{"t": "a", "y": "x"}], {"metric": "bleurt"}, "no metric 'bleurt'"),
        ([{"t": "a", "y": "x"}, {"t": "b", "y": "w"}], {}, "too few rows"),
    ],
)
def test_bad_rows_and_settings_are_one_sentence(
    tmp_path: Path, rows: list[dict[str, object]], settings_: dict[str, object], why: str
) -> None:
    settings: dict[str, object] = {
        "train": write(tmp_path / "d.jsonl", rows),
        "text": "t",
        "label": "y",
        **settings_,
    }
    with pytest.raises(UserError, match=why):
        load_task(TaskConfig(**settings))  # type: ignore[arg-type]


def test_a_validation_file_with_other_columns_is_one_sentence(
    toy_csv: Path, tmp_path: Path
) -> None:
    held = write(tmp_path / "v.jsonl", [{"text": "fine", "mood": "positive"}])
    why = r"v.jsonl has no column 'review'; its columns are text, mood: rename one as in .*reviews.csv.$"
    with pytest.raises(UserError, match=why):
        load_task(TaskConfig(train=str(toy_csv), validation=held, text="review", label="mood"))


def test_bad_rows_can_be_skipped(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"t": f"text {i}", "y": "ab"[i % 2]} for i in range(20)]
    path = write(tmp_path / "d.jsonl", [*rows, {"t": "", "y": "a"}, {"t": "x", "y": None}])
    task = load_task(TaskConfig(train=path, text="t", label="y", skip_bad_rows=True))
    assert len(task.train) + len(task.validation) == 20


@pytest.mark.parametrize(
    "name", ["helpdesk/../../secret", "helpdesk", "nope", "../helpdesk/intent"]
)
def test_an_unknown_task_is_one_sentence(name: str) -> None:
    with pytest.raises(UserError, match="There is no task"):
        load_task(TaskConfig(task=name))


def test_real_sst2_reads_as_it_is() -> None:
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
