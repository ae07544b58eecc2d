"""Scores in company: intervals, paired tests, calibration, baselines, classes."""

import dataclasses
import random
from pathlib import Path

import pytest

from softprompts.config import TaskConfig
from softprompts.tasks import Example, Task, load_task
from softprompts.tasks import baselines as baselines_module
from softprompts.tasks.baselines import bag_of_words
from softprompts.tasks.score_report import ScoreReport, score_report, task_report
from softprompts.tasks.statistics import (
    calibration_error,
    interval,
    is_wrong,
    mcnemar,
    paired_test,
    row_scores,
    score_p,
    wilson,
)
from softprompts.tasks.task import Mixture
from softprompts.tasks.text_format import TextFormat

LABELS = ["bad", "good"]


def examples(targets: str) -> list[Example]:
    """Examples of the labels `b` and `g`."""
    names = {"b": "bad", "g": "good"}
    return [Example(f"text {number}", names[letter]) for number, letter in enumerate(targets)]


def answers(targets: str) -> list[str]:
    return [example.target for example in examples(targets)]


def test_wilson_intervals_are_the_textbook_ones() -> None:
    assert wilson(8, 10) == pytest.approx((49.02, 94.33), abs=0.01)
    assert wilson(0, 20) == pytest.approx((0, 16.11), abs=0.01)
    assert wilson(20, 20) == pytest.approx((83.89, 100), abs=0.01)


def test_mcnemar_is_exact() -> None:
    """Binomial tails: 2 * (1 + 10) / 2^10, and no discordant row at all."""
    assert mcnemar(9, 1) == pytest.approx(2 * 11 / 2**10)
    assert mcnemar(1, 9) == mcnemar(9, 1)
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(1, 0) == 1.0, "one row of 20 is no evidence"


def test_a_score_has_a_p_value_only_if_its_rows_agree_with_it() -> None:
    first, second = [100.0] * 30 + [0.0] * 10, [0.0] * 20 + [100.0] * 20
    assert score_p(first, second, 25.0) == pytest.approx(paired_test(first, second), rel=1e-5)
    assert score_p(first, second, 0.0) is None, "more rows are right, but F1 is no higher"
    assert score_p(first, second, -3.0) is None
    assert score_p([], [], 3.0) is None, "a metric without scores of rows"
    assert score_p(first, second[:-1], 25.0) is None


def test_paired_tests_see_the_rows_not_the_means() -> None:
    worse = [0.0] * 10 + [100.0] * 10
    better = [100.0] * 8 + worse[8:]
    assert paired_test(better, worse) == pytest.approx(2 / 2**8)
    shifted = [value + 1 for value in worse]
    assert paired_test(shifted, worse) < 0.01, "every row is better, if only a little"
    assert paired_test([0.5, 2.0], [0.5, 2.0]) == 1.0


def test_few_differences_are_tested_with_all_signs() -> None:
    assert paired_test([1.0, 2.0], [0.0, 0.5]) == 0.5, "the smallest p of two pairs"
    assert paired_test([float(n) for n in range(13)], [0.0] * 13) == 2 / 2**12
    assert paired_test([3.0, 2.0, 0.0], [0.0, 0.0, 1.0]) == 4 / 8, "4 and 6, either sign"
    assert paired_test([1.5] * 13, [0.0] * 13) < 0.002, "sampled"


def test_reports_hold_enough_digits_to_be_rounded_once_more() -> None:
    rows, right, wrong = examples("g" * 30), answers("g" * 30), answers("b" * 30)
    report = score_report(rows, right, ["accuracy"], LABELS, {"other": right[:20] + wrong[:10]})
    assert f"{report.intervals['accuracy'][0]:.1f}" == f"{wilson(30, 30)[0]:.1f}" == "88.6"
    assert f"{report.baselines['other']['p']:.2g}" == f"{mcnemar(10, 0):.2g}" == "0.002"
    half = score_report(rows[:2], ["good", "bad"], ["accuracy"], LABELS, {})
    assert [f"{limit:.1f}" for limit in half.intervals["accuracy"]] == ["9.5", "90.5"]


@pytest.mark.parametrize(
    ("predicted", "tested"), [("x" * 20, False), ("b" * 20, False), ("g" * 14 + "b" * 6, True)]
)
def test_right_rows_test_another_metric_only_if_it_moves_as_they_do(
    predicted: str, tested: bool
) -> None:
    """No answers and the majority class both have a Matthews correlation of 0."""
    rows = examples("g" * 14 + "b" * 6)
    given = ["none"] * 20 if predicted[0] == "x" else answers(predicted)
    majority = {"majority": ["good"] * 20}
    report = score_report(rows, given, ["matthews_corrcoef"], LABELS, majority)
    assert ("p" in report.baselines["majority"]) == tested


@pytest.mark.parametrize("name", ["accuracy", "macro_f1", "f1", "matthews_corrcoef"])
def test_intervals_hold_the_score_and_shrink_with_the_rows(name: str) -> None:
    generator = random.Random(1)
    widths = []
    for count in (50, 4000):
        targets = "".join(generator.choices("bg", k=count))
        rows = examples(targets)
        predictions = [
            row.target if generator.random() < 0.8 else generator.choice(LABELS) for row in rows
        ]
        limits = interval(name, rows, predictions, LABELS)
        assert limits is not None
        assert limits == interval(name, rows, predictions, LABELS), "the seed is fixed"
        report = score_report(rows, predictions, [name], LABELS, {})
        assert limits[0] < report.metrics[name] < limits[1]
        widths.append(limits[1] - limits[0])
    assert widths[1] == pytest.approx(widths[0] / 80**0.5, rel=0.5)


def test_a_bootstrap_that_cannot_doubt_gives_no_interval() -> None:
    rows, predictions = examples("gb"), answers("gb")
    assert interval("macro_f1", rows, predictions, LABELS) is None
    assert interval("accuracy", rows, predictions, LABELS) == pytest.approx((34.24, 100), abs=0.01)


def test_questions_of_several_rows_are_resampled_together() -> None:
    rows = [Example(str(n), "True", {"question": n // 4}) for n in range(40)]
    predictions = ["True"] * 20 + ["False"] * 20
    assert interval("exact_match", rows, predictions, LABELS) == pytest.approx(wilson(5, 10))
    assert len(row_scores("exact_match", rows, predictions, LABELS)) == 10


def test_calibration_error() -> None:
    rows = examples("gggg")
    sure = [{"bad": 0.0, "good": 1.0}] * 4
    assert calibration_error(rows, sure) == 0
    assert calibration_error(examples("ggbb"), sure) == pytest.approx(50)
    unsure = [{"bad": 0.25, "good": 0.75}] * 4
    assert calibration_error(examples("gggb"), unsure) == pytest.approx(0)


def test_a_report_has_classes_confusion_and_baselines() -> None:
    rows, predictions = examples("ggggbbbb"), [*answers("gggb"), *answers("bbg"), "Monday"]
    report = score_report(rows, predictions, ["accuracy"], LABELS, {"majority": ["good"] * 8})
    assert (report.rows, report.invalid, report.metrics) == (8, 1, {"accuracy": 62.5})
    assert report.classes["bad"] == {"rows": 4, "precision": 66.6667, "recall": 50.0}
    assert report.classes["good"] == {"rows": 4, "precision": 75.0, "recall": 75.0}
    assert report.confusion["bad"] == {"Monday": 1, "bad": 2, "good": 1}
    assert report.baselines["majority"] == {"metrics": {"accuracy": 50.0}, "p": 1.0}
    read = ScoreReport.of(report.plain() | {"newer": 1}, report.row_scores)
    assert dataclasses.replace(read, scored_rows=report.scored_rows) == report
    assert [is_wrong("accuracy", r, p, LABELS) for r, p in zip(rows, predictions, strict=True)] == [
        *(False, False, False, True, False, False, True, True)
    ]


@pytest.mark.parametrize("name", ["pearson_corrcoef", "pearson_corrcoef+spearman_corrcoef"])
def test_a_correlation_is_not_tested_by_rows_that_are_right_or_wrong(name: str) -> None:
    rows = [Example(f"text {number}", str(number)) for number in range(8)]
    close = [str(number + 0.1) for number in range(8)]
    report = score_report(rows, close, [name], [], {"majority": ["1"] * 8})
    assert report.metrics[name] == pytest.approx(100)
    assert report.row_scores == []
    assert "p" not in report.baselines["majority"]
    assert is_wrong(name, rows[0], "1", [])
    assert not is_wrong(name, rows[0], "0", [])


def toy(name: str) -> Task:
    train = [Example(f"it was {word}", label) for word, label in WORDS for _ in range(5)]
    validation = [Example(f"really {word} it was", label) for word, label in WORDS]
    form = TextFormat("{text}", "label", {label: label for label in LABELS})
    return Task(name, form, train, validation, metrics=("accuracy",))


WORDS = [("great", "good"), ("lovely", "good"), ("fine", "good"), ("awful", "bad"), ("poor", "bad")]


def test_a_bag_of_words_learns_the_words_and_is_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path))
    monkeypatch.setattr(baselines_module, "_memory", {})
    task = toy("mood")
    inputs = [example.input for example in task.validation]
    expected = [example.target for example in task.validation]
    assert bag_of_words(task.train, inputs) == expected
    monkeypatch.setattr(baselines_module, "_memory", {})
    with monkeypatch.context() as patch:
        patch.setattr(baselines_module, "classify", lambda *_: pytest.fail("not from the cache"))
        assert bag_of_words(task.train, inputs) == expected
    next((tmp_path / "baselines").iterdir()).write_text("{corrupted")
    monkeypatch.setattr(baselines_module, "_memory", {})
    assert bag_of_words(task.train, inputs) == expected
    assert bag_of_words(task.train, ["zzz"]) == ["good"], "unknown words: the more frequent class"


def test_a_bag_of_words_on_the_starter_data_is_as_good_as_a_library_s() -> None:
    """scikit-learn's TF-IDF and logistic regression have 90.3 (results/defaults.md)."""
    task = load_task(TaskConfig(task="helpdesk/answerable"))
    report = task_report(task, "validation", [task.majority_label] * len(task.validation))
    assert report.baselines["bag_of_words"]["metrics"]["accuracy"] > 88
    assert report.metrics == report.baselines["majority"]["metrics"] == task.majority()
    assert report.baselines["bag_of_words"]["p"] < 1e-6


def test_the_report_of_a_mixture_is_that_of_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    members = (toy("one"), toy("two"))
    rows = [example for task in members for example in task.validation]
    mixture = Mixture(
        "one+two",
        dataclasses.replace(members[0].form),
        [example for task in members for example in task.train],
        rows,
        metrics=("mean", "one:accuracy", "two:accuracy"),
        members=members,
    )
    predictions = [*(example.target for example in rows[:5]), *["good"] * 5]
    report = task_report(mixture, "validation", predictions, baselines=False)
    assert report.metrics == mixture.score(predictions)
    assert set(report.intervals) == set(mixture.metrics)
    assert report.baselines["majority"]["metrics"] == mixture.majority()
    assert set(report.baselines) == {"majority"}
    assert len(report.row_scores) == report.rows == 10
