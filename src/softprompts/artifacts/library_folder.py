"""A library's folder: which files it holds, and how they are named, read and written.

NAME/                           a prompt (`run_folder.py`)
.index/FINGERPRINT.safetensors  summaries of the prompts of one backbone, to search them by
.lock                           held by whoever moves folders
.new-NAME, .old-NAME            unfinished folders, and folders being replaced (`files/atomic.py`)
"""

import os
from dataclasses import dataclass
from pathlib import Path

from ..files import safe_name

LOCK, INDEX = ".lock", ".index"
INDEX_FORMAT = 2
"""An index of another format is computed again."""


@dataclass(frozen=True)
class LibraryFolder:
    path: Path

    @property
    def lock(self) -> Path:
        return self.path / LOCK

    def names(self) -> list[str]:
        """Every folder that should be a prompt."""
        with os.scandir(self.path) as items:
            return sorted(
                item.name for item in items if not item.name.startswith(".") and item.is_dir()
            )

    def index(self, fingerprint: str) -> Path:
        return self.path / INDEX / f"{safe_name(fingerprint)}.safetensors"
