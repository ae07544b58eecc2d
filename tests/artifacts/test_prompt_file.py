"""Prompts on disk: whole, of the right backbone, or refused in one sentence."""

import json
from pathlib import Path

import pytest
import torch

from softprompts.artifacts.prompt_file import load_prompt, save_prompt
from softprompts.backbone import Backbone
from softprompts.errors import UserError
from softprompts.files.names import safe_name
from softprompts.files.tensors import read_tensors, write_tensors
from softprompts.prompt.prompt import folded_prompt

CARD = {"backbone": {"name": "some-t5", "fingerprint": "abc"}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_prompt(tmp_path / "p", folded_prompt(torch.randn(1, 3, 8)), CARD)
    return tmp_path / "p"


def test_what_is_saved_is_plain_and_small(folder: Path) -> None:
    tensors, _ = read_tensors(folder / "prompt.safetensors")
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {"vectors": (1, 3, 8)}
    assert sorted(p.name for p in folder.iterdir()) == ["prompt.json", "prompt.safetensors"], (
        "no temporary file is left"
    )


def test_another_backbones_prompt_is_refused(folder: Path, t5: Backbone) -> None:
    with pytest.raises(
        UserError,
        match="was tuned on some-t5 and means nothing to another model; load that one with --model",
    ):
        load_prompt(folder, t5)
    save_prompt(
        folder,
        folded_prompt(torch.randn(1, 3, 8)),
        {"backbone": {"name": t5.name, "fingerprint": t5.fingerprint}},
    )
    load_prompt(folder, t5)


def test_a_prompt_of_another_version_of_the_same_model_can_be_recycled(
    folder: Path, t5: Backbone
) -> None:
    save_prompt(
        folder, folded_prompt(torch.randn(1, 3, 8)), {"backbone": {"name": t5.name, "fingerprint": "abc"}}
    )
    with pytest.raises(
        UserError,
        match=f"on another version of {t5.name} .* recycle {folder} --from-model OLD --model {t5.name}",
    ):
        load_prompt(folder, t5)


def test_a_truncated_file_is_refused(folder: Path) -> None:
    path = folder / "prompt.safetensors"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="corrupted"):
        load_prompt(folder)


def test_numbers_that_are_not_finite_are_refused(folder: Path) -> None:
    write_tensors(folder / "prompt.safetensors", {"vectors": torch.full((1, 3, 8), float("nan"))})
    with pytest.raises(UserError, match="not finite"):
        load_prompt(folder)


@pytest.mark.parametrize("change", [{"length": 4}, {"count": 2}, {"route": "no such"}])
def test_a_card_that_does_not_fit_is_refused(folder: Path, change: dict[str, object]) -> None:
    card = json.loads((folder / "prompt.json").read_text())
    card["prompt"] |= change
    (folder / "prompt.json").write_text(json.dumps(card))
    with pytest.raises(UserError):
        load_prompt(folder)


def test_a_folder_without_a_card_is_no_prompt(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no prompt\.json"):
        load_prompt(tmp_path)
    with pytest.raises(UserError, match="it is no folder"):
        load_prompt(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "...", "", "héllo wörld", ".hidden"])
def test_a_name_never_leaves_its_folder(name: str) -> None:
    safe = safe_name(name)
    assert safe
    assert "/" not in safe
    assert not safe.startswith(".")


def test_a_write_that_fails_leaves_the_old_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (folder / "prompt.safetensors").read_bytes()

    def broken(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("safetensors.torch.save_file", broken)
    with pytest.raises(UserError, match="disk full"):
        save_prompt(folder, folded_prompt(torch.randn(1, 5, 8)), CARD)
    assert (folder / "prompt.safetensors").read_bytes() == before
    assert len(list(folder.iterdir())) == 2


def test_folding_a_t5_prompt_keeps_kilobytes(t5: Backbone, tmp_path: Path) -> None:
    from softprompts.config.choice import Choice
    from softprompts.prompt import Material
    from softprompts.config.prompt import PromptConfig
    from softprompts.prompt.prompt import build_prompt

    prompt = build_prompt(PromptConfig(10, shape=Choice("residual")), Material(t5), 0)
    save_prompt(tmp_path, prompt, CARD)
    assert (tmp_path / "prompt.safetensors").stat().st_size < 10 * 32 * 4 + 500, (
        "the network is folded away"
    )
