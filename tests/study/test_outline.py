"""What a study would run, and the rules of its claims, before anything is run."""

import json
from pathlib import Path

import pytest

from softprompts.cli import main
from softprompts.study.claims import read_claims
from softprompts.study.config import StudyConfig, read_study
from softprompts.study.plan import outline, plan

ROOT = Path(__file__).parents[2]


def test_cells_steps_and_rows_by_stage() -> None:
    study = StudyConfig.of(
        {
            "targets": ["helpdesk/intent", "helpdesk/area"],
            "seeds": [0, 1, 2],
            "settings": {"steps": 10, "batch_size": 4, "accumulate": 2},
            "variants": {
                "prompt": {"choose": {"lr": [0.1, 1.0]}},
                "model": {"settings": {"preset": "model-tuning", "steps": 5}},
                "written": {"settings": {"preset": "prompt-design"}},
            },
        }
    )
    found = outline(plan(study), [])
    assert found["stages"]["choice"] == {"cells": 4, "whole_models": 0, "steps": 40, "rows": 320}
    assert (found["cells"], found["whole_models"]) == (4 + 3 * 6, 6)
    assert found["steps"] == 40 + 60 + 30, "written prompts are not trained"
    assert found["rows"] == 8 * found["steps"]
    assert found["tasks"] == ["helpdesk/area", "helpdesk/intent"]


def test_epochs_depend_on_the_data() -> None:
    study = StudyConfig.of({"targets": ["helpdesk/intent"], "settings": {"epochs": 2}})
    found = outline(plan(study), [])
    assert (found["cells"], found["steps"], found["rows"]) == (1, None, None)


def test_every_claim_of_a_recipe_has_its_rule_in_words() -> None:
    study = read_study(ROOT / "recipes" / "lester-figure1-small.yaml")
    four, nine = outline(plan(study), read_claims(study.claims))["claims"]
    assert four["rules"][0].endswith(
        "holds if the interval is above 0 and p < 0.05, fails if it is below 1 points"
    )
    margin = "google/flan-t5-small prompt-design by 5: holds if the interval is above 5"
    assert f"better than {margin}" in nine["rules"][0]
    study = read_study(ROOT / "recipes" / "spot-smoke.yaml")
    rules = [rule for c in outline([], read_claims(study.claims))["claims"] for rule in c["rules"]]
    assert "pairs: {helps: 10}" in rules
    assert "retrieval: {k: 2, oracle: 80}" in rules
    assert (
        "average 3 no worse than nearest: holds if the interval is above -1, "
        "fails if it is below -1 points"
    ) in rules


def test_the_rule_of_a_contrast_shows_its_weights() -> None:
    expect = [{"contrast": [[-1, "a"], [0.5, "b"], [2, "c"], [-0.5, 7]]}]
    (claim,) = read_claims([{"claim": 1, "text": "t", "paper": "p", "expect": expect}])
    assert claim.expect[0].name == "- a + 0.5 b + 2 c - 0.5 7:"


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(ROOT / "recipes" / "lester-table3-small.yaml")
    assert main(["study", "plan", recipe, "--rows-per-second", "1000"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[2].split() == ["all", "80", "cells", "80,000", "steps", "2,560,000", "rows"]
    assert shown[3] == "about 42 min 40 s of training"
    assert shown[4].startswith("claim 6: A majority vote of five prompts")
    assert main(["study", "plan", recipe, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["cells"], printed["seconds"]) == (80, None)
    assert main(["study", "plan", "nowhere.yaml"]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(("paper", "shown"), [(True, "yes"), (False, "no"), (84.9, "84.9")])
def test_yes_and_no_are_words_of_a_claim(paper: object, shown: str) -> None:
    """YAML reads them as true and false."""
    expect = [{"better": {"source": "boolq"}, "than": 0}]
    (claim,) = read_claims([{"claim": 1, "text": "t", "paper": paper, "expect": expect}])
    assert claim.paper == shown
