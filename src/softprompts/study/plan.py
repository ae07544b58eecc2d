"""The plan of a study (Vu 2022, SPoT): every run that its file asks for.

Source prompts are tuned first, and baselines beside them. Then every target starts from every
source's prompt of the same seed. Retrieval ranks the source prompts of all seeds by similarity to
the baseline's task embedding: the best of the top k is one of the runs above, a weighted average
takes one run more, a mixture of the top k's tasks with the target's two more.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..config import RunConfig, sections, spell
from ..errors import UserError, setting
from ..files import safe_name
from ..transfer.sources import folded_card, start_mismatch
from .claims import Claim
from .config import (
    Grid,
    StudyConfig,
    Subject,
    candidates,
    check_settings,
    role_config,
    study_errors,
    subject_of,
    target_tasks,
)

NAME_LIMIT = 80
"""Characters of one part of a cell's name."""
HELD_OUT = 0.1
"""The share of the training rows that settings are chosen on."""
IDENTITY = ("stage", "backbone", "variant", "source", "target", "seed", "k", "similarity")
"""What tells the runs of a study apart, in their results too."""


@dataclass(frozen=True)
class Cell:
    """One run of a study, in the folder of its name."""

    name: str
    stage: str  # source, baseline, transfer, average, mixture-source, mixture, or a choice
    backbone: str
    variant: str | None
    source: str | None
    target: str | None
    seed: int
    config: RunConfig  # all but where it starts from, which other cells give
    starts: tuple[str, ...] = ()  # the cells it starts from, or chooses among
    like: str | None = None  # the baseline whose task embedding it chooses by
    k: int | None = None
    similarity: str | None = None
    choices: tuple[str, ...] = ()  # the cells that compete for its settings
    choice: tuple[tuple[str, Any], ...] = ()  # the settings that such a cell tries
    from_model: bool = False  # it starts from a model that another cell tuned

    @property
    def needs(self) -> tuple[str, ...]:
        return self.choices + self.starts + ((self.like,) if self.like is not None else ())

    def is_blocked(self, failed: Set[str]) -> bool:
        """Whether it cannot run because cells it needs failed.

        A cell that chooses among prompts can do with the others, if k are left, and one that
        chooses among settings if one is.
        """
        if self.choices and failed >= set(self.choices):
            return True
        if self.like is None:
            return not failed.isdisjoint(self.starts)
        return self.like in failed or len(set(self.starts) - failed) < (self.k or 1)

    @property
    def trains_model(self) -> bool:
        """Whether its model is its own, and not the frozen backbone that others share."""
        return self.config.tuning.trains == "model" or self.from_model

    def identity(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in IDENTITY}

    def plain(self) -> dict[str, Any]:
        """What makes it this cell: neither the machine it runs on nor where its rows and its model
        are."""
        config = {**self.config.plain(), "model": self.backbone}
        del config["device"], config["task"]["data_dir"]
        return {
            **self.identity(),
            "like": self.like,
            "starts": list(self.starts),
            **({"choices": list(self.choices)} if self.choices else {}),
            "config": config,
        }


def plan(
    study: StudyConfig,
    device: str | None = None,
    data_dir: str | None = None,
    models: Mapping[str, str] | None = None,
) -> list[Cell]:
    """All cells of a study, each after those it needs. `models` says where backbones are."""
    machine: dict[str, Any] = {"device": device} if device else {}
    if data_dir or study.data_dir:
        machine["task"] = {"data_dir": data_dir or study.data_dir}
    cells = [
        cell
        for variant, grid in study.grids()
        for backbone in grid.backbones
        for cell in _Planner(grid, variant, backbone, machine, models or {}).cells()
    ]
    if not cells:
        raise UserError(
            "The study has no backbones, no seeds, or neither sources nor targets, "
            "so there is nothing to run."
        )
    names = [cell.name.lower() for cell in cells]
    if len(set(names)) < len(names):
        twice = next(name for index, name in enumerate(names) if name in names[:index])
        raise UserError(
            f"Two cells of the study would both be named {twice}; "
            "name every backbone, source, target and seed once."
        )
    return cells


class _Planner:
    """The cells of one grid on one backbone."""

    def __init__(
        self,
        grid: Grid,
        variant: str | None,
        backbone: str,
        machine: Mapping[str, Any],
        models: Mapping[str, str],
    ) -> None:
        self.grid, self.variant, self.backbone, self.machine = grid, variant, backbone, machine
        self.model = models.get(backbone, backbone)
        self.candidates = candidates(grid.choose)
        self.sources = [subject_of(entry) for entry in grid.sources]
        self.targets = [subject_of(task) for entry in grid.targets for task in target_tasks(entry)]
        if len({source.name for source in self.sources}) < len(self.sources):
            raise UserError("The study names a source twice; name every source once.")
        for part in ("settings", "source", "target"):
            check_settings(part, getattr(grid, part))

    def cells(self) -> Iterator[Cell]:
        seeds, retrieval = self.grid.seeds, self.grid.retrieval
        for source, choice in itertools.product(self.sources if seeds else (), self.candidates):
            yield self._cell("source-choice", seeds[0], source, choice=choice)
        choosing = self.targets if self._target_chooses else ()
        for target, choice in itertools.product(choosing, self.candidates):
            yield self._cell("choice", seeds[0], None, target, choice=choice)
        for source, seed in itertools.product(self.sources, seeds):
            yield self._cell("source", seed, source=source)
        for target, seed in itertools.product(self.targets, seeds):
            yield self._cell("baseline", seed, target=target)
        from_model = bool(self.sources) and self._trains("source") == "model"
        for target, source, seed in itertools.product(self.targets, self.sources, seeds):
            # Training a task's own prompt further is not transfer.
            if source.name != target.name or self.grid.own_task:
                start = self._name("source", seed, source)
                yield self._cell(
                    "transfer", seed, source, target, starts=(start,), from_model=from_model
                )
        if retrieval.largest_k:
            self._check_retrieval()
        for target, seed in itertools.product(self.targets, seeds):
            for k in retrieval.average:
                yield self._choosing_cell("average", seed, target, k)
            for k in retrieval.mixture:
                yield self._choosing_cell("mixture-source", seed, target, k)
                start = self._name("mixture-source", seed, None, target, k)
                yield self._cell("mixture", seed, None, target, k, starts=(start,))

    @cached_property
    def _target_chooses(self) -> bool:
        """Whether runs on targets have settings to choose; those that train nothing have none."""
        return bool(self.candidates and self.grid.seeds) and self._trains("target") != "nothing"

    def _trains(self, role: str) -> str:
        return role_config(self.grid, role).tuning.trains

    def _choosing_cell(self, stage: str, seed: int, target: Subject, k: int) -> Cell:
        """A cell that chooses among the source prompts of all seeds.

        Tasks with settings of their own cannot be mixed in.
        """
        sources = [
            source
            for source in self.sources
            if source.name != target.name and (source.mixable or stage != "mixture-source")
        ]
        starts = tuple(
            self._name("source", source_seed, source)
            for source, source_seed in itertools.product(sources, self.grid.seeds)
        )
        like = self._name("baseline", seed, None, target)
        return self._cell(stage, seed, None, target, k, starts=starts, like=like)

    def _cell(
        self,
        stage: str,
        seed: int,
        source: Subject | None = None,
        target: Subject | None = None,
        k: int | None = None,
        choice: Mapping[str, Any] | None = None,
        **links: Any,
    ) -> Cell:
        subject = target or source
        assert subject is not None
        role = "source" if stage in ("source", "mixture-source", "source-choice") else "target"
        name = self._name(stage, seed, source, target, k, choice)
        planned = {
            "model": self.model,
            "seed": run_seed(subject.name, seed),
            "task": subject.task,
        }
        if choice is not None:
            planned["task"] = {"hold_out": HELD_OUT, **subject.task}
        elif stage != "mixture-source" and (
            self._target_chooses if target is not None else self.candidates
        ):
            links["choices"] = self._choices(source if stage == "source" else None, target)
        with study_errors(f"{name} cannot run: "):
            config = role_config(self.grid, role, sections(choice or {}), self.machine, planned)
        return Cell(
            name,
            stage,
            self.backbone,
            self.variant,
            source.name if source else None,
            target.name if target else None,
            seed,
            config,
            k=k,
            similarity=None if k is None else self.grid.retrieval.similarity,
            choice=tuple((choice or {}).items()),
            **links,
        )

    def _choices(self, source: Subject | None, target: Subject | None) -> tuple[str, ...]:
        """The cells that a run on a source or a target takes its settings from."""
        stage = "choice" if target is not None else "source-choice"
        return tuple(
            self._name(stage, self.grid.seeds[0], source, target, choice=choice)
            for choice in self.candidates
        )

    def _name(
        self,
        stage: str,
        seed: int,
        source: Subject | None = None,
        target: Subject | None = None,
        k: int | None = None,
        choice: Mapping[str, Any] | None = None,
    ) -> str:
        subjects = [_short(subject.name) for subject in (source, target) if subject is not None]
        parts = [self.variant, self.backbone, stage, "--".join(subjects)]
        parts += [f"k{k}" if k is not None else None, f"seed{seed}"]
        if choice is not None:
            parts.insert(-1, "_".join(f"{name}={spell(value)}" for name, value in choice.items()))
        return "/".join(_short(part) for part in parts if part is not None)

    # -- what retrieval needs ----------------------------------------------------------------------

    def _check_retrieval(self) -> None:
        retrieval = self.grid.retrieval
        for part in ("targets", "sources", "seeds"):
            if not getattr(self.grid, part):
                raise UserError(
                    f"The study names no {setting(part)}, which {setting('retrieval')} needs; "
                    f"add some, or leave {setting('retrieval')} out."
                )
        fewest = min(self._prompts(target, self.sources) for target in self.targets)
        if fewest < retrieval.largest_k:
            raise UserError(
                f"{setting('retrieval')} asks for the top {retrieval.largest_k}, "
                f"but there are {fewest} source prompts; lower its numbers."
            )
        if retrieval.mixture:
            self._check_mixtures(max(retrieval.mixture))
        target = self._cell("baseline", self.grid.seeds[0], target=self.targets[0]).config
        source = self._cell("source", self.grid.seeds[0], self.sources[0]).config
        if 0 in (target.prompt.length, source.prompt.length):
            raise UserError(
                f"{setting('retrieval')} needs prompts, and model tuning has none; "
                "leave it out of that variant."
            )
        if retrieval.average:
            mismatch = start_mismatch(folded_card(source.prompt), target.prompt, averaged=True)
            if mismatch is not None:
                raise UserError(
                    f"The prompt of {self.sources[0].name} cannot be averaged: {mismatch}; "
                    f"or leave {setting('retrieval.average')} out."
                )

    def _check_mixtures(self, k: int) -> None:
        mixable = [source for source in self.sources if source.mixable]
        fewest = min(self._prompts(target, mixable) for target in self.targets)
        if fewest < k:
            raise UserError(
                f"{setting('retrieval.mixture')} asks for the top {k}, but only {fewest} source "
                "prompts can be mixed in, because data with settings of its own (such as "
                f"{setting('task.train')}) cannot; lower its numbers, add named tasks as sources, "
                f"or leave {setting('retrieval.mixture')} out."
            )
        if unnamed := [target.name for target in self.targets if not target.mixable]:
            raise UserError(
                f"The target {unnamed[0]} has task settings of its own, so it cannot be mixed; "
                f"leave {setting('retrieval.mixture')} out."
            )

    def _prompts(self, target: Subject, sources: Sequence[Subject]) -> int:
        """How many prompts of these sources, of all seeds, a target can choose among."""
        return sum(source.name != target.name for source in sources) * len(self.grid.seeds)


def run_seed(subject: str, seed: int) -> int:
    """The seed of a task's runs.

    Prompts of two tasks that started from the same words would be similar for that reason alone.
    """
    return int.from_bytes(hashlib.sha256(f"{subject} {seed}".encode()).digest()[:4]) >> 1


def _short(part: str) -> str:
    name = safe_name(part)
    digest = hashlib.sha256(part.encode()).hexdigest()[:8]
    return name if len(name) <= NAME_LIMIT else f"{name[: NAME_LIMIT - 9]}-{digest}"


# -- what it amounts to ----------------------------------------------------------------------------


def outline(cells: Sequence[Cell], claims: Sequence[Claim]) -> dict[str, Any]:
    """What a study would run, and the rules of its claims.

    By stage and in all: cells, how many train a whole model, optimiser steps, and rows trained on.
    Steps and rows are None if epochs are given, because they depend on the data.
    """
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
