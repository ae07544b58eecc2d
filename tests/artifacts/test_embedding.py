"""Task embeddings: the prompt at a fixed step is saved beside the final one, whatever happens to
the run."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from softprompts.artifacts.run_folder import RunFolder
from softprompts.backbone import Backbone
from softprompts.config import RunConfig, run_config
from softprompts.errors import UserError
from softprompts.files.tensors import read_tensors, write_tensors
from softprompts.tuning import Run, Watcher
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


class Recorder(Watcher):
    """Records the folded prompt of every step, and interrupts at one, like Ctrl-C."""

    def __init__(self, stop: int = -1, break_at: int = -1) -> None:
        self.stop, self.break_at, self.seen = stop, break_at, dict[int, Tensor]()

    def on_step(self, run: Run) -> None:
        self.seen[run.step] = run.prompt.fold().table.detach().clone()
        if run.step == self.break_at:
            run.prompt.table.data.fill_(float("nan"))
        if run.step == self.stop:
            raise KeyboardInterrupt

    def on_rows_answered(self, run: Run, rows: int) -> None: ...

    def on_evaluation(self, run: Run) -> None: ...


def embedded(folder: Path) -> tuple[Any, Tensor | None]:
    saved = RunFolder(folder)
    return saved.card().plain()["embedding"], saved.embedding()


@pytest.mark.parametrize("preset", ["prompt-tuning", "residual", "smop"])
def test_the_prompt_at_the_step_is_saved(
    t5: Backbone, toy_csv: Path, tmp_path: Path, preset: str
) -> None:
    recorder = Recorder()
    tune_config(config(toy_csv, preset, embed_at=3), tmp_path, watcher=recorder, backbone=t5)
    described, vectors = embedded(tmp_path)
    assert described == {"step": 3}
    assert vectors is not None
    assert torch.equal(vectors, recorder.seen[3])
    assert not torch.equal(vectors, recorder.seen[8])


def test_a_shorter_run_saves_its_last_step_not_its_best(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    recorder = Recorder()
    tuned = tune_config(
        config(toy_csv, lr=1e-7), tmp_path, watcher=recorder, backbone=t5
    )  # no score changes: the first stays best
    described, vectors = embedded(tmp_path)
    assert (described, tuned.card.best_step) == ({"step": 8}, 4)
    assert vectors is not None
    assert torch.equal(vectors, recorder.seen[8])
    assert torch.equal(tuned.prompt.table, recorder.seen[4])


@pytest.mark.parametrize("stop", [1, 3, 5])
def test_it_survives_an_interruption(
    t5: Backbone, toy_csv: Path, tmp_path: Path, stop: int
) -> None:
    """Before the step, at it, and after it."""
    settings = config(toy_csv, embed_at=3)
    tune_config(settings, tmp_path / "whole", backbone=t5)
    with pytest.raises(KeyboardInterrupt):
        tune_config(settings, tmp_path / "parts", watcher=Recorder(stop), backbone=t5)
    tune_config(settings, tmp_path / "parts", backbone=t5)
    assert (tmp_path / "whole/embedding.safetensors").read_bytes() == (
        tmp_path / "parts/embedding.safetensors"
    ).read_bytes()


def test_a_checkpoint_without_it_is_refused(t5: Backbone, toy_csv: Path, tmp_path: Path) -> None:
    settings = config(toy_csv, embed_at=3)
    with pytest.raises(KeyboardInterrupt):
        tune_config(settings, tmp_path, watcher=Recorder(5), backbone=t5)
    tensors, note = read_tensors(tmp_path / "checkpoint.safetensors")
    del tensors["embedding"]
    write_tensors(tmp_path / "checkpoint.safetensors", tensors, note)
    with pytest.raises(UserError, match="parts are missing"):
        tune_config(settings, tmp_path, backbone=t5)


@pytest.mark.parametrize("at", [6, 10_000])
def test_a_failed_run_is_embedded_by_its_best_prompt(
    t5: Backbone, toy_csv: Path, tmp_path: Path, at: int
) -> None:
    """NaN from step 5 on, noticed at step 8: the embedding of step 6 is not finite, either."""
    recorder = Recorder(break_at=5)
    tuned = tune_config(
        config(toy_csv, embed_at=at, checkpoint_every=8), tmp_path, watcher=recorder, backbone=t5
    )
    described, vectors = embedded(tmp_path)
    assert tuned.card.failed
    assert described == {"step": 4}
    assert vectors is not None
    assert torch.equal(vectors, recorder.seen[4])


def test_a_run_without_a_prompt_has_none(toy_csv: Path, tmp_path: Path) -> None:
    tune_config(
        config(toy_csv, "model-tuning", steps=2, embed_at=1, lr=1e-4),
        tmp_path,
        backbone=random_model("t5"),
    )
    assert embedded(tmp_path) == (None, None)


def test_it_is_copied_with_the_prompt(t5: Backbone, toy_csv: Path, tmp_path: Path) -> None:
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
