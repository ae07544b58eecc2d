"""The papers' methods as settings: our defaults (results/defaults.md) and each paper's own values.

In paper mode the numbers are absolute (`unit: 1`), as the papers' learning rates are. `about` says
what follows the paper and what follows its code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import UserError, choices, setting


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
"""One constant learning rate for everything, as in Prompt Tuning and Residual Prompt Tuning."""

_AS_IN_THE_CODE = {"task_word": False, "metric": "mean"}
"""Texts of Prompt Tuning's and Residual Prompt Tuning's code have no task word, and the mean of a
task's metrics selects the best checkpoint."""

_CLS = {"kind": "linear", "pool": "first"}
_RESIDUAL: dict[str, Any] = {"length": 10, "shape": {"kind": "residual", "bottleneck": 400}}
_RESIDUAL_PAPER: dict[str, Any] = {
    "task": _AS_IN_THE_CODE,
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
        "dropout": 0.1,
    },
}

PRESETS: dict[str, Preset] = {
    "mixture": Preset(
        "Ours, and the default: sixteen prompts, blended for each input by a router (SMoP's, with "
        "all prompts and no noise). It has the best mean of all presets over four backbones and up "
        "to thirteen tasks (results/defaults.md). It is not from a paper, so it has no paper mode.",
        ours={"prompt": {"count": 16, "route": {"kind": "soft"}}},
    ),
    "prompt-tuning": Preset(
        "Prompt Tuning (Lester 2021): vectors in front of the text. Paper mode: class-label start "
        "and 100 tokens as in the paper; Adafactor as in the code (beta2 continues from step "
        "1,100,000, weight decay is not multiplied by the learning rate). Uniform starts are "
        "[-0.5, 0.5] as in the paper; for the code's [0, 0.5) set prompt.start to uniform and "
        "prompt.start.low to 0. Texts have up to 512 tokens beside the prompt, and no task word. "
        "Dropout is drawn per element (T5X drops a feature at all positions of a row).",
        ours={},
        paper={
            "task": _AS_IN_THE_CODE,
            "prompt": {"length": 100, "start": {"kind": "labels"}, "unit": 1.0},
            "tuning": {
                "optimizer": "adafactor",
                **_CONSTANT,
                "start_step": 1_100_000,
                "steps": 30_000,
                "batch_size": 32,
                "dropout": 0.1,
                "z_loss": 1e-4,
                "text_length": 512,
                "evaluate_every": 1000,
                "checkpoint_every": 1000,
            },
        },
    ),
    "residual": Preset(
        "Residual Prompt Tuning (Razdaibiedina 2023): vectors through a shallow network with a "
        "skip connection. Paper mode: a shared MLP with LayerNorm as in the paper and its command "
        "line (the code's class defaults differ); bottleneck 800, 10 tokens from the whole "
        "vocabulary (here without replacement), AdamW with learning rate 0.3, batch 8, 20 epochs "
        "as in the code, with T5's own dropout of 0.1. The folded prompt is saved, as the paper "
        "says (the code saves the raw one). The code evaluates once per epoch; here "
        "evaluate_every says how often.",
        ours={"prompt": _RESIDUAL},
        paper=_RESIDUAL_PAPER,
    ),
    "residual-bert": Preset(
        "Residual Prompt Tuning on encoder-only models (BERT-base in the paper): the residual "
        "preset with a linear head on [CLS], trained along with it. The paper names the model, "
        "but its code has no BERT path, so the head and its learning rate are ours, in paper mode "
        "too.",
        ours={"prompt": {**_RESIDUAL, "head": _CLS}},
        paper={
            "task": _AS_IN_THE_CODE,
            "prompt": {**_RESIDUAL_PAPER["prompt"], "head": _CLS},
            "tuning": {**_RESIDUAL_PAPER["tuning"], "head_lr": 0.001},
        },
    ),
    "smop": Preset(
        "SMoP (Choi 2023): four prompts of five tokens; each input is sent to one. The route is "
        "the paper's (the code's top-1 sums over the batch). Paper mode: N(0, 1) start, learning "
        "rate 0.5 for prompts and router, linear decay after 6 % warm-up, 50 epochs as in the "
        "code. Adafactor is T5X's; the code's is transformers', which factors the second moment "
        "and multiplies weight decay by the learning rate.",
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
        "Model tuning, the papers' upper baseline: no prompt; the whole model is trained and "
        "saved as model/ in the run's folder. On a mixture it is multi-task model tuning, and "
        "another run can use model/ as its model. Paper mode: T5's constant learning rate of "
        "0.001 with Adafactor, batch 128; T5 also scales updates by the parameters' size, which "
        "we do not.",
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
        "Prompt design: nothing is trained. The model answers a hand-written prompt "
        "(task.instruction) zero-shot, or with solved examples before every text "
        "(task.demonstrations). The lower baseline of the papers' figures; it has no paper mode.",
        ours={"prompt": {"length": 0}, "tuning": {"trains": "nothing"}},
    ),
    "p-tuning": Preset(
        "P-tuning (Liu 2021): vectors through an MLP (or an LSTM: prompt.shape.network) without a "
        "skip connection. Paper mode: the baseline in SMoP's code: width 128, N(0, 1) start, "
        "SMoP's schedule.",
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
        raise UserError(f"There is no preset {name!r}; {choices(name, PRESETS)}")
    if paper and not PRESETS[name].paper:
        raise UserError(f"The preset {name} is not from a paper; leave {setting('paper')} out.")
    return {
        "preset": name,
        "paper": paper,
        **(PRESETS[name].paper if paper else PRESETS[name].ours),
    }
