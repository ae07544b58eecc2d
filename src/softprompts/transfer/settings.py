"""What to transfer, and how: settings that are checked without torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..config import RunConfig, Settings, expand_lists, option
from ..errors import UserError, setting
from ..library import Similarity

Strategy = Literal["best", "average", "mixture", "named", "all"]


@dataclass(frozen=True)
class Request(Settings):
    target: RunConfig
    """The run on the target task as it would be without a source."""
    library: Path
    strategy: Strategy = "best"
    """Best of top-k, weighted average or mixture (Vu 2022 §3.2); one named source; or all sources,
    the oracle."""
    source: str | None = None  # of the strategy `named`: a name in the library, or a folder
    k: int = option(3, minimum=1)
    similarity: Similarity = "per_token_average_cosine"
    probe_steps: int | None = option(None, minimum=1)
    """None: the step at which most sources were embedded, but no more than the target's steps."""
    mixture_steps: int | None = option(None, minimum=1)  # None: the target's own
    keep_same_task: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target.task.task is None and self.target.task.train is None:
            raise UserError(
                f"No target is given; name a task with {setting('task.task')}, or your own data "
                f"with {setting('task.train')}, {setting('task.text')} and {setting('task.label')}."
            )
        if (self.strategy == "named") != (self.source is not None):
            raise UserError(
                f"{setting('source')} is for {setting('strategy', 'named')}; give both or neither."
            )
        if self.target.tuning.trains != "prompt":
            raise UserError(
                f"Only a prompt can start from another prompt; leave {setting('tuning.trains')} "
                "out, and choose a preset that tunes a prompt."
            )

    @property
    def ranks(self) -> bool:
        return self.strategy in ("best", "average", "mixture")

    def plain(self) -> dict[str, Any]:
        return super().plain() | {"library": str(self.library)}


def single_run(*layers: Mapping[str, Any]) -> RunConfig:
    """The run that layers of settings stand for, none of which may be a list."""
    members = expand_lists(*layers)
    if members[0].varied:
        raise UserError(
            "A transfer takes one value of each setting, "
            f"but {', '.join(members[0].varied)} is a list; use `softprompts study run` for lists."
        )
    return members[0].config


@dataclass(frozen=True)
class Recycling(Settings):
    """How a prompt is mapped to another backbone (`recycle.py`)."""

    method: Literal["least-squares", "words"] = "least-squares"
    """least-squares: a linear map from the source's embeddings of the shared tokens to the
    target's; words: the embeddings of the nearest tokens."""
    words: int = option(0, minimum=0)
    """The number of shared tokens to use, the most frequent first; 0: all."""
    nearest: int = option(1, minimum=1)
    """The number of tokens that replace a prompt vector, weighted by cosine."""
    ridge: float = option(1e-6, exclusiveMinimum=0)
    """Ridge penalty of the linear map, as a fraction of the embeddings' mean square."""
