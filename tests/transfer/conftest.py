"""A library of four prompts on a tiny random model."""

from pathlib import Path

import pytest

from softprompts.backbone import Backbone
from softprompts.config.products import run_configs
from softprompts.library.library import Library
from softprompts.tuning.api import tune_cohort

from . import made


@pytest.fixture(scope="session")
def loud() -> Backbone:
    return made.model()


@pytest.fixture(scope="session")
def library(loud: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four prompts of helpdesk tasks on the tiny random model."""
    runs, folder = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("library")
    members = run_configs(
        made.SETTINGS,
        {
            "task": {"task": [f"helpdesk/{name}" for name in made.SOURCES], **made.FEW},
            "tuning": {"lr": 3},
        },
    )
    tune_cohort(members, runs, backbone=loud)
    for member, name in zip(members, made.SOURCES, strict=True):
        Library(folder).add(runs / member.name, name)
    return folder
