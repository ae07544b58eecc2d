"""What to learn, as settings."""

from dataclasses import dataclass
from typing import Literal

from ..errors import UserError


@dataclass(frozen=True)
class TaskConfig:
    """What to learn: a named task, or your own data."""

    task: str | None = None
    """A task by name, such as helpdesk/intent or superglue/rte (softprompts tasks list); several joined with + are a mixture."""

    data_dir: str | None = None
    """A folder with named tasks' rows (DIR/superglue/rte/train.jsonl.gz); none: SOFTPROMPTS_DATA, or the Hugging Face hub."""

    task_word: bool = True
    """The task's name in front of a named task's texts, as in T5 and SPoT; --no-task-word as in Prompt Tuning."""

    splits: Literal["official", "smop"] = "official"
    """A named task's splits: official, or SMoP's: a tenth of train for validation, and the official validation for a test at the end."""

    mixture_limit: int = 2**19
    """The most examples of one task that count in a mixture (SPoT's K)."""

    train: str | None = None
    """Training data: a CSV, TSV, JSONL or Parquet file, or a Hugging Face dataset (folder or hub id)."""

    validation: str | None = None
    """Validation data; none: the dataset's own validation split, or one tenth of the training rows, stratified."""

    text: str | None = None
    """The column that holds the text."""

    template: str | None = None
    """Several columns as one text, such as "premise: {premise} hypothesis: {hypothesis}"."""

    label: str | None = None
    """The column that holds the label."""

    labels: dict[str, str] | None = None
    """Words for label values, such as 0=negative,1=positive; short words the model knows learn fastest."""

    instruction: str | None = None
    """A written prompt before every text, such as "Is the review positive or negative?"."""

    demonstrations: int = 0
    """Solved training examples before every text, the classes in turn (few-shot prompt design)."""

    shots: int | None = None
    """Train on so many examples of each class only."""

    cap: int | None = None
    """Train on so many examples at most, drawn by --split-seed."""

    cap_validation: int | None = None
    """Evaluate on so many held-out examples at most, drawn by --split-seed."""

    sentinel: bool = False
    """T5's <extra_id_0> before every answer, for a model trained by span corruption alone (Lester 2021 §2.2); never judged or shown."""

    shuffle_labels: bool = False
    """Give training rows each other's answers, by --split-seed: a control, in which nothing should be learned."""

    metric: str | None = None
    """The metric that picks the best checkpoint; none: the task's first, or accuracy."""

    split_seed: int = 0
    """Seed of the automatic split, of the shots, of the cap and of shuffled labels."""

    skip_bad_rows: bool = False
    """Leave out rows with an empty text or label instead of stopping."""

    def __post_init__(self) -> None:
        if self.demonstrations < 0:
            raise UserError(f"--demonstrations is {self.demonstrations}; it must not be negative.")
        for name in ("shots", "cap", "cap_validation", "mixture_limit"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise UserError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; it must be at least 1."
                )
