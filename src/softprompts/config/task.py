"""What a prompt is trained on, as settings."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from ..files import find_path
from .schema import Settings, option

GENERIC = ("train", "training", "data")
"""Names of files that say nothing about the task, as in `stars/train.csv`."""
DATA_PATHS = ("train", "validation", "data_dir")
"""The settings that may name local files and folders."""


def locate_data(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Task settings from a file in `folder`, with the current paths of the data they name."""
    located = dict(settings)
    for name in DATA_PATHS:
        value = settings.get(name)
        if isinstance(value, str):
            located[name] = find_path(value, folder)
        elif isinstance(value, list):
            located[name] = [find_path(path, folder) for path in value]
    if isinstance(tasks := settings.get("task"), list):
        located["task"] = [
            locate_data(task, folder) if isinstance(task, Mapping) else task for task in tasks
        ]
    return located


def absolute_data(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Task settings with absolute paths, which stay valid in any working directory."""
    names = {name: settings[name] for name in DATA_PATHS if isinstance(settings.get(name), str)}
    local = {name: os.path.abspath(path) for name, path in names.items() if os.path.exists(path)}
    return {**settings, **local}


@dataclass(frozen=True)
class TaskConfig(Settings):
    """A named task, or your own data."""

    section: ClassVar[str] = "task"

    task: str | None = None
    """A task by name, such as helpdesk/intent or superglue/rte (see softprompts tasks list);
    several joined with + are a mixture."""

    data_dir: str | None = None
    """A folder with the rows of named tasks (DIR/superglue/rte/train.jsonl.gz); default:
    SOFTPROMPTS_DATA, or the Hugging Face Hub."""

    task_word: bool = True
    """Put a named task's name in front of its texts, as T5 and SPoT do; Prompt Tuning does not."""

    splits: Literal["official", "smop"] = "official"
    """A named task's splits: official, or SMoP's: a tenth of train for validation, and the official
    validation set as the test set."""

    mixture_limit: int = option(2**19, minimum=1)
    """Maximum number of examples that count per task in a mixture (SPoT's K)."""

    train: str | None = None
    """Training data: a CSV, TSV, JSON, JSONL or Parquet file, or a Hugging Face dataset (folder or
    id). With several files (same columns), each gets its own run."""

    validation: str | None = None
    """Validation data; default: the dataset's own validation split, or a stratified tenth of the
    training rows."""

    name: str | None = None
    """What your own data is called in tables and reports; default FILE:LABEL."""

    encoding: str = "utf-8"
    """Encoding of your text files, such as latin-1 or cp1252."""

    text: str | None = None
    """The column that holds the text; a nested field by its path, such as review.body."""

    template: str | None = None
    """Several columns as one text, such as "premise: {premise} hypothesis: {hypothesis}"."""

    label: str | None = None
    """The column that holds the label."""

    labels: dict[str, str] | None = None
    """Words for label values, such as 0=negative,1=positive; short, common words are learned
    fastest. Words with commas go into quotes ("1=good, really",0=bad) or a JSON object. A named
    task's own label words can be replaced, too."""

    free_text: bool = False
    """The label column holds free text to generate, such as summaries, rather than classes."""

    instruction: str | None = None
    """A hand-written prompt before every text, such as "Is the review positive or negative?"."""

    demonstrations: int = option(0, minimum=0)
    """Number of solved training examples before every text (few-shot prompt design)."""

    shots: int | None = option(None, minimum=1)
    """Train on this many examples of each class."""

    cap: int | None = option(None, minimum=1)
    """Train on at most this many examples, sampled with split_seed."""

    cap_validation: int | None = option(None, minimum=1)
    """Evaluate on at most this many validation examples, sampled with split_seed."""

    hold_out: float | None = option(None, exclusiveMinimum=0, exclusiveMaximum=1)
    """Hold out this share of the training rows and validate on it instead of the validation rows;
    use it to choose settings."""

    sentinel: bool = False
    """Put T5's <extra_id_0> before every answer, for a model pretrained by span corruption alone
    (Lester 2021 §2.2); it is neither scored nor shown."""

    shuffle_labels: bool = False
    """Shuffle the training labels with split_seed: a control run that should learn nothing."""

    metric: str | None = None
    """The metric that selects the best checkpoint; default: the task's first, or accuracy. a+b is
    the mean of two metrics, mean that of all the task's metrics."""

    split_seed: int = 0
    """Seed of the automatic split, the shots, the caps and the shuffled labels."""

    skip_bad_rows: bool = False
    """Skip rows with an empty text or label instead of stopping."""

    @property
    def title(self) -> str:
        """The task's name on cards; of your own data, FILE:LABEL unless it has one."""
        file = (self.train or "").rstrip("/").rpartition("/")[2]
        return self.task or self.name or f"{file}:{self.label}"

    @property
    def generic_folder(self) -> str:
        """The start of a default folder's name: of `stars/train.csv`, `stars-`."""
        path = Path(self.train or "")
        generic = not self.name and path.name.partition(".")[0] in GENERIC
        return f"{path.parent.name}-" if generic and path.parent.name else ""
