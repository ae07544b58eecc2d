"""A library of four prompts on a tiny random model."""

import sys
from pathlib import Path

import pytest

from softprompts.backbone import Backbone
from softprompts.config import expand_lists
from softprompts.library.library import Library
from softprompts.transfer.transfer import run_transfer
from softprompts.tuning.tune import tune_cohort

from .runs import FEW, SETTINGS, SOURCES, sensitive_model


@pytest.fixture(scope="session")
def backbone() -> Backbone:
    return sensitive_model()


@pytest.fixture(scope="session")
def library(backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four prompts of helpdesk tasks on the tiny random model."""
    runs, folder = tmp_path_factory.mktemp("runs"), tmp_path_factory.mktemp("library")
    members = expand_lists(
        SETTINGS,
        {
            "task": {"task": [f"helpdesk/{name}" for name in SOURCES], **FEW},
            "tuning": {"lr": 3},
        },
    )
    tune_cohort(members, runs, backbone=backbone)
    for member, name in zip(members, SOURCES, strict=True):
        Library(folder).add(runs / member.name, name)
    return folder


@pytest.fixture
def loads_backbone(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transfers load the tiny random model."""
    module = sys.modules[run_transfer.__module__]
    monkeypatch.setattr(module, "load_backbone", lambda *settings: backbone)
