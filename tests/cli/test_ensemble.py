"""`softprompts ensemble`: prompts of one task vote, beside their mean and the best of them."""

import csv
import json
from collections import Counter
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

import softprompts
from softprompts.cli import main
from softprompts.serving.ensemble import Answers, ensemble_report
from softprompts.tasks import Example
from softprompts.tasks.statistics import mcnemar, wilson

from ..conftest import write_toy
from .conftest import Start
from .test_predict import CPU, QUICK

SEEDS = ["seed=0", "seed=1", "seed=2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three prompts on own data, and one that reads its rows differently."""
    folder = tmp_path_factory.mktemp("ensemble")
    train = ["tune", "--train", str(write_toy(folder)), "--label", "mood", *QUICK]
    assert main([*train, "--text", "review", "--seed", "0,1,2", "--output", str(folder)]) == 0
    other = ["--template", "mood of {review}", "--output", str(folder / "other")]
    assert main([*train, *other]) == 0
    return folder


def prompts(runs: Path) -> list[str]:
    return [str(runs / name) for name in SEEDS]


def result(argv: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["ensemble", *argv, *CPU, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    return printed


def test_the_table_of_labelled_rows(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, output = str(runs / "reviews.csv"), tmp_path / "answers.csv"
    found = result([*prompts(runs), "--file", file, "--output", str(output)], capsys)
    assert found["rows"] == 24
    assert list(found["prompts"]) == SEEDS
    alone = {}
    for name, folder in zip(SEEDS, prompts(runs), strict=True):
        assert main(["evaluate", folder, "--file", file, *CPU, "--json", "--no-baselines"]) == 0
        alone[name] = json.loads(capsys.readouterr().out)
        for part in ("metrics", "intervals"):
            assert found["prompts"][name][part] == alone[name][part], "as when evaluated alone"
    accuracies = [scores["metrics"]["accuracy"] for scores in alone.values()]
    assert found["mean"]["metrics"]["accuracy"] == pytest.approx(fmean(accuracies), abs=0.01)
    assert found["mean"]["std"]["accuracy"] == pytest.approx(stdev(accuracies), abs=0.01)
    assert found["best"]["metrics"]["accuracy"] == max(accuracies)
    with output.open(newline="") as written:
        table = list(csv.DictReader(written))
    for row in table:
        votes = Counter(row[name] for name in SEEDS)
        assert row["majority vote"] == votes.most_common(1)[0][0]
    correct = sum(row["majority vote"] == row["target"] for row in table)
    vote = found["ensembles"]["vote"]
    assert vote["metrics"]["accuracy"] == pytest.approx(100 * correct / 24, abs=0.01)
    assert vote["intervals"]["accuracy"] == pytest.approx(wilson(correct, 24), abs=0.01)
    assert set(vote["differences"]) == {"mean", "best"}
    answers = softprompts.ensemble(
        prompts(runs), [row["input"] for row in table], by="probability", verbose=False
    )
    assert [row["mean probability"] for row in table] == answers
    assert main(["ensemble", *prompts(runs), "--file", file, *CPU]) == 0
    text = capsys.readouterr().out
    assert "mean of 3" in text
    assert f"best ({found['best']['prompt']})" in text
    assert "majority vote: accuracy " in text
    assert "24 rows, 95 % intervals, paired tests on the same rows." in text


def test_python_and_the_command_line_agree(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(runs / "reviews.csv")
    report = softprompts.evaluate_ensemble(prompts(runs), file, device="cpu", verbose=False)
    found = result([*prompts(runs), "--file", file], capsys)
    assert {name: found[name] for name in ("mean", "ensembles")} == {
        name: report[name] for name in ("mean", "ensembles")
    }


def test_own_rows_and_rows_without_labels(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert result(prompts(runs), capsys)["rows"] < 24, "the validation rows of the task"
    new = tmp_path / "new.csv"
    new.write_text("review\ngood food\na dull film\n")
    found = result([*prompts(runs), "--file", str(new)], capsys)
    rows = found["predictions"]
    assert [row["input"] for row in rows] == ["good food", "a dull film"]
    assert all(0.5 <= row["probability"] <= 1 for row in rows)
    assert "mean" not in found
    for by, name in (("vote", "majority vote"), ("probability", "mean probability")):
        assert main(["ensemble", *prompts(runs), "--file", str(new), "--by", by, *CPU]) == 0
        assert capsys.readouterr().out.splitlines() == [row[name] for row in rows]


def test_paired_tests_of_a_known_table() -> None:
    examples = [Example(f"text {n}", "yes") for n in range(12)]
    right, wrong = ["yes"] * 12, ["no"] * 12
    half = right[:6] + wrong[:6]
    answers = Answers({"a": half, "b": wrong}, {"vote": right}, None)
    report = ensemble_report(examples, answers, ["accuracy"], ["yes", "no"])
    assert report["mean"]["metrics"]["accuracy"] == 25
    assert report["best"]["prompt"] == "a"
    differences = report["ensembles"]["vote"]["differences"]
    assert differences["best"] == {"difference": 50, "p": pytest.approx(mcnemar(6, 0), rel=1e-2)}
    assert differences["mean"]["difference"] == 75
    assert differences["mean"]["p"] < 0.01
    low, high = report["mean"]["intervals"]["accuracy"]
    assert low < 25 < high


def test_differences_have_no_more_digits_than_the_scores_allow() -> None:
    examples = [Example(f"text {n}", "yes") for n in range(30)]
    given = [["yes"] * right + ["no"] * (30 - right) for right in (20, 19)]
    answers = Answers({"a": given[0]}, {"vote": given[1]}, None)
    report = ensemble_report(examples, answers, ["accuracy"], ["yes", "no"])
    assert report["ensembles"]["vote"]["differences"]["best"]["difference"] == -3.333


def test_prompts_of_different_tasks_are_refused(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [str(runs / "seed=0"), str(runs / "other")]
    assert main(["ensemble", *both, *CPU]) == 2
    assert "are for different tasks, or read the rows differently" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["{runs}/seed=0"], "An ensemble needs at least two prompts; name their folders."),
        (["{runs}/seed=0", "{runs}/seed=0"], "seed=0 is named twice; name each prompt once."),
        (["{runs}/seed=0", "{runs}/sead=1"], "did you mean {runs}/seed=1?"),
        (["{runs}/seed=0", "{runs}/seed=1", "--file", "no.csv"], "no.csv does not exist"),
        (["{runs}/seed=0", "{runs}/seed=1", "--output", "x.txt"], "name a file that ends in .csv"),
        (["{runs}/seed=0", "{runs}/seed=1", "--task", "rtee"], "did you mean rte?"),
    ],
)
def test_wrong_input_is_refused_without_torch(
    argv: list[str], message: str, runs: Path, start: Start
) -> None:
    process = start(["ensemble", *(word.format(runs=runs) for word in argv)])
    assert process.returncode == 2
    error, imported = process.stderr.splitlines()
    assert message.format(runs=runs) in error
    assert imported == "imported:"
