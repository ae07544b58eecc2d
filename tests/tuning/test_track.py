"""Trackers: a TensorBoard log read back; clear errors for unknown or missing trackers."""

from pathlib import Path

import pytest

from softprompts.backbone import Backbone
from softprompts.cli import main
from softprompts.config import run_config
from softprompts.config.run import TRACKERS
from softprompts.errors import UserError
from softprompts.tuning import track
from softprompts.tuning.track import check_trackers
from softprompts.tuning.tune import tune_config


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_gets_losses_scores_and_settings(
    t5: Backbone, toy_csv: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    config = run_config(
        {
            "preset": "prompt-tuning",
            "task": task,
            "tuning": {"steps": 20, "batch_size": 4, "evaluate_every": 10},
        }
    )
    tuned = tune_config(config, tmp_path / "run", backbone=t5, trackers=["tensorboard"])
    logs = EventAccumulator(str(tmp_path / "run" / "trackers" / "softprompts")).Reload()
    scores = {event.step: event.value for event in logs.Scalars("validation/accuracy")}
    assert set(scores) == {10, 20}
    assert scores[tuned.card.best_step] == pytest.approx(tuned.metrics["accuracy"], abs=1e-3)
    assert [event.step for event in logs.Scalars("train/loss")] == [10, 20]
    settings = next((tmp_path / "run" / "trackers").rglob("hparams.yml")).read_text()
    assert "tuning.steps: 20" in settings


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_restarted_run_restarts_its_log(t5: Backbone, toy_csv: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    task = {"train": str(toy_csv), "text": "review", "label": "mood"}
    config = run_config(
        {
            "preset": "prompt-tuning",
            "task": task,
            "tuning": {"steps": 20, "batch_size": 4, "evaluate_every": 10},
        }
    )
    for _ in range(2):
        tune_config(config, tmp_path / "run", overwrite=True, backbone=t5, trackers=["tensorboard"])
    logs = EventAccumulator(str(tmp_path / "run" / "trackers" / "softprompts")).Reload()
    assert [event.step for event in logs.Scalars("train/loss")] == [10, 20]


def test_unknown_and_missing_trackers_are_clear_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", "--task", "helpdesk/intent", "--trackers", "abacus"]) == 2
    assert (
        "There is no tracker 'abacus'; choose one of tensorboard, wandb, mlflow, trackio"
        in capsys.readouterr().err
    )
    monkeypatch.setattr(track, "get_available_trackers", list)
    for name in TRACKERS:
        with pytest.raises(UserError, match=f"pip install {name}"):
            check_trackers([name])
    check_trackers([])
