"""SMoP beside prompt tuning with 100 tokens, both in our own system: what four prompts of five tokens save (Choi 2023).

The paper reports, for T5-large, 14.6 % of training time, 22.9 % of training memory and 27.2 % of inference FLOPs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from ..backbone import Backbone
from ..errors import UserError
from .flops import FORMULA, t5_flops
from .learners import Learner, Ours, compile_ours, make_run
from .measure import Common, Say, ratio, surroundings
from .models import load
from .training import Subject, time_all
from .workload import Rows, draw

PAPER = {"time": 0.146, "memory": 0.229, "flops": 0.272}
METHODS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "prompt-tuning": (
        "one prompt of 100 tokens",
        100,
        {"preset": "prompt-tuning", "prompt": {"length": 100}},
    ),
    "smop": ("four prompts of 5 tokens, each text sent to one", 5, {"preset": "smop"}),
}
"""What each is, the prompt tokens of a row, and its settings."""


@dataclass(frozen=True)
class Settings(Common):
    """What to measure."""

    workload: str = "synthetic"
    """synthetic (texts of log-normal length, about 115 tokens, at most 256) or sst2."""

    data_dir: str = ""
    """The folder with SST-2's rows (DIR/glue/sst2); without it SOFTPROMPTS_DATA, or the Hugging Face hub."""

    batch: int = 32
    """Rows of a step."""

    steps: int = 20
    """Steps that are timed."""

    warmup: int = 5
    """Steps before them, which hold the compiling."""

    compile_ours: bool = True
    """Compile, where it can: on a GPU."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.batch, self.steps) < 1:
            raise UserError("Rows and steps must be at least 1.")


def measure(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """The benchmark's result."""
    backbone = load(settings.model, settings.dtype, settings.device, settings.seed)
    if backbone.model.config.model_type not in ("t5", "mt5"):
        raise UserError(
            "This benchmark is for T5, as the paper's; take t5-tiny, t5-base or t5-large, or a folder of one."
        )
    compiles = compile_ours(backbone, settings.compile_ours)
    total = settings.warmup + settings.steps
    (rows,) = draw(
        settings.workload, backbone, 1, total, settings.batch, settings.seed, settings.data_dir
    )
    subjects = [
        Subject(name, about, partial(_learners, backbone, rows, own, settings.seed, compiles))
        for name, (about, _, own) in METHODS.items()
    ]
    *_, (timed, _) = time_all(subjects, backbone, settings.warmup, settings.steps, say)
    records = {
        subject.name: timed[subject.name].record(subject.about, 1)
        | _flops(settings, backbone, rows, METHODS[subject.name][1])
        for subject in subjects
    }
    yield {
        **surroundings(backbone.device, backbone.dtype),
        "settings": asdict(settings),
        "compiled": compiles,
        "subjects": records,
        "ratio": ratio(timed["prompt-tuning"].seconds, timed["smop"].seconds),
        "savings": _savings(*records.values()),
        "paper": PAPER,
        "flops": FORMULA,
    }


def _learners(
    backbone: Backbone, rows: Rows, settings: Mapping[str, Any], seed: int, compiles: bool
) -> list[Learner]:
    return [Ours([make_run(backbone, rows, settings, seed)], compiles)]


def _flops(settings: Settings, backbone: Backbone, rows: Rows, length: int) -> dict[str, float]:
    """Of a step on average; a router's few are left out."""
    texts = [len(text) + length for batch in rows.inputs[settings.warmup :] for text in batch]
    targets = [len(target) for batch in rows.targets[settings.warmup :] for target in batch]
    found = t5_flops(backbone.model.config, texts, targets)
    return {
        "forward_flops": found.forward / settings.steps,
        "step_flops": found.step / settings.steps,
    }


def _savings(long: dict[str, Any], short: dict[str, Any]) -> dict[str, float | None]:
    """As shares of what the long prompt takes."""
    return {
        "time": 1 - short["seconds"]["median"] / long["seconds"]["median"],
        "memory": 1 - short["peak_gib"] / long["peak_gib"] if long["peak_gib"] else None,
        "flops": 1 - short["forward_flops"] / long["forward_flops"],
        "step_flops": 1 - short["step_flops"] / long["step_flops"],
    }
