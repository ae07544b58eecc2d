"""docs/claims.md: every claim with its verdict, made from the records alone."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from .scripts import ROOT, load_script


def script() -> Any:
    return load_script("recipes/claims.py")


def test_the_page_is_current() -> None:
    page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
    assert page == script().page(ROOT), "run python recipes/claims.py"
    rows = [line for line in page.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, 10)) + list(range(10, 32))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The repository without results, but for one recipe that has run."""
    for name in ("recipes", "docs"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "docs" / "claims.yaml", tmp_path / "docs")
    shutil.copy(ROOT / "recipes" / "residual-table1-small.yaml", tmp_path / "recipes")
    return tmp_path


def row(page: str, number: int) -> str:
    return next(line for line in page.splitlines() if line.startswith(f"| {number} |"))


def test_a_claim_without_a_report_is_not_run_yet(copy: Path) -> None:
    page = script().page(copy)
    assert "Of 31 claims: 31 not run yet." in page
    assert (
        "| not run yet | [residual-table1-small.yaml](../recipes/residual-table1-small.yaml) |"
        in (row(page, 24))
    )


def test_a_claim_has_the_verdict_of_its_report_and_a_link(copy: Path) -> None:
    folder = copy / "results" / "residual-table1-small"
    folder.mkdir(parents=True)
    part = {"verdict": "held", "sentence": "residual-10 better than prompt-10: +5.1 points: held"}
    claim = {"claim": 24, "text": "t", "paper": "p", "verdict": "held", "expectations": [part]}
    (folder / "summary.json").write_text(json.dumps({"claims": [claim]}))
    (folder / "summary.md").write_text("x")
    page = script().page(copy)
    assert "1 held, 30 not run yet" in page
    assert "+7 points with T5-base at 10 tokens" in row(page, 24), "the paper's number"
    assert "+5.1 points" in row(page, 24)
    assert "[residual-table1-small](../results/residual-table1-small/summary.md)" in row(page, 24)
    (folder / "summary.json").write_text(json.dumps({"claims": [{**claim, "claim": 99}]}))
    with pytest.raises(SystemExit, match="states claim 99"):
        script().page(copy)


def report(root: Path, recipe: str, number: int, verdict: str) -> None:
    """A report with a verdict on one claim."""
    shutil.copy(ROOT / "recipes" / f"{recipe}.yaml", root / "recipes")
    folder = root / "results" / recipe
    folder.mkdir(parents=True)
    part = {"verdict": verdict, "sentence": f"{recipe}: {verdict}"}
    claim = {"claim": number, "text": "t", "paper": "p", "verdict": verdict, "expectations": [part]}
    (folder / "summary.json").write_text(json.dumps({"claims": [claim]}))


def test_a_claim_holds_only_if_all_its_recipes_have_run(copy: Path) -> None:
    """Claim 24 is tested on T5 and on an encoder-only model."""
    shutil.copy(ROOT / "recipes" / "residual-bert-small.yaml", copy / "recipes")
    report(copy, "residual-table1-small", 24, "held")
    assert "| held in part |" in row(script().page(copy), 24)
    assert "../recipes/residual-bert-small.yaml" in row(script().page(copy), 24)
    report(copy, "residual-bert-small", 24, "too weak to tell")
    assert "| too weak to tell |" in row(script().page(copy), 24)


def test_neither_another_model_nor_a_record_stands_in_for_a_recipe_that_has_not_run(
    copy: Path,
) -> None:
    """Claim 14 is tested on two models by the same rule, and claim 19 has a record, too."""
    for name in ("spot-figure3-small", "smop-figure1-small"):
        shutil.copy(ROOT / "recipes" / f"{name}.yaml", copy / "recipes")
    report(copy, "spot-small", 14, "held")
    record = "benchmarks/results/smop-t5-large-h200.json"
    (copy / record).parent.mkdir(parents=True)
    shutil.copy(ROOT / record, copy / record)
    page = script().page(copy)
    for number, recipe in ((14, "spot-figure3-small"), (19, "smop-figure1-small")):
        assert "| held in part |" in row(page, number)
        assert f"../recipes/{recipe}.yaml" in row(page, number)
        report(copy, recipe, number, "held")
        assert "| held |" in row(script().page(copy), number)


def test_reservations_and_later_studies_stand_beside_the_report(copy: Path) -> None:
    later = "[residual-head-cpu](../results/residual-head-cpu/README.md)"
    assert later not in row(script().page(copy), 24), "not without a report"
    report(copy, "residual-table1-small", 24, "did not hold")
    report(copy, "spot-small", 14, "held")
    page = script().page(copy)
    assert later in row(page, 24)
    assert "*Tasks of one cluster mostly share their answer words" in row(page, 14)


@pytest.mark.parametrize(
    ("tiny", "flan", "verdict"),
    [
        ("too weak to tell", "held", "held"),
        ("too weak to tell", "did not hold", "did not hold"),
        ("held", "did not hold", "did not hold"),
        ("too weak to tell", "too weak to tell", "too weak to tell"),
    ],
)
def test_a_study_on_two_models_is_decided_by_the_strong_ones(
    copy: Path, tiny: str, flan: str, verdict: str
) -> None:
    report(copy, "spot-small", 15, tiny)
    report(copy, "spot-figure3-small", 15, flan)
    assert f"| {verdict} |" in row(script().page(copy), 15)


def test_short_runs_count_until_longer_ones_decide(copy: Path) -> None:
    report(copy, "residual-cpu", 24, "held")
    page = script().page(copy)
    assert "1 held in short runs, 30 not run yet" in page
    assert "residual-cpu: held" in row(page, 24)
    assert "../recipes/residual-table1-small.yaml" in row(page, 24), "what is left to run"
    report(copy, "residual-bert-small", 24, "too weak to tell")
    page = script().page(copy)
    assert "| held in short runs |" in row(page, 24)
    assert "residual-bert-small: too weak to tell" in row(page, 24)
    report(copy, "residual-table1-small", 24, "did not hold")
    page = script().page(copy)
    assert "| did not hold |" in row(page, 24)
    assert "residual-cpu" not in row(page, 24)


def test_the_page_says_what_is_not_tested(copy: Path) -> None:
    assert "*Not tested: TextbookQA and BioASQ" in row(script().page(copy), 5)
    assert "Not tested" not in row(script().page(copy), 25)


def test_records_that_are_not_of_a_study_are_judged_by_the_same_rule(copy: Path) -> None:
    (copy / "results" / "objectives").mkdir(parents=True)
    record = json.loads((ROOT / "results" / "objectives" / "objectives.json").read_text())
    for variant, change in (("LM adaptation 100 %", 12), ("span corruption + sentinel", -5)):
        for scores in record["variants"][variant]["tasks"].values():
            moved = {seed: min(99.0, value + change) for seed, value in scores["best"].items()}
            scores["best"] = moved
    (copy / "results" / "objectives" / "objectives.json").write_text(json.dumps(record))
    assert "| held | [objectives]" in row(script().page(copy), 3)
