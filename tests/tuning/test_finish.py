"""What the end of a run says of its scores: tests, intervals, baselines, advice, paired tests."""

import csv
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from softprompts.analysis.study_report import RECORD
from softprompts.artifacts.card import Card, TaskCard
from softprompts.backbone import Backbone
from softprompts.cli.tune_summary import cohort_table, describe
from softprompts.config import TaskConfig, expand_lists, run_config
from softprompts.study.cells import score_fields
from softprompts.tasks import Task, TextFormat, baselines, load_task
from softprompts.tuning import finish, tokens
from softprompts.tuning.advice import advice
from softprompts.tuning.evaluate import Predictor
from softprompts.tuning.summary import over_seeds, records, write_table
from softprompts.tuning.tune import tune_cohort, tune_config
from softprompts.tuning.tuned import Tuned

from ..cards import card
from ..conftest import drawing


def with_test_rows(config: TaskConfig, load: Any = None) -> Task:
    """A toy task whose training rows serve as test rows, too."""
    task = load_task(config, load) if load else load_task(config)
    return dataclasses.replace(task, test=task.train[:5])


@pytest.mark.parametrize("scoring", ["labels", "generate"])
def test_label_probabilities_come_with_the_last_evaluation(
    t5: Backbone, toy_csv: Path, scoring: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calibration error needs no pass of its own if the last evaluation was the best."""
    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    tuning = {"steps": 2, "batch_size": 4, "max_length": 64, "scoring": scoring}
    settings = {"preset": "prompt-tuning", "prompt": {"length": 4}, "task": task, "tuning": tuning}
    errors, score, passes = [], Predictor.probabilities, list[int]()

    def counted(predictor: Predictor, texts: list[str]) -> list[dict[str, float]]:
        passes.append(len(texts))
        return score(predictor, texts)

    monkeypatch.setattr(Predictor, "probabilities", counted)
    for reuse in (True, False):
        if not reuse:
            monkeypatch.setattr("softprompts.tuning.cohort.can_calibrate", lambda task, rows: False)
        (member,) = expand_lists(settings)
        tuned = tune_config(member.config, tmp_path / str(reuse), backbone=t5)
        errors.append(tuned.card.scores["validation"]["ece"])
        assert len(passes) == (not reuse)
    assert errors[0] == pytest.approx(errors[1], abs=0.1)


def test_the_end_is_prepared_while_a_gpu_trains(
    t5: Backbone, toy_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results are those of a CPU, where one thing is done after the other."""
    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    tuning = {"steps": 2, "batch_size": 4, "max_length": 64, "scoring": "labels"}
    settings = {"preset": "prompt-tuning", "prompt": {"length": 4}, "task": task, "tuning": tuning}
    config = expand_lists(settings)[0].config
    runs: list[Tuned] = []
    for device in ("cpu", "gpu"):
        monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / f"cache-{device}"))
        monkeypatch.setattr(baselines, "_memory", {})
        if device == "gpu":
            monkeypatch.setattr(finish, "_has_spare_cores", lambda runs: True)
            monkeypatch.setattr(tokens, "_can_read_ahead", lambda backbone: True)
            monkeypatch.setattr(baselines, "classify", lambda *_: pytest.fail("in this process"))
        with drawing():
            runs.append(tune_config(config, tmp_path / device, backbone=t5))
        assert (tmp_path / device / "curve.png").exists()
        assert runs[-1].cost is not None
        assert {"tokenise", "baseline", "pictures"} <= runs[-1].cost["phases"].keys()
    assert runs[0].card.scores == runs[1].card.scores
    assert torch.equal(runs[0].prompt.table, runs[1].prompt.table)


@pytest.mark.parametrize(
    ("device", "cores", "finished", "expected"),
    [
        ("cuda", 16, False, True),
        ("cpu", 16, False, False),
        ("cuda", 2, False, False),
        ("cuda", None, False, False),
        ("cuda", 16, True, False),
    ],
)
def test_the_end_is_prepared_only_where_cores_are_idle(
    device: str,
    cores: int | None,
    finished: bool,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run: Any = SimpleNamespace(
        backbone=SimpleNamespace(device=torch.device(device)), finished=finished
    )
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert finish._has_spare_cores([run]) is expected


def test_the_test_score_is_shown_everywhere(
    t5: Backbone, toy_csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTPROMPTS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("softprompts.tuning.tune.load_task", with_test_rows)
    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    tuning = {"steps": 2, "batch_size": 4, "max_length": 64, "scoring": "labels"}
    settings = {"preset": "prompt-tuning", "prompt": {"length": 4}, "task": task, "tuning": tuning}
    members = expand_lists(settings | {"seed": [0, 1]})
    with drawing():
        results = tune_cohort(members, tmp_path, backbone=t5)
    write_table(members, results, tmp_path)
    first = results[0]
    assert isinstance(first, Tuned)
    scores = first.card.scores
    assert set(scores) == {"validation", "test"}
    assert first.card.test == scores["test"]["metrics"]
    assert scores["test"]["rows"] == 5
    assert set(scores["test"]["baselines"]) == {"majority", "bag_of_words"}
    assert scores["test"]["ece"] is not None
    saved = json.loads((tmp_path / "seed=0" / "predictions.json").read_text())
    assert len(saved["test"]["predictions"]) == 5 == len(first.row_scores)
    assert (tmp_path / "seed=0" / "confusion.png").read_bytes().startswith(b"\x89PNG")

    text = describe(first)
    assert "on 5 test rows (95 % intervals)" in text
    assert "precision  recall" in text
    runs = records(members, results, tmp_path)
    table = cohort_table(runs, tmp_path)
    assert "test" in table.splitlines()[0].split()
    assert "are those of the test rows" in table
    assert "p vs best" in table
    alone = [{**run, "p_vs_best": None} for run in runs]
    assert "p vs best" not in cohort_table(alone, tmp_path), "no two runs on the same rows"
    with monkeypatch.context() as patch:
        patch.setitem(first.card.task.rows, "skipped", 1)
        assert "1 bad row was skipped" in describe(first)
    assert over_seeds(runs)[0]["test"]["mean"]["accuracy"] == pytest.approx(
        sum(run["test"]["accuracy"] for run in runs) / 2
    )
    rows = list(csv.DictReader((tmp_path / "cohort.csv").read_text().splitlines()))
    assert [row["seed"] for row in rows] == ["0", "1", "mean", "std"]
    assert float(rows[0]["test"]) == first.card.test["accuracy"]
    assert rows[0]["test_rows"] == "5"
    assert {rows[0]["p_vs_best"] == "", rows[1]["p_vs_best"] == ""} == {True, False}

    monkeypatch.setattr(finish, "_reports", lambda *_: pytest.fail("the run was finished"))
    again = tune_cohort(members, tmp_path, backbone=t5)
    assert [r.card.scores for r in again if isinstance(r, Tuned)] == [
        r.card.scores for r in results if isinstance(r, Tuned)
    ]
    assert records(members, again, tmp_path)[1]["p_vs_best"] == runs[1]["p_vs_best"]


def test_a_study_s_result_and_tables_have_the_test_score() -> None:
    report = {
        "rows": 4,
        "metrics": {"accuracy": 75.0},
        "intervals": {"accuracy": [30.1, 95.4]},
        "baselines": {
            "bag_of_words": {"metrics": {"accuracy": 50.0}, "p": 1.0},
            "majority": {"metrics": {"accuracy": 40.0}, "p": 1.0},
        },
    }
    tested = card(test={"accuracy": 75.0}, scores={"validation": report, "test": report})
    fields = score_fields(tested)
    assert fields == {
        "interval": [30.1, 95.4],
        "bag_of_words": 50.0,
        "test": 75.0,
        "test_rows": 4,
        "test_majority": 40.0,
        "test_interval": [30.1, 95.4],
    }
    assert set(fields) <= set(RECORD)
    assert set(score_fields(card()).values()) == {None}, "a card of an older version"


def scored(accuracy: float, **parts: Any) -> Card:
    """The card of a prompt on t5-tiny beside a majority class of 50 and a bag of words of 80."""
    report = {
        "rows": 20,
        "metrics": {"accuracy": accuracy},
        "baselines": {
            "majority": {"metrics": {"accuracy": 50.0}, "p": 1.0},
            "bag_of_words": {"metrics": {"accuracy": 80.0}, "p": 0.1},
        },
    }
    form = TextFormat("{text}", "label", {"good": "good", "bad": "bad"})
    defaults: dict[str, Any] = {
        "task": TaskCard(name="mood", metrics=["accuracy"], form=form),
        "scores": {"validation": report},
        "scoring": "generate",
        "steps": 100,
        "config": {"tuning": {"lr": 0.3}},
        "loss": {"first": 3.0, "last": 1.0, "uniform": 10.0},
    }
    described = card(**defaults | parts)
    backbone = dataclasses.replace(described.backbone, name="t5-tiny")
    return dataclasses.replace(described, backbone=backbone)


def test_advice_comes_in_the_order_that_helps() -> None:
    assert advice(scored(81.0)) is None
    perfect = scored(100.0)
    perfect.scores["validation"]["baselines"]["bag_of_words"]["metrics"]["accuracy"] = 100.0
    assert advice(perfect) is None, "there is nothing left to improve"
    text = Tuned(None, None, scored(60.0)).advice  # type: ignore[arg-type]
    assert text == (
        "accuracy 60.0 is no better than the bag of words (80.0); "
        "try a larger backbone (model='google/flan-t5-small'), then label scoring "
        "(scoring='labels'), then more steps (steps=400)"
    )


def test_advice_knows_a_loss_that_exploded_or_did_not_move() -> None:
    lower = "a lower learning rate (\x02tuning.lr\x030.03\x03), because the loss exploded"
    failed = str(advice(scored(40.0, failed=True, stopped="the loss exploded")))
    assert "the majority class (50.0) and the bag of words (80.0)" in failed
    assert lower in failed
    assert "more steps" not in failed
    for first, last in ((3.0, 5.0), (14.0, 14.0)):  # rose, or above a uniform guess all along
        loss = {"first": first, "last": last, "uniform": 10.0}
        assert lower in str(advice(scored(40.0, loss=loss)))
    still = str(advice(scored(40.0, loss={"first": 3.0, "last": 2.95, "uniform": 10.0})))
    assert (
        "a higher learning rate (\x02tuning.lr\x030.9\x03), because the loss hardly fell" in still
    )
    assert "more steps" in still
    config = {"preset": "mixture", "tuning": {"lr": 1000.0}}
    usual = run_config({"preset": "mixture"}).tuning.lr
    for last in (6.9, 5.0):
        hot = str(advice(scored(40.0, config=config, loss={"first": 7.0, "last": last})))
        assert f"the preset's learning rate (\x02tuning.lr\x03{usual:g}\x03)" in hot
        assert "higher" not in hot
    short = str(advice(scored(40.0, loss={"uniform": 10.0})))
    assert "learning rate" not in short, "a run of a few steps says nothing about it"
