"""Which prompts of a library can start a target, and the reasons why others cannot."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from softprompts.backbone import Backbone
from softprompts.cli.transfer_summary import describe_choice
from softprompts.config import expand_lists, run_config
from softprompts.errors import UserError
from softprompts.files.tensors import write_tensors
from softprompts.library.library import Library
from softprompts.transfer.settings import Request
from softprompts.transfer.sources import _summarized
from softprompts.transfer.transfer import run_transfer
from softprompts.tuning.tune import tune_cohort, tune_config

from ..models import random_t5
from .runs import FEW, SETTINGS, SOURCES, target, vectors


def test_the_targets_own_task_is_left_out_unless_kept(
    library: Path, backbone: Backbone, tmp_path: Path
) -> None:
    record = run_transfer(
        Request(target(), library, "all"), tmp_path / "without", backbone=backbone
    )
    assert [prompt["name"] for prompt in record["left_out"]] == ["urgency"]
    assert (
        "left out: urgency: it was tuned on the target's own task (--keep-same-task keeps it)"
        in describe_choice(record)
    )
    record["left_out"].append(record["left_out"][0] | {"name": "other"})
    assert "left out: urgency, other: each was tuned on the" in describe_choice(record)
    record = run_transfer(
        Request(target(), library, "all", keep_same_task=True), tmp_path / "with", backbone=backbone
    )
    assert (record["left_out"], len(record["results"])) == ([], 4)


def test_prompts_that_cannot_start_the_target_are_left_out_with_a_reason(
    library: Path, backbone: Backbone, tmp_path: Path
) -> None:
    mixed = target(prompt={"count": 2, "route": "soft"})
    runs = tmp_path / "runs"
    four = expand_lists(
        {
            **SETTINGS,
            "prompt": {"length": 3, "count": 4, "route": "soft"},
            "task": {"task": ["helpdesk/sentiment"], **FEW},
        }
    )
    tune_cohort(four, runs, backbone=backbone)
    other, newer = random_t5(d_model=40), random_t5(d_model=40)
    other.name = "other-t5"
    tune_cohort(
        expand_lists(SETTINGS, {"task": {"task": ["helpdesk/area"], **FEW}}), runs, backbone=other
    )
    tune_cohort(
        expand_lists(SETTINGS, {"task": {"task": ["helpdesk/register"], **FEW}}),
        runs,
        backbone=newer,
    )
    copied = tmp_path / "library"
    Library(copied).add(runs / "task=helpdesk-sentiment", "sentiment")
    Library(copied).add(runs / "task=helpdesk-area", "elsewhere")
    Library(copied).add(runs / "task=helpdesk-register", "renewed")
    reasons = [
        "elsewhere.* was tuned on a different backbone",
        "renewed.* was tuned on another version",
        "sentiment.* is a mixture of 4",
    ]
    with pytest.raises(
        UserError,
        match="can be a source for helpdesk/urgency: "
        + ".*; ".join(rf"1 \({why}" for why in reasons),
    ):
        run_transfer(Request(mixed, copied, "all"), tmp_path / "none", backbone=backbone)
    Library(copied).add(library / "intent", "intent")
    record = run_transfer(Request(mixed, copied, "all"), tmp_path / "out", backbone=backbone)
    assert record["chosen"] == ["intent"]
    reasons = {prompt["name"]: prompt["why"] for prompt in record["left_out"]}
    assert reasons["sentiment"] == "it is a mixture of 4 prompts and cannot start one of 2"
    assert "different backbone" in reasons["elsewhere"]
    assert reasons["renewed"].startswith(
        f"it was tuned on another version of {backbone.name}; map it with `softprompts prompts"
    )
    for name, error in (
        ("sentiment", "cannot start one of 2"),
        ("elsewhere", "another model"),
        ("renewed", "another version of"),
    ):
        with pytest.raises(UserError, match=error):
            run_transfer(
                Request(mixed, copied, "named", source=name), tmp_path / "none", backbone=backbone
            )
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("strategy", "part"), [("best", "prompt"), ("best", "embedding"), ("all", "prompt")]
)
def test_a_prompt_whose_vectors_are_corrupted_is_left_out_and_the_next_is_taken(
    library: Path, backbone: Backbone, tmp_path: Path, strategy: Any, part: str
) -> None:
    copied = tmp_path / "library"
    shutil.copytree(library, copied)
    first = run_transfer(Request(target(), copied, k=1), tmp_path / "before", backbone=backbone)
    corrupted = copied / first["chosen"][0] / f"{part}.safetensors"
    corrupted.write_bytes(corrupted.read_bytes()[:-8])
    record = run_transfer(
        Request(target(), copied, strategy, k=1), tmp_path / "after", backbone=backbone
    )
    reasons = {row["name"]: row["why"] for row in record["left_out"]}
    assert "is corrupted" in reasons[first["chosen"][0]]
    assert set(record["chosen"]) == (
        {first["ranked"][1]["name"]}
        if strategy == "best"
        else set(SOURCES[:3]) - set(first["chosen"])
    )
    assert first["chosen"][0] not in [row["name"] for row in record["ranked"]]
    for name in SOURCES:
        if name not in (corrupted.parent.name, "urgency"):
            shutil.rmtree(copied / name)
    with pytest.raises(UserError, match=r"No prompt of .* is corrupted"):
        run_transfer(Request(target(), copied, k=1), tmp_path / "none", backbone=backbone)
    assert not (tmp_path / "none").exists(), "nothing is written before the check"


@pytest.mark.parametrize("strategy", ["best", "average", "all"])
@pytest.mark.parametrize("wrong", ["nan", "narrow"])
def test_unusable_vectors_are_reported_before_a_probe_is_trained(
    library: Path, backbone: Backbone, tmp_path: Path, strategy: Any, wrong: str
) -> None:
    copied = tmp_path / "library"
    shutil.copytree(library, copied)
    for name in SOURCES[1:]:
        shutil.rmtree(copied / name)
    saved = vectors(copied / SOURCES[0])
    write_tensors(
        copied / SOURCES[0] / "prompt.safetensors",
        {"vectors": saved * torch.nan if wrong == "nan" else saved[:, :, :7]},
    )
    with pytest.raises(
        UserError,
        match="numbers that are not finite" if wrong == "nan" else "does not match its card",
    ):
        run_transfer(Request(target(), copied, strategy, k=1), tmp_path / "none", backbone=backbone)
    assert not (tmp_path / "none").exists()


def test_a_run_without_a_prompt_is_not_a_source(
    library: Path, backbone: Backbone, tmp_path: Path
) -> None:
    design = tune_config(
        run_config({"preset": "prompt-design"}, {"task": {"task": "helpdesk/intent", **FEW}}),
        tmp_path / "design",
        backbone=backbone,
    )
    assert design.prompt.config.length == 0
    with pytest.raises(
        UserError, match="design has no prompt vectors, because its run tuned the model or nothing"
    ):
        run_transfer(
            Request(target(), library, "named", source=str(tmp_path / "design")),
            tmp_path / "none",
            backbone=backbone,
        )
    copied = tmp_path / "library"
    shutil.copytree(library, copied)
    shutil.copytree(tmp_path / "design", copied / "design")
    for strategy in ("all", "best"):
        record = run_transfer(
            Request(target(), copied, strategy, k=1, probe_steps=1),
            tmp_path / strategy,
            backbone=backbone,
        )
        assert (
            "no prompt vectors" in {row["name"]: row["why"] for row in record["left_out"]}["design"]
        )
        assert "design" not in record["chosen"]


def test_reasons_are_counted() -> None:
    reasons = (
        ["it is small"] * 5
        + ["it is old"] * 2
        + ["a/x is corrupted", "a/y is corrupted", "a/z is corrupted"]
    )
    summary = _summarized([{"name": f"p{i}", "why": why} for i, why in enumerate(reasons)])
    assert summary == (
        "5 (p0, p1, p2 and 2 more), because each is small; 2 (p5, p6), because each is old; "
        "1 (p7), because a/x is corrupted; 2 more for other reasons"
    )
