"""Task embeddings: the prompt at a fixed step is kept beside the final one, whatever happens to the run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone
from softprompts.errors import UserError
from softprompts.files.tensors import read_tensors, write_tensors
from softprompts.tuning import Run
from softprompts.config.run import RunConfig
from softprompts.config.run import run_config
from softprompts.tuning.tune import tune_config
from softprompts.tuning.tuned import load

from ..models import random_model


def config(toy: Path, preset: str = "prompt-tuning", **tuning: Any) -> RunConfig:
    settings = {
        "steps": 8,
        "batch_size": 4,
        "evaluate_every": 4,
        "checkpoint_every": 2,
        "lr": 0.1,
        "warmup": 0,
        **tuning,
    }
    task = {"train": str(toy), "text": "review", "label": "mood"}
    return run_config(
        {
            "preset": preset,
            "task": task,
            "tuning": settings,
            "prompt": {} if preset == "model-tuning" else {"length": 3},
        }
    )


class Look:
    """Keeps the folded prompt of every step, and stops at one as Ctrl-C would."""

    def __init__(self, stop: int = -1, ruin: int = -1) -> None:
        self.stop, self.ruin, self.seen = stop, ruin, dict[int, Tensor]()

    def on_step(self, run: Run) -> None:
        self.seen[run.step] = run.prompt.fold().table.detach().clone()
        if run.step == self.ruin:
            run.prompt.table.data.fill_(float("nan"))
        if run.step == self.stop:
            raise KeyboardInterrupt

    def on_rows_answered(self, run: Run, rows: int) -> None: ...

    def on_evaluation(self, run: Run) -> None: ...


def embedded(folder: Path) -> tuple[Any, Tensor | None]:
    saved = RunFolder(folder)
    return saved.card().plain()["embedding"], saved.embedding()


@pytest.mark.parametrize("preset", ["prompt-tuning", "residual", "smop"])
def test_the_prompt_at_the_step_is_kept(
    t5: Backbone, toy_csv: Path, tmp_path: Path, preset: str
) -> None:
    look = Look()
    tune_config(config(toy_csv, preset, embed_at=3), tmp_path, watcher=look, backbone=t5)
    told, vectors = embedded(tmp_path)
    assert told == {"step": 3}
    assert vectors is not None
    assert torch.equal(vectors, look.seen[3])
    assert not torch.equal(vectors, look.seen[8])


def test_a_shorter_run_keeps_its_last_step_not_its_best(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    look = Look()
    tuned = tune_config(
        config(toy_csv, lr=1e-7), tmp_path, watcher=look, backbone=t5
    )  # no score changes: the first stays best
    told, vectors = embedded(tmp_path)
    assert (told, tuned.card.best_step) == ({"step": 8}, 4)
    assert vectors is not None
    assert torch.equal(vectors, look.seen[8])
    assert torch.equal(tuned.prompt.table, look.seen[4])


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_it_survives_a_stop(t5: Backbone, toy_csv: Path, tmp_path: Path, stop: int) -> None:
    """Stopped before the step, at it, and after it."""
    wanted = config(toy_csv, embed_at=3)
    tune_config(wanted, tmp_path / "whole", backbone=t5)
    with pytest.raises(KeyboardInterrupt):
        tune_config(wanted, tmp_path / "parts", watcher=Look(stop), backbone=t5)
    tune_config(wanted, tmp_path / "parts", backbone=t5)
    assert (tmp_path / "whole/embedding.safetensors").read_bytes() == (
        tmp_path / "parts/embedding.safetensors"
    ).read_bytes()


def test_a_checkpoint_that_lost_it_is_refused(t5: Backbone, toy_csv: Path, tmp_path: Path) -> None:
    wanted = config(toy_csv, embed_at=3)
    with pytest.raises(KeyboardInterrupt):
        tune_config(wanted, tmp_path, watcher=Look(5), backbone=t5)
    tensors, note = read_tensors(tmp_path / "checkpoint.safetensors")
    del tensors["embedding"]
    write_tensors(tmp_path / "checkpoint.safetensors", tensors, note)
    with pytest.raises(UserError, match="parts of it are missing"):
        tune_config(wanted, tmp_path, backbone=t5)


@pytest.mark.parametrize("at", [6, 10_000])
def test_a_run_that_was_ruined_is_embedded_by_its_best(
    t5: Backbone, toy_csv: Path, tmp_path: Path, at: int
) -> None:
    """NaN from step 5 on, noticed at step 8: what was taken at step 6 is ruined too."""
    look = Look(ruin=5)
    tuned = tune_config(
        config(toy_csv, embed_at=at, checkpoint_every=8), tmp_path, watcher=look, backbone=t5
    )
    told, vectors = embedded(tmp_path)
    assert tuned.card.failed
    assert told == {"step": 4}
    assert vectors is not None
    assert torch.equal(vectors, look.seen[4])


def test_a_run_without_a_prompt_has_none(toy_csv: Path, tmp_path: Path) -> None:
    tune_config(
        config(toy_csv, "model-tuning", steps=2, embed_at=1, lr=1e-4),
        tmp_path,
        backbone=random_model("t5"),
    )
    assert embedded(tmp_path) == (None, None)


def test_it_goes_where_the_prompt_goes(t5: Backbone, toy_csv: Path, tmp_path: Path) -> None:
    tune_config(config(toy_csv, embed_at=3), tmp_path / "run", backbone=t5)
    loaded = load(tmp_path / "run", backbone=t5)
    loaded.save(tmp_path / "copy")
    assert (tmp_path / "run/embedding.safetensors").read_bytes() == (
        tmp_path / "copy/embedding.safetensors"
    ).read_bytes()
    loaded.embedding = None
    loaded.save(tmp_path / "copy")
    assert not (tmp_path / "copy/embedding.safetensors").exists(), (
        "another prompt's embedding does not stay"
    )
