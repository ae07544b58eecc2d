"""The folder of a run or a prompt: its files, and how they are read, checked and written.

    prompt.json             the card; a folder with a card holds a complete prompt
    prompt.safetensors      the folded prompt
    embedding.safetensors   the task embedding: the folded prompt at an earlier step
    model/                  the tuned model, of a run that tuned the whole model
    config.yaml             the settings, which reproduce the run
    metrics.jsonl           one line per evaluation
    curve.png               the same as a picture
    confusion.png           targets and predictions of the rows that the prompt is judged by
    predictions.json        the prompt's predictions for the validation and test rows
    checkpoint.safetensors  the state of training, which the run resumes from
    trackers/               TensorBoard's files
    tournament.json, .png   how the run's settings were chosen, if by a tournament (tournament.py)
    tournament/             the candidates' checkpoints, until it is decided

A cohort's folder holds one such folder per run, and `cohort.csv`.
"""

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..backbone import Backbone
from ..backbone.load import quiet_transformers
from ..config import RunConfig, read_config, run_config
from ..config.run import CONFIG_HEADER
from ..errors import UserError, setting
from ..files import (
    check_overwrite,
    make_folder,
    read_json,
    remove_stale,
    staged_folder,
    write_atomically,
    write_csv,
    write_json,
    write_text,
)
from ..files.tensors import read_note, read_tensors, write_tensors
from ..prompt import Prompt
from .card import Card, PromptCard
from .file_names import (
    CANDIDATES,
    CARD,
    CHECKPOINT,
    COHORT_TABLE,
    CONFIG,
    CONFUSION,
    CURVE,
    EMBEDDING,
    METRICS,
    MODEL,
    PREDICTIONS,
    PROMPT,
    TOURNAMENT,
    TOURNAMENT_PLOT,
    TRACKERS,
)
from .prompt_file import prompt_of, prompt_tensors, read_vectors

PROMPT_FILES = (CARD, PROMPT, EMBEDDING, CONFIG, METRICS, CURVE)
"""What a copy of a prompt consists of."""
FILES = (*PROMPT_FILES, CONFUSION, PREDICTIONS, CHECKPOINT, TOURNAMENT, TOURNAMENT_PLOT)
FOLDERS = (MODEL, TRACKERS, CANDIDATES)
CHECKPOINT_FORMAT = 1


@dataclass(frozen=True)
class RunFolder:
    """One run's folder, which need not exist yet."""

    path: Path

    # -- the prompt --------------------------------------------------------------------------------

    @property
    def has_prompt(self) -> bool:
        return (self.path / CARD).exists()

    def card(self) -> Card:
        return Card.read(self.path / CARD)

    def load(self, backbone: Backbone | None = None) -> tuple[Prompt, Card]:
        """The prompt and its card. With a `backbone`, the prompt must have been tuned on it."""
        if not self.path.is_dir():
            raise UserError(
                f"There is no prompt at {self.path}: it is not a folder; name one that "
                "`softprompts tune` wrote, or a library's prompt by its folder, "
                f"such as library/{self.path.name}."
            )
        card = Card.of_folder(self.path)
        tensors, _ = read_tensors(self.path / PROMPT)
        prompt = prompt_of(tensors, card, self.path / PROMPT)
        if backbone is not None:
            card.check_backbone(backbone, self.path)
        return prompt, card

    def save(self, prompt: Prompt, card: Card, embedding: Tensor | None = None) -> Card:
        """Fold the prompt and write it; the card comes last. Returns the card as written."""
        folded = prompt.fold()
        if embedding is None:
            (self.path / EMBEDDING).unlink(missing_ok=True)  # another prompt's
        else:
            write_tensors(self.path / EMBEDDING, {"vectors": embedding})
        write_tensors(self.path / PROMPT, prompt_tensors(folded))
        card = dataclasses.replace(card, prompt=PromptCard.describing(folded.config))
        card.write(self.path / CARD)
        return card

    def embedding(self) -> Tensor | None:
        """The task embedding [K, P, H]; None if there is none."""
        path = self.path / EMBEDDING
        return read_vectors(path) if os.path.exists(path) else None

    def task_vectors(self) -> Tensor:
        """What represents the task when tasks are compared [K, P, H].

        The task embedding if there is one, and otherwise the prompt.
        """
        embedding = self.embedding()
        return read_vectors(self.path / PROMPT) if embedding is None else embedding

    def copy_prompt(self, target: Path) -> None:
        """Copy the prompt, without its training state; the card comes last."""
        for name in PROMPT_FILES:
            (target / name).unlink(missing_ok=True)
        for source in (self.path / name for name in reversed(PROMPT_FILES)):
            if source.exists():
                write_atomically(
                    target / source.name,
                    lambda temporary, source=source: shutil.copyfile(source, temporary),  # type: ignore[misc]
                )

    def stamp(self) -> str:
        """A text that changes when the prompt does: time, size and inode of its files."""
        stats, folder = [], os.fspath(self.path)
        for name in (CARD, EMBEDDING, PROMPT):
            try:  # quicker than `suppress` and paths; every request of a server looks here
                file = os.stat(os.path.join(folder, name))
            except OSError:
                continue
            stats.append(f"{name} {file.st_mtime_ns} {file.st_size} {file.st_ino}")
        return ", ".join(stats)

    @property
    def model(self) -> Path:
        return self.path / MODEL

    def save_model(self, backbone: Backbone) -> None:
        """Save the tuned model as a Hugging Face folder, which is complete or absent."""
        with staged_folder(self.model) as staged, quiet_transformers():
            backbone.model.save_pretrained(staged)
            backbone.tokenizer.save_pretrained(staged)

    # -- the run -----------------------------------------------------------------------------------

    @property
    def has_config(self) -> bool:
        return (self.path / CONFIG).exists()

    def config(self, *layers: Mapping[str, Any]) -> RunConfig:
        """The saved settings, with layers of other settings over them."""
        return run_config(read_config(self.path / CONFIG), *layers)

    def write_config(self, config: RunConfig) -> None:
        config.save(self.path / CONFIG)

    def write_metrics(self, history: Sequence[Mapping[str, Any]]) -> None:
        write_text(self.path / METRICS, "".join(json.dumps(entry) + "\n" for entry in history))

    def history(self) -> list[dict[str, Any]]:
        """One entry per evaluation; none if the prompt did not come with them."""
        path = self.path / METRICS
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        try:
            return [json.loads(line) for line in lines]
        except ValueError:
            raise UserError(f"{path} is corrupted; copy it again.") from None

    @property
    def curve(self) -> Path:
        return self.path / CURVE

    @property
    def confusion(self) -> Path:
        return self.path / CONFUSION

    def write_predictions(self, predictions: Mapping[str, Any]) -> None:
        """Predictions and row scores by split; paired tests compare those of several runs."""
        write_json(self.path / PREDICTIONS, predictions)

    def row_scores(self, split: str) -> list[float]:
        """What paired tests compare; empty if they were not saved."""
        with contextlib.suppress(UserError, KeyError, TypeError):
            if (self.path / PREDICTIONS).exists():
                return list(read_json(self.path / PREDICTIONS)[split]["row_scores"])
        return []

    @property
    def trackers(self) -> Path:
        return self.path / TRACKERS

    @property
    def tournament(self) -> Path:
        return self.path / TOURNAMENT

    @property
    def tournament_plot(self) -> Path:
        return self.path / TOURNAMENT_PLOT

    def candidate(self, name: str) -> "RunFolder":
        """The folder of a candidate's state while a tournament lasts."""
        return RunFolder(self.path / CANDIDATES / name)

    def remove_candidates(self, names: Sequence[str]) -> None:
        """Remove the state of candidates, and the folder of all once it is empty."""
        for name in names:
            shutil.rmtree(self.candidate(name).path, ignore_errors=True)
        with contextlib.suppress(OSError):  # others are left, or there is none
            (self.path / CANDIDATES).rmdir()

    # -- checkpoints -------------------------------------------------------------------------------

    @property
    def checkpoint(self) -> Path:
        return self.path / CHECKPOINT

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint.exists()

    def write_checkpoint(self, tensors: Mapping[str, Tensor], note: Mapping[str, Any]) -> None:
        write_tensors(self.checkpoint, tensors, {**note, "format": CHECKPOINT_FORMAT})

    def read_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, note = read_tensors(self.checkpoint)
        return tensors, self._checked_note(note)

    def read_checkpoint_note(self) -> dict[str, Any]:
        return self._checked_note(read_note(self.checkpoint))

    def remove_checkpoint(self) -> None:
        self.checkpoint.unlink(missing_ok=True)

    def _checked_note(self, note: dict[str, Any]) -> dict[str, Any]:
        version = note.get("format", CHECKPOINT_FORMAT)
        if version != CHECKPOINT_FORMAT:
            raise UserError(
                f"{self.checkpoint} was written by another version of softprompts "
                f"(checkpoint format {version}); use that version."
            )
        return note

    # -- opening -----------------------------------------------------------------------------------

    def check_available(self, config: RunConfig, steps: int, overwrite: bool) -> None:
        """Create the folder; raise if it holds other files or another prompt.

        A finished prompt is an error unless its run can resume, or has nothing to train.
        """
        make_folder(self.path)
        if self.has_config and not _is_ours(self.path / CONFIG):
            raise UserError(
                f"{self.path / CONFIG} was not written by softprompts; "
                f"choose another {setting('output')}."
            )
        foreign = [name for name in (*FILES, *FOLDERS) if (self.path / name).exists()]
        if foreign and not self.has_config and not self.has_prompt:
            raise UserError(
                f"{self.path / foreign[0]} was not written by softprompts and would be replaced; "
                f"choose another {setting('output')}."
            )
        if overwrite or not self.has_prompt or self.has_checkpoint:
            return
        if steps > 0 or config.changed(self.card().config) is not None:
            raise UserError(
                f"{self.path} already holds a prompt; choose another {setting('output')}, "
                f"or replace it with {setting('overwrite')}."
            )

    def check_overwrite(self, overwrite: bool) -> None:
        """Raise if the folder holds files of a run or a prompt, unless they may be replaced."""
        check_overwrite(self.path, FILES, overwrite)

    def remove_stale(self) -> None:
        """Remove temporary files that killed processes left."""
        remove_stale(self.path, FILES)

    def clear(self) -> None:
        """Remove all files of the run, the card first: without it there is no prompt."""
        try:
            for name in FILES:
                (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be written ({error.strerror}); "
                f"choose another {setting('output')}."
            ) from None
        for name in FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)


def write_cohort_table(
    folder: Path, rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> None:
    remove_stale(folder, [COHORT_TABLE])
    write_csv(folder / COHORT_TABLE, rows, columns)


def _is_ours(config: Path) -> bool:
    return config.is_file() and config.read_text(encoding="utf-8", errors="replace").startswith(
        CONFIG_HEADER
    )
