"""Recipes: one file per table or figure and scale; every trial runs, and every claim has a test."""

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from softprompts.analysis.folder_report import report
from softprompts.analysis.study_explain import explain_study, unexplained
from softprompts.analysis.study_report import write_study_report
from softprompts.artifacts.study_folder import StudyFolder
from softprompts.study.checks import check_data
from softprompts.study.claims import EXPLAINED, read_claims
from softprompts.study.config import StudyConfig, check_study, read_study
from softprompts.study.plan import outline, plan
from softprompts.study.reuse import same_run
from softprompts.study.study import Study

from ..conftest import DATA

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
SMOKE, SMALL, PAPER = (
    [path for path in RECIPES if path.stem.endswith("-smoke")],
    [path for path in RECIPES if path.stem.endswith("-small")],
    [path for path in RECIPES if not path.stem.endswith(("-smoke", "-small", "-cpu"))],
)
CPU = [path for path in RECIPES if path.stem.endswith("-cpu")]
LISTED: dict[int, Any] = yaml.safe_load((ROOT / "docs" / "claims.yaml").read_text())["claims"]
NO_CLAIM = {
    *("lester-figure2", "decoder-methods"),
    *("residual-head-cpu", "smop-router-cpu", "smop-noise-cpu"),
}
"""The first shows how prompts are served; no paper has decoder-only models; the last ask why a
claim did not hold."""


def base(path: Path) -> str:
    """The table or figure; SPoT's Fig. 3, 4, 5 and Table 3 are of one study."""
    name = path.stem.removesuffix("-smoke").removesuffix("-small")
    return "spot" if name in ("spot", "spot-paper", "spot-figure3") else name


@lru_cache
def planned(name: str) -> tuple[StudyConfig, dict[str, Any]]:
    """A recipe, and what it would run."""
    study = read_study(ROOT / "recipes" / f"{name}.yaml")
    return study, outline(plan(study), read_claims(study.claims))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_states_its_claims_and_can_be_planned(path: Path) -> None:
    study, found = planned(path.stem)
    check_study(study)
    assert (study.name, bool(study.about)) == (path.stem, True)
    claims = read_claims(study.claims)
    assert bool(claims) != (base(path) in NO_CLAIM)
    assert {claim.claim for claim in claims} <= set(LISTED)
    assert found["cells"] > 0
    assert all(claim["rules"] for claim in found["claims"])


def test_every_table_and_figure_has_three_scales() -> None:
    scales = [{base(path) for path in part} for part in (SMOKE, SMALL, PAPER)]
    assert scales[0] == scales[1] == scales[2]
    assert len(scales[0]) == 23


def test_every_claim_has_a_small_recipe_or_a_record() -> None:
    stated = {claim["claim"] for path in SMALL for claim in read_study(path).claims}
    recorded = {number for number, claim in LISTED.items() if claim.get("records")}
    assert stated | recorded == set(LISTED) == set(range(1, 32))


def test_trials_and_small_recipes_test_the_same_claims() -> None:
    def numbers(paths: list[Path]) -> dict[str, set[int]]:
        found: dict[str, set[int]] = {}
        for path in paths:
            claims = {claim["claim"] for claim in read_study(path).claims}
            found.setdefault(base(path), set()).update(claims)
        return found

    small, paper = numbers(SMALL), numbers(PAPER)
    assert small == paper
    assert all(claims <= small[name] for name, claims in numbers(SMOKE).items())


@pytest.mark.parametrize("path", CPU, ids=lambda path: path.stem)
def test_recipes_for_two_cores_judge_claims_as_the_small_ones_do(path: Path) -> None:
    rules: dict[int, set[str]] = {}
    for small in SMALL:
        for claim in planned(small.stem)[1]["claims"]:
            limits = (rule.partition(": ")[2] for rule in claim["rules"])
            rules.setdefault(claim["claim"], set()).update(limits)
    for claim in planned(path.stem)[1]["claims"]:
        limits = {rule.partition(": ")[2] for rule in claim["rules"]}
        assert limits <= rules[claim["claim"]]


def test_small_recipes_choose_learning_rates_where_they_compare_methods() -> None:
    unchosen = {
        base(path) for path in SMALL if not any(grid.choose for _, grid in read_study(path).grids())
    }
    compared = {"residual-table1", "smop-table1", "smop-table3", "lester-table2", "residual-length"}
    compared |= {"lester-figure1", "spot-figure1"}
    assert not compared & unchosen


def test_the_page_lists_the_recipes_with_their_cells_and_minutes() -> None:
    lines = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8").splitlines()
    columns = [[c.strip() for c in line.strip("|").split("|")] for line in lines if line[:1] == "|"]
    rows = {cells[0].split("`")[1]: cells for cells in columns if cells[0].startswith("`")}
    for path in SMALL:
        name = path.stem.removesuffix("-small")
        scales = [f"{name}-smoke", f"{name}-small", name]
        if name == "spot-figure3":
            name, scales = "spot-smoke", ["spot-smoke", "spot-figure3-small", "spot-paper"]
        if name == "spot":
            continue  # the same on t5-tiny
        studies, found = zip(*map(planned, scales), strict=True)
        assert rows[name][3] == ", ".join(str(part["cells"]) for part in found)
        rate = 2300 if name == "decoder-methods" else 6900
        minutes, models = max(1, round(found[1]["rows"] / rate / 60)), found[1]["whole_models"]
        assert rows[name][4] == f"{minutes}" + (f" + {models} models" if models else "")
        numbers = {claim["claim"] for claim in studies[1].claims}
        listed = rows[name][2].replace("13 to 17", "13, 14, 15, 16, 17")
        assert {int(number) for number in listed.split(", ") if number} == numbers


@pytest.mark.parametrize(
    ("first", "second", "cells"),
    [
        ("residual-length", "residual-table1", 160),
        ("smop-table1", "smop-table3", 80),
        ("lester-section7", "lester-figure3b", 80),
        ("lester-figure1", "lester-table3", 40),
        ("lester-figure3a", "lester-table3", 40),
    ],
)
def test_recipes_share_as_many_cells_as_the_page_says(first: str, second: str, cells: int) -> None:
    def keys(name: str) -> set[str | None]:
        plans = {cell.name: cell.plain() for cell in plan(planned(f"{name}-small")[0])}
        return {same_run(cell, plans) for cell in plans}

    assert len(keys(first) & keys(second)) == cells


@pytest.mark.skipif(not DATA.exists(), reason="the tasks' data is not here")
@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_small_recipes_need_only_the_data_at_hand(path: Path, tmp_path: Path) -> None:
    cells = plan(read_study(path), None, str(DATA))
    few_shot = any(cell.config.task.shots for cell in cells)  # which reads all rows
    check_data(cells[:1] if few_shot else cells, StudyFolder(tmp_path))


@pytest.mark.parametrize("path", SMOKE, ids=lambda path: path.stem)
def test_every_trial_runs_and_is_judged(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)  # hundreds of small files
    study = Study.load(path)
    status = study.run(output=tmp_path, device="cpu", verbose=False)
    assert (status["done"], status["failed"]) == (status["total"], {})
    claims = read_claims(study.config.claims)
    takes = {selector.take for c in claims for part in c.expect for _, selector in part.terms}
    if takes & set(EXPLAINED):
        explain_study(study, unexplained(study), "cpu")
    summary = report(tmp_path)
    assert summary["runs"] == sum("choice" not in cell.stage for cell in study.cells())
    transfers = base(path) == "spot"  # which needs `study report`, too
    verdicts = {claim["claim"]: claim["verdict"] for claim in summary["claims"]}
    assert list(verdicts) == [claim.claim for claim in claims]
    assert transfers or "not run yet" not in verdicts.values()
    assert Path(summary["files"][0]).stat().st_size > 5000
    if base(path) == "lester-figure1":  # whose hand-written prompts have no vectors
        assert write_study_report(study, tmp_path / "report")["done"] == status["done"]
