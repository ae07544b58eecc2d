"""A prompt of a library, or any other prompt in a folder."""

import os
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..artifacts.card import Card
from ..artifacts.file_names import CARD
from ..artifacts.run_folder import RunFolder
from ..errors import UserError
from ..files import NoPermissionError


class NoVectorsError(UserError):
    """A run without a prompt: it tuned the whole model, or nothing."""


@dataclass(frozen=True)
class Entry:
    """A prompt in a folder: its name, and its card."""

    name: str
    folder: Path
    card: Card

    @classmethod
    def of(cls, folder: Path, name: str | None = None) -> "Entry":
        run = RunFolder(folder)
        try:
            card = run.card()
        except UserError as error:
            if isinstance(error, NoPermissionError) or os.path.exists(folder / CARD):
                raise
            raise UserError(no_prompt(folder)) from None
        run.check_prompt()
        return cls(name or folder.name, folder, card)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the only backbone that the prompt works with."""
        return self.card.backbone.fingerprint

    def check_vectors(self) -> None:
        if self.card.prompt.length == 0:
            raise NoVectorsError(
                f"{self.folder} has no prompt vectors, because its run tuned the model or nothing; "
                "name a run that tuned a prompt."
            )

    def vectors(self) -> Tensor:
        """The task embedding [K, P, H]; without one, the final prompt."""
        self.check_vectors()
        vectors = RunFolder(self.folder).task_vectors()
        if self.card.backbone.hidden not in (None, vectors.shape[2]):
            raise UserError(
                f"The vectors in {self.folder} do not match its card; copy the folder again."
            )
        return vectors


def no_prompt(folder: Path) -> str:
    return f"{folder} holds no {CARD}: it is not a prompt, or its run has not finished."
