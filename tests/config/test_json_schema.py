"""JSON Schemas: what is checked in is current, accepts what we accept, and refuses what we
refuse."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from softprompts.config import run_config
from softprompts.config.json_schema import run_schema
from softprompts.config.kinds import FILE, describe_all
from softprompts.errors import UserError
from softprompts.study.config import study_schema

ROOT = Path(__file__).parents[2]
SCHEMAS = {"run": run_schema, "study": study_schema}


def test_the_descriptions_of_kinds_are_current() -> None:
    assert FILE.read_text(encoding="utf-8") == describe_all(), "run `make schema`"


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_checked_in_schemas_are_current(name: str) -> None:
    path = ROOT / "docs" / "schema" / f"{name}.schema.json"
    assert json.loads(path.read_text(encoding="utf-8")) == SCHEMAS[name](), "run `make schema`"
    jsonschema.Draft202012Validator.check_schema(SCHEMAS[name]())


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda p: p.name)
def test_every_recipe_fits_the_study_schema(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), study_schema())


def test_a_whole_config_fits_the_run_schema() -> None:
    for preset in ("mixture", "residual", "prompt-design"):
        jsonschema.validate(run_config({"preset": preset}).plain(), run_schema())


GOOD: list[dict[str, Any]] = [
    {"seed": [0, 1], "tuning": {"lr": "0.1,0.3"}},
    {"prompt": {"shape": "residual", "route": {"kind": "single"}}},
    {"tuning": {"optimizer": {"kind": "adafactor", "decay": 0.9}, "clip": None}},
    {"preset": ["residual", "smop"]},
    {"task": {"task": ["trec", {"name": "mine", "train": "a.csv", "label": "b"}]}},
    {"task": {"train": ["a.csv", "b.csv"]}},
]
BAD: list[dict[str, Any]] = [
    {"nope": 1},
    {"tuning": {"lr": -1}},
    {"tuning": {"steps": 0}},
    {"prompt": {"shape": {"kind": "residual", "width": 3}}},
    {"prompt": {"start": {"kind": "text"}}},
    {"preset": "lora"},
    {"tuning": {"schedule": "step"}},
]


@pytest.mark.parametrize("settings", GOOD, ids=str)
def test_lists_names_and_mappings_are_accepted(settings: dict[str, Any]) -> None:
    jsonschema.validate(settings, run_schema())


@pytest.mark.parametrize("settings", BAD, ids=str)
def test_what_a_run_refuses_the_schema_refuses(settings: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        run_config(settings)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(settings, run_schema())
