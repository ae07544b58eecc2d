"""What a study would run, before anything is run: cells, steps and rows by stage, and the rules of
its claims."""

from collections.abc import Sequence
from typing import Any

from .claims import Claim
from .plan import Cell


def outline(cells: Sequence[Cell], claims: Sequence[Claim]) -> dict[str, Any]:
    """By stage and in all: cells, how many train a whole model, optimiser steps, and rows trained
    on. Steps and rows are None if epochs are given, because they depend on the data."""
    stages = {
        stage: _counts([cell for cell in cells if cell.stage == stage])
        for stage in dict.fromkeys(cell.stage for cell in cells)
    }
    tasks = [str(cell.config.task.task) for cell in cells if cell.config.task.task]
    return {
        "stages": stages,
        **_counts(cells),
        "backbones": list(dict.fromkeys(cell.backbone for cell in cells)),
        "tasks": sorted({task for name in tasks for task in name.split("+")}),
        "claims": [
            {
                "claim": claim.claim,
                "text": claim.text,
                "rules": [part.rule for part in claim.expect],
            }
            for claim in claims
        ],
    }


def _counts(cells: Sequence[Cell]) -> dict[str, int | None]:
    trained = [cell.config.tuning for cell in cells if cell.config.tuning.trains != "nothing"]
    known = all(tuning.epochs is None for tuning in trained)
    rows = [tuning.steps * tuning.batch_size * tuning.accumulate for tuning in trained]
    return {
        "cells": len(cells),
        "whole_models": sum(tuning.trains == "model" for tuning in trained),
        "steps": sum(tuning.steps for tuning in trained) if known else None,
        "rows": sum(rows) if known else None,
    }
