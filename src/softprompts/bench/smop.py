"""What SMoP's four prompts of 5 tokens save against one prompt of 100 (Choi 2023), both ours.

The paper reports savings for T5-large of 14.6 % of training time, 22.9 % of training memory and
27.2 % of inference FLOPs.
"""

from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

from ..errors import UserError
from .flops import FORMULA, step_flops
from .learners import our_run, set_compile
from .measure import Say, environment, ratio
from .models import load_model
from .settings import SmopSettings as Settings
from .training import Subject, measure_all
from .workload import draw_batches

PAPER = {"time": 0.146, "memory": 0.229, "flops": 0.272}
METHODS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "prompt-tuning": (
        "one prompt of 100 tokens",
        100,
        {"preset": "prompt-tuning", "prompt": {"length": 100}},
    ),
    "smop": ("four prompts of 5 tokens, each text routed to one", 5, {"preset": "smop"}),
}
"""A description, the prompt tokens of a row, and the settings."""


def measure(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    backbone = load_model(
        settings.model, settings.dtype, settings.device, settings.seed, settings.threads
    )
    if backbone.model.config.model_type not in ("t5", "mt5"):
        raise UserError(
            "This benchmark is for T5s, as in the paper; choose t5-tiny, t5-base, t5-large, or a "
            "folder of one."
        )
    compiles = set_compile(backbone, settings.compile_ours)
    (batches,) = draw_batches(settings, backbone, 1)
    subjects = [
        Subject(name, about, partial(our_run, backbone, batches, config, settings.seed, compiles))
        for name, (about, _, config) in METHODS.items()
    ]
    *_, (measured, _) = measure_all(subjects, backbone, settings.warmup, settings.steps, say)
    records = {}
    for name, (about, length, _) in METHODS.items():
        forward, step = step_flops(backbone, [batches], length, settings.warmup)
        flops = {"forward_flops": forward, "step_flops": step}
        records[name] = measured[name].record(about, 1) | flops
    yield {
        **environment(backbone.device, backbone.dtype),
        "settings": asdict(settings),
        "compiled": compiles,
        "subjects": records,
        "ratio": ratio(measured["prompt-tuning"].seconds, measured["smop"].seconds),
        "savings": _savings(*records.values()),
        "paper": PAPER,
        "flops": FORMULA,
    }


def _savings(long: dict[str, Any], short: dict[str, Any]) -> dict[str, float | None]:
    """As shares of what the long prompt takes; of memory only on a GPU."""
    return {
        "time": 1 - short["seconds"]["median"] / long["seconds"]["median"],
        "memory": 1 - short["peak_gib"] / long["peak_gib"] if long["peak_gib"] else None,
        "flops": 1 - short["forward_flops"] / long["forward_flops"],
        "step_flops": 1 - short["step_flops"] / long["step_flops"],
    }
