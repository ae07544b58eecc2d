"""A run's folder: which files are in it, whether it is free for the run, and the model that is saved in it."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from ..backbone import Backbone
from ..backbone.load import quiet
from ..config.run import CONFIG_HEAD
from ..errors import UserError
from ..files import make_folder, read_json, share, sweep
from ..tuning import Run
from ..tuning.checkpoint import CHECKPOINT
from ..tuning.track import TRACKS
from .embedding import EMBEDDING
from .prompt_file import CARD, TENSORS

CONFIG, METRICS, CURVE = "config.yaml", "metrics.jsonl", "curve.png"
MODEL = "model"
"""Where a run that tuned the whole model keeps it."""
OURS = (CARD, TENSORS, EMBEDDING, CHECKPOINT, METRICS, CURVE, CONFIG)
"""The files of a run, the card first: without it a folder holds no prompt."""


def open_folders(runs: Sequence[Run], folders: Sequence[Path | None], overwrite: bool) -> None:
    """All are looked at before anything is removed."""
    places = [
        (folder, run) for run, folder in zip(runs, folders, strict=True) if folder is not None
    ]
    for folder, run in places:
        _check_folder(folder, run, overwrite)
    for folder, _ in places:
        sweep(folder, OURS)
        if overwrite:
            try:
                for name in OURS:
                    (folder / name).unlink(missing_ok=True)
            except OSError as error:
                raise UserError(
                    f"{folder} cannot be written ({error.strerror}); name another folder with --output."
                ) from None
            for part in (TRACKS, MODEL):
                shutil.rmtree(folder / part, ignore_errors=True)


def _check_folder(folder: Path, run: Run, overwrite: bool) -> None:
    """The folder is there and free for the run; nobody's finished work is overwritten unasked."""
    make_folder(folder)
    config = folder / CONFIG
    if config.exists() and not (
        config.is_file()
        and config.read_text(encoding="utf-8", errors="replace").startswith(CONFIG_HEAD)
    ):
        raise UserError(f"{config} is not one of ours; name another folder with --output.")
    written = (*OURS, MODEL, TRACKS)
    if (
        not config.exists()
        and not (folder / CARD).exists()
        and (strange := [name for name in written if (folder / name).exists()])
    ):
        raise UserError(
            f"{folder / strange[0]} is not one of ours, and would be replaced; name another folder with --output."
        )
    if (
        not overwrite
        and (folder / CARD).exists()
        and not (folder / CHECKPOINT).exists()
        and not _untrained(folder, run)
    ):
        raise UserError(
            f"{folder} already holds a prompt; choose another --output, or replace it with --overwrite."
        )


def _untrained(folder: Path, run: Run) -> bool:
    """Whether the folder's prompt is the run's own, which nothing was learned for, so that there is no checkpoint."""
    return run.steps == 0 and run.config.changed(read_json(folder / CARD).get("config")) is None


def save_model(backbone: Backbone, folder: Path) -> None:
    """The tuned model as a Hugging Face folder, whole or not at all."""
    beside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)
    with quiet():
        backbone.model.save_pretrained(beside)
        backbone.tokenizer.save_pretrained(beside)
    share(beside)
    shutil.rmtree(folder, ignore_errors=True)
    beside.rename(folder)
