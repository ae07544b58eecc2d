"""Pretraining runs on a CPU: the loss falls, an interrupted run ends the same, nothing is lost."""

import json
import math
import random
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from softprompts.backbone import load_backbone
from softprompts.backbone.load import BUNDLED_MODELS
from softprompts.errors import UserError
from softprompts.pretraining import train
from softprompts.pretraining.config import PretrainConfig
from softprompts.pretraining.run import Pretraining
from softprompts.pretraining.train import pretrain

from .conftest import SMALL

MakeConfig = Callable[..., PretrainConfig]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same_weights(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if "second" not in name} for line in lines]


def test_the_loss_falls(make_config: MakeConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    card = pretrain(make_config(steps=80, batch_tokens=1600, lr=0.02, log_every=20), run)
    curve = [line["loss"] for line in metrics(run) if "loss" in line]
    assert curve[-1]["all"] < curve[0]["all"] - 0.5
    assert all(curve[-1][name] < curve[0][name] for name in ("span", "prefix", "tasks"))
    assert card["losses"]["held_out"]["all"] < curve[0]["all"] - 0.5
    assert card["losses"]["blind"].keys() == card["losses"]["held_out"].keys()
    assert card["tokens"] == 80 * make_config(batch_tokens=1600).step_tokens
    assert json.loads((run / "training.json").read_text()) == card
    assert card["data"]["text"]["documents"] == 60
    assert card["data"]["tasks"]["examples"] == 40
    assert not (run / "checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {
            "optimizer": "adamw",
            "dropout": 0.1,
            "microbatches": 2,
            "tie": False,
            "objectives": {"span": 0.5, "tasks": 0.5},
        },
    ],
)
def test_a_run_that_pauses_after_every_step_ends_the_same(
    make_config: MakeConfig, tmp_path: Path, settings: dict[str, Any]
) -> None:
    unpaused, paused = tmp_path / "unpaused", tmp_path / "paused"
    pretrain(make_config(**settings), unpaused)
    config = make_config(**settings, pause_after=1e-9)
    card = pretrain(config, paused)
    for _ in range(5):
        assert not card.get("finished")
        assert not (paused / "model.safetensors").exists()
        card = pretrain(config, paused)
    assert card["finished"]
    assert same_weights(unpaused, paused)
    assert metrics(unpaused) == metrics(paused)


def test_a_killed_run_resumes(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unkilled, killed = tmp_path / "unkilled", tmp_path / "killed"
    # A new tokenizer, which must be reused when the run resumes.
    config = make_config(checkpoint_every=2, tokenizer=None, vocabulary=150, sentinels=9)
    advance = Pretraining.advance

    def fail_at_5(run: Pretraining) -> torch.Tensor:
        if run.step == 5:
            raise MemoryError
        return advance(run)

    monkeypatch.setattr(Pretraining, "advance", fail_at_5)
    with pytest.raises(MemoryError):
        pretrain(config, killed)
    shutil.copytree(killed, unkilled)
    (unkilled / "checkpoint.safetensors").unlink()
    monkeypatch.setattr(Pretraining, "advance", advance)
    monkeypatch.setattr(train, "train_tokenizer", None)
    pretrain(config, killed)
    reused = make_config(checkpoint_every=2, vocabulary=150, sentinels=9, tokenizer=str(killed))
    pretrain(reused, unkilled)
    assert same_weights(unkilled, killed)
    assert metrics(unkilled) == metrics(killed)


def test_microbatches_only_save_memory(make_config: MakeConfig, tmp_path: Path) -> None:
    for count in (1, 5):
        config = make_config(microbatches=count, batch_tokens=300, optimizer="adamw", steps=1)
        pretrain(config, tmp_path / str(count))
    one, five = (weights(tmp_path / count) for count in ("1", "5"))
    assert all((one[name] - five[name]).abs().max() < 1e-6 for name in one)
    losses = [metrics(tmp_path / count)[0]["loss"] for count in ("1", "5")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


@pytest.mark.parametrize("tie", [True, False])
def test_the_folder_is_a_backbone(
    make_config: MakeConfig, tmp_path: Path, tie: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Pretraining] = []
    loop = train._loop
    monkeypatch.setattr(train, "_loop", lambda run, *rest: runs.append(run) or loop(run, *rest))
    card = pretrain(make_config(tie=tie), tmp_path / "run")
    backbone = load_backbone(str(tmp_path / "run"), device="cpu", dtype="fp32")
    ids = backbone.tokenizer("the cat sat", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        trained, loaded = (
            model(input_ids=ids, decoder_input_ids=ids).logits
            for model in (runs[0].model.eval(), backbone.model)
        )
    assert torch.allclose(trained, loaded, atol=1e-5)
    assert ("lm_head.weight" in weights(tmp_path / "run")) == (not tie)
    assert trained.shape[-1] % 128 == 0
    assert card["losses"]["held_out"]["all"] < 2 * math.log(trained.shape[-1])


def test_the_blind_loss_shows_whether_a_model_uses_its_input(tmp_path: Path) -> None:
    people = ("The farmer", "A young doctor", "My grandmother", "The old captain", "Our teacher")
    actions = ("walked to the river", "bought a red car", "opened the window", "lost a ring")
    times = ("in the morning", "before the war", "after dinner", "last Friday", "on a cold night")
    sentences = [f"{who} {what} {when}." for who, what, when in product(people, actions, times)]
    random.Random(0).shuffle(sentences)
    # Each document repeats one sentence, so a masked span can be read in the rest of the input.
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(" ".join([sentence] * 6) for sentence in sentences))
    common: dict[str, Any] = {
        "text": [str(text)],
        "held_out": 0.2,
        "steps": 1,
        "batch_tokens": 1200,
        "input_length": 64,
        "lr": 1e-9,
        "processes": 1,
        "device": "cpu",
    }
    models: dict[str, dict[str, Any]] = {
        "new": {"tokenizer": str(BUNDLED_MODELS["t5-tiny"]), **SMALL},
        "t5-tiny": {"from_model": "t5-tiny"},
    }
    gaps = {}
    for name, settings in models.items():
        losses = pretrain(PretrainConfig(**common, **settings), tmp_path / name)["losses"]
        gaps[name] = losses["blind"]["span"] - losses["held_out"]["span"]
    assert abs(gaps["new"]) < 0.02
    assert gaps["t5-tiny"] > 1


def test_existing_files_are_not_overwritten(make_config: MakeConfig, tmp_path: Path) -> None:
    run = tmp_path / "run"
    pretrain(make_config(), run)
    with pytest.raises(UserError, match="already holds a model"):
        pretrain(make_config(), run)
    with pytest.raises(UserError, match="starts from"):
        pretrain(make_config(from_model=str(run)), run, overwrite=True)
    impossible = make_config(objectives={"span": 1}, input_length=4000, batch_tokens=10000)
    with pytest.raises(UserError, match="20 sentinels"):
        pretrain(impossible, run, overwrite=True)
    assert (run / "training.json").exists(), "a run that cannot start replaces nothing"
    pretrain(make_config(steps=3), run, overwrite=True)
    assert {line["step"] for line in metrics(run)} == {2, 3}
    (run / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match="not pretrained here"):
        pretrain(make_config(), run, overwrite=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("notes")
    with pytest.raises(UserError, match="holds files that are not a model's"):
        pretrain(make_config(), tmp_path / "other", overwrite=True)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["notes.txt"]


def test_a_run_does_not_resume_with_other_settings_or_data(
    make_config: MakeConfig, tmp_path: Path, text_file: Path
) -> None:
    text, run = tmp_path / "text.txt", tmp_path / "run"
    text.write_text(text_file.read_text())
    pretrain(make_config(text=[str(text)], pause_after=1e-9), run)
    with pytest.raises(UserError, match="other settings"):
        pretrain(make_config(text=[str(text)], lr=0.5), run)
    text.write_text(text_file.read_text() + "\n\nmore")
    with pytest.raises(UserError, match=r"data of the run .* has changed"):
        pretrain(make_config(text=[str(text)]), run)
    (run / "checkpoint.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"checkpoint\.safetensors"):
        pretrain(make_config(text=[str(text)]), run)


def test_an_empty_corpus_is_an_error(make_config: MakeConfig, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    with pytest.raises(UserError, match="hold no text"):
        pretrain(make_config(text=[str(empty)]), tmp_path / "run")
    config = make_config(text=[str(empty)], tasks=[], tokenizer=None, objectives={"span": 1})
    with pytest.raises(UserError, match="no text to train a tokenizer"):
        pretrain(config, tmp_path / "run")
