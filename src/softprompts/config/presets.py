"""The papers' methods as settings: our defaults, found by the sweep in docs/defaults.md, and each paper's own values (`--paper`).

In paper mode the numbers are absolute (`unit: 1`), as the papers' learning rates are. `about` says what follows the paper, what the code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError


@dataclass(frozen=True)
class Preset:
    about: str
    ours: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)


_SMOP_SCHEDULE = {
    "optimizer": "adafactor",
    "lr": 0.5,
    "shape_lr": None,
    "route_lr": None,
    "schedule": "linear",
    "warmup": 0.06,
    "weight_decay": 1e-5,
    "epochs": 50,
    "batch_size": 32,
    "dropout": 0.1,
}

_CONSTANT = {
    "lr": 0.3,
    "shape_lr": None,
    "route_lr": None,
    "schedule": "constant",
    "warmup": 0,
    "weight_decay": 1e-5,
}
"""One rate for all that learns, from the first step to the last: Prompt Tuning's and Residual Prompt Tuning's."""

_CLS = {"kind": "linear", "pool": "first"}
_RESIDUAL: dict[str, Any] = {"length": 10, "shape": {"kind": "residual", "bottleneck": 400}}
_RESIDUAL_PAPER: dict[str, Any] = {
    "prompt": {
        "length": 10,
        "start": {"kind": "vocabulary", "population": 0},
        "shape": {"kind": "residual", "bottleneck": 800},
        "unit": 1.0,
    },
    "tuning": {
        "optimizer": "adamw",
        **_CONSTANT,
        "epochs": 20,
        "batch_size": 8,
    },
}

PRESETS: dict[str, Preset] = {
    "mixture": Preset(
        "Ours, and the default: sixteen short prompts blended for each input by a router (SMoP's, with all prompts and no noise). "
        "It learns several times faster than a single prompt on small backbones. No paper has it, so it has no paper mode.",
        ours={
            "prompt": {"length": 5, "count": 16, "route": {"kind": "soft"}},
            "tuning": {"lr": 0.6},
        },
    ),
    "prompt-tuning": Preset(
        "Prompt Tuning (Lester 2021): vectors in front of the text. Paper mode: class-label start and 100 tokens as the paper; "
        "Adafactor as the code runs it (beta2 counting on from step 1,100,000, weight decay not times the learning rate); "
        "uniform starts are [-0.5, 0.5] as the paper says, the code's [0, 0.5) is --prompt.start uniform --prompt.start.low 0.",
        ours={},
        paper={
            "prompt": {"length": 100, "start": {"kind": "labels"}, "unit": 1.0},
            "tuning": {
                "optimizer": "adafactor",
                **_CONSTANT,
                "start_step": 1_100_000,
                "steps": 30_000,
                "batch_size": 32,
                "dropout": 0.1,
                "z_loss": 1e-4,
                "evaluate_every": 1000,
                "checkpoint_every": 1000,
            },
        },
    ),
    "residual": Preset(
        "Residual Prompt Tuning (Razdaibiedina 2023): vectors through a shallow network with a skip connection. Paper mode: "
        "shared MLP with LayerNorm as paper and command line (the code's class defaults differ); bottleneck 800, 10 tokens, words from "
        "the whole vocabulary (without replacement here), AdamW lr 0.3, batch 8, 20 epochs as the code; what is saved is the folded "
        "prompt, as the paper says (the code saves the raw one).",
        ours={"prompt": _RESIDUAL},
        paper=_RESIDUAL_PAPER,
    ),
    "residual-bert": Preset(
        "Residual Prompt Tuning on encoder-only models (BERT-base in the paper): the residual preset with a linear head on [CLS], trained "
        "along. The paper tells the model; its code has no BERT path, so the head and its learning rate are ours, paper mode included.",
        ours={"prompt": {**_RESIDUAL, "head": _CLS}},
        paper={
            "prompt": {**_RESIDUAL_PAPER["prompt"], "head": _CLS},
            "tuning": {**_RESIDUAL_PAPER["tuning"], "head_lr": 0.001},
        },
    ),
    "smop": Preset(
        "SMoP (Choi 2023): four prompts of five tokens, each input sent to one. The route is the paper's (the code's top-1 sums over "
        "the batch). Paper mode: N(0, 1) start, lr 0.5 for prompts and router, linear decay after 6 % warm-up, 50 epochs as the code; "
        "its Adafactor is T5X's here, transformers' there (which factors the second moment and multiplies weight decay by the rate).",
        ours={"prompt": {"length": 5, "count": 4, "route": {"kind": "top1"}}},
        paper={
            "prompt": {
                "length": 5,
                "count": 4,
                "start": {"kind": "normal"},
                "route": {"kind": "top1"},
                "unit": 1.0,
            },
            "tuning": _SMOP_SCHEDULE,
        },
    ),
    "model-tuning": Preset(
        "The papers' upper line: no prompt, the whole model learns, and is saved as model/ in the run's folder. On a mixture it is "
        "multi-task model tuning; its model/ is then another run's --model. Paper mode: T5's constant rate of 0.001 with Adafactor, "
        "batch 128; T5's also scales updates by the parameters' size, which ours does not.",
        ours={"prompt": {"length": 0}, "tuning": {"trains": "model", "lr": 3e-4, "head_lr": None}},
        paper={
            "prompt": {"length": 0, "unit": 1.0},
            "tuning": {
                "trains": "model",
                "optimizer": "adafactor",
                "lr": 0.001,
                "head_lr": None,
                "schedule": "constant",
                "warmup": 0,
                "weight_decay": 0.0,
                "steps": 30_000,
                "batch_size": 128,
                "dropout": 0.1,
                "evaluate_every": 1000,
                "checkpoint_every": 1000,
            },
        },
    ),
    "prompt-design": Preset(
        "Nothing learns: the model answers a prompt that a person wrote (--instruction), zero-shot, or with solved examples before every "
        "text (--demonstrations 4). The lower line of the papers' figures; it has no paper mode.",
        ours={"prompt": {"length": 0}, "tuning": {"trains": "nothing"}},
    ),
    "p-tuning": Preset(
        "P-tuning (Liu 2021): vectors through an MLP (or --prompt.shape.network lstm) without a skip connection. Paper mode: the "
        "baseline of SMoP's code: width 128, N(0, 1) start, SMoP's schedule.",
        ours={"prompt": {"length": 20, "shape": {"kind": "encoder"}}},
        paper={
            "prompt": {
                "length": 20,
                "start": {"kind": "normal"},
                "shape": {"kind": "encoder", "width": 128},
                "unit": 1.0,
            },
            "tuning": _SMOP_SCHEDULE,
        },
    ),
}


def preset_settings(name: str, paper: bool = False) -> dict[str, Any]:
    """The settings a preset stands for, as a layer for `run_config`."""
    if name not in PRESETS:
        raise UserError(f"There is no preset {name!r}; choose one of {', '.join(PRESETS)}.")
    if paper and not PRESETS[name].paper:
        raise UserError(f"The preset {name} is of no paper; leave --paper out.")
    return {
        "preset": name,
        "paper": paper,
        **(PRESETS[name].paper if paper else PRESETS[name].ours),
    }
