"""Class weights: a rare class counts as much as a common one."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import softprompts
from softprompts.backbone import Backbone
from softprompts.config import run_config
from softprompts.tasks import load_task, register_rows
from softprompts.tuning.microbatch import TokenBudget, backward
from softprompts.tuning.run import Run

COMMON, RARE = {"text": "it works", "label": "good"}, {"text": "it broke", "label": "bad"}


def gradient(t5: Backbone, rows: list[dict[str, str]], balance: bool) -> tuple[Tensor, Tensor]:
    """The loss and the prompt's gradient of one step on all rows."""
    config = run_config(
        {
            "preset": "prompt-tuning",
            "device": "cpu",
            "task": {
                "train": register_rows(rows),
                "validation": register_rows([COMMON, RARE]),
                "text": "text",
                "label": "label",
            },
            "prompt": {"length": 3},
            "tuning": {"steps": 1, "batch_size": len(rows), "balance": balance},
        }
    )
    run = Run(config, load_task(config.task), t5)
    (loss,) = backward(run.micro_batches(), TokenBudget())
    assert run.prompt.table.grad is not None
    return loss, run.prompt.table.grad


def test_a_balanced_step_equals_one_with_as_many_rows_of_each_class(t5: Backbone) -> None:
    unequal = [COMMON, COMMON, COMMON, RARE]
    equal = [COMMON, RARE] * 3
    loss, step = gradient(t5, unequal, balance=True)
    expected_loss, expected_step = gradient(t5, equal, balance=False)
    tokens = {len(ids) for ids in t5.tokenise_targets(["good", "bad"])}
    assert len(tokens) == 1, "the mean is over target tokens"
    torch.testing.assert_close(loss, expected_loss)
    torch.testing.assert_close(step, expected_step)
    assert not torch.allclose(gradient(t5, unequal, balance=False)[1], expected_step)


def test_free_text_has_no_classes_to_balance(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"text": "text", "label": "label", "device": "cpu"}
    with pytest.raises(softprompts.UserError, match="has no classes to balance"):
        softprompts.tune(train=[COMMON, RARE] * 10, free_text=True, balance=True, **settings)
