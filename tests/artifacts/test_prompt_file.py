"""Prompts on disk: complete and of the right backbone, or a clear error."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from softprompts.artifacts.card import BackboneCard
from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone
from softprompts.config import Choice, PromptConfig
from softprompts.errors import UserError
from softprompts.files.names import safe_name
from softprompts.files.tensors import read_tensors, write_tensors
from softprompts.prompt import Material
from softprompts.prompt.prompt import build_prompt, folded_prompt

from ..cards import card
from ..models import random_model


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "p")
    folder.save(folded_prompt(torch.randn(1, 3, 8)), card())
    return folder


def test_only_vectors_are_saved(folder: RunFolder) -> None:
    tensors, _ = read_tensors(folder.path / "prompt.safetensors")
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {"vectors": (1, 3, 8)}
    names = sorted(path.name for path in folder.path.iterdir())
    assert names == ["prompt.json", "prompt.safetensors"], "no temporary file is left"


def test_a_prompt_of_another_backbone_is_refused(folder: RunFolder, t5: Backbone) -> None:
    with pytest.raises(UserError, match=r"was tuned on some-t5 .*; use that model, or tune"):
        folder.load(t5)
    folder.save(folded_prompt(torch.randn(1, 3, 32)), card(t5))
    folder.load(t5)


def test_a_prompt_of_another_version_of_the_model_can_be_recycled(
    folder: RunFolder, t5: Backbone
) -> None:
    old = BackboneCard(name=t5.name, fingerprint="abc")
    folder.save(folded_prompt(torch.randn(1, 3, 8)), card(backbone=old))
    with pytest.raises(UserError, match=f"another version of {t5.name} .* prompts recycle`"):
        folder.load(t5)


def test_a_truncated_file_is_refused(folder: RunFolder) -> None:
    path = folder.path / "prompt.safetensors"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="corrupted"):
        folder.load()


def test_numbers_that_are_not_finite_are_refused(folder: RunFolder) -> None:
    path = folder.path / "prompt.safetensors"
    write_tensors(path, {"vectors": torch.full((1, 3, 8), float("nan"))})
    with pytest.raises(UserError, match="not finite"):
        folder.load()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"length": 4}, "does not match its card"),
        ({"count": 2, "route": "soft"}, "does not match its card"),
        ({"count": 2}, "prompt .* cannot be read .* need a route"),
        ({"route": "no such"}, "There is no route .*; if a plugin registers it, name the plugin"),
    ],
)
def test_a_card_that_does_not_match_is_refused(
    folder: RunFolder, change: dict[str, Any], why: str
) -> None:
    path = folder.path / "prompt.json"
    data = json.loads(path.read_text())
    data["prompt"] |= change
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match=why):
        folder.load()


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"router": torch.zeros(1, 8)},
        {"router": torch.zeros(2, 9)},
        {"router.weight": torch.zeros(3, 8)},
        {"router": torch.zeros(2, 8), "head.weight": torch.zeros(2, 8)},
    ],
    ids=["none", "one row", "wide", "long", "with a head"],
)
def test_a_mixture_needs_its_router_and_no_more(
    tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    folder = RunFolder(tmp_path)
    mixture = PromptConfig(length=3, count=2, route=Choice("soft"))
    router = {"weight": torch.randn(2, 8)}
    folder.save(folded_prompt(torch.randn(2, 3, 8), router, mixture), card())
    loaded, _ = folder.load()
    assert torch.equal(loaded.router_tensors()["weight"], router["weight"])
    write_tensors(tmp_path / "prompt.safetensors", {"vectors": torch.zeros(2, 3, 8), **tensors})
    with pytest.raises(UserError, match="does not match its card"):
        folder.load()


def test_a_head_is_saved_with_its_prompt(tmp_path: Path) -> None:
    backbone = random_model("minilm")
    config = PromptConfig(length=3, head=Choice("linear"))
    material = Material(backbone, ["a", "b"], None, backbone.feature_size)
    prompt = build_prompt(config, material, 0)
    RunFolder(tmp_path).save(prompt, card(backbone))
    loaded, _ = RunFolder(tmp_path).load(backbone)
    assert prompt.head is not None
    assert loaded.head is not None
    assert torch.equal(loaded.head.weight, prompt.head.weight)


def test_a_folder_without_a_card_is_not_a_prompt(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no prompt\.json"):
        RunFolder(tmp_path).load()
    with pytest.raises(UserError, match="it is not a folder"):
        RunFolder(tmp_path / "nowhere").load()


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "...", "", "héllo wörld", ".hidden"])
def test_a_name_never_leaves_its_folder(name: str) -> None:
    safe = safe_name(name)
    assert safe
    assert "/" not in safe
    assert not safe.startswith(".")


def test_a_failed_write_leaves_the_old_file(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder.path / "prompt.safetensors"
    before = path.read_bytes()

    def broken(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("softprompts.files.tensors.save_file", broken)
    with pytest.raises(UserError, match="disk full"):
        folder.save(folded_prompt(torch.randn(1, 5, 8)), card())
    assert path.read_bytes() == before
    assert len(list(folder.path.iterdir())) == 2


def test_the_network_of_a_shape_is_folded_away(t5: Backbone, tmp_path: Path) -> None:
    prompt = build_prompt(PromptConfig(length=10, shape=Choice("residual")), Material(t5), 0)
    RunFolder(tmp_path).save(prompt, card(t5))
    assert (tmp_path / "prompt.safetensors").stat().st_size < 10 * 32 * 4 + 500
