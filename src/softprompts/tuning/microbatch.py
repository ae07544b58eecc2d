"""The forward and backward passes of a cohort's step.

The micro-batches of many runs go through the frozen model together, each row with its own run's
prompt. Rows never see each other, so every run gets the same loss and gradient as when run alone,
up to the order in which numbers are added.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ..backbone import Backbone, Text, to_device
from ..errors import UserError, setting
from .batches import MAX_PADDING, by_length

if TYPE_CHECKING:
    from .run import Run

SHORT_TARGET = 8
"""Tokens of a target, such as a label, that may be padded to without much waste."""


class MicroBatch(NamedTuple):
    """The rows of one forward pass of a run, as ids."""

    run: "Run"
    inputs: list[list[int]]
    targets: list[list[int]]
    step_tokens: int
    """Target tokens of all micro-batches of the step, over which its loss is a mean."""
    weights: list[float] | None = None
    """The weight of each row; None: all count the same."""


@dataclass
class TokenBudget:
    """The most tokens of a forward pass; lowered when memory runs out."""

    tokens: float = math.inf


class _Row(NamedTuple):
    """A row of a pass."""

    run: "Run"
    position: int
    """Its index in the batch of all rows."""
    target: list[int]
    weight: float
    """The weight of each of its target tokens in the loss."""
    seed: int
    """The seed of its dropout."""


def backward(batches: Sequence[MicroBatch], budget: TokenBudget) -> list[Tensor]:
    """The loss of each micro-batch; its gradients are added to its run's parameters."""
    losses: dict[int, Tensor] = {}
    order = sorted(range(len(batches)), key=lambda index: _kind(batches[index]))
    for _, group in groupby(order, key=lambda index: _kind(batches[index])):
        indices = list(group)
        of_group = _backward_together([batches[index] for index in indices], budget)
        losses |= zip(indices, of_group, strict=True)
    return [losses[index] for index in range(len(batches))]


def _kind(batch: MicroBatch) -> tuple[bool, str, int, str]:
    """Micro-batches of one kind share passes.

    Targets of very different lengths do not: all would be padded to the longest. Nor do prompts at
    different places, where only those that come first are read once.
    """
    head, longest = batch.run.prompt.head, max(map(len, batch.targets))
    return (
        batch.run.config.tuning.dropout > 0,
        "" if head is None else head.pool,
        longest.bit_length() if longest > SHORT_TARGET else 0,
        batch.run.config.prompt.place if batch.run.backbone.reads_prompts_once else "",
    )


def _backward_together(batches: Sequence[MicroBatch], budget: TokenBudget) -> list[Tensor]:
    text = _embed(batches)
    if text is None:
        half = len(batches) // 2
        return [
            *_backward_together(batches[:half], budget),
            *_backward_together(batches[half:], budget),
        ]
    insert_at, first = _prompt_positions(batches), batches[0].run
    once = insert_at is None and _packs(first) and first.backbone.reads_prompts_once
    once = once and any(batch.run.config.prompt.length for batch in batches)
    prompts, spans, rows = list[Tensor](), list[slice](), list[_Row]()
    for batch in batches:
        start = spans[-1].stop if spans else 0
        spans.append(slice(start, start + len(batch.inputs)))
        shared = once and not batch.run.prompt.varies_by_row
        prompts.append(_prompts(batch, text.rows(slice(start, start + 1) if shared else spans[-1])))
        rows += _rows(batch, start)
    text = text._replace(
        insert_at=insert_at,
        prompt_lengths=_prompt_lengths(prompts, spans),
        prompt_of=_prompt_of(prompts, spans) if once else None,
    )
    nll, gradient = _run_passes(rows, _stack([part.detach() for part in prompts]), text, budget)
    by_batch = torch.split(gradient, [len(part) for part in prompts])
    torch.autograd.backward(
        prompts,
        [part[:, : own.shape[1]] for part, own in zip(by_batch, prompts, strict=True)],
    )
    losses = []
    for span, batch in zip(spans, batches, strict=True):
        weights = 1.0 if batch.weights is None else nll.new_tensor(batch.weights)
        losses.append((nll[span] * weights).sum() / batch.step_tokens)
    return losses


def _packs(run: "Run") -> bool:
    """Whether the run's rows are packed end to end; dropout depends on columns."""
    return run.backbone.packs_rows and run.config.tuning.dropout == 0


def _prompts(batch: MicroBatch, text: Text) -> Tensor:
    """The prompts of all rows, in every process: noise must not depend on how many there are."""
    mask = batch.run.backbone_with_head.content_mask(text)
    prompts: Tensor = batch.run.prompt(text.embeds, mask, batch.run.rng)
    return prompts


def _rows(batch: MicroBatch, start: int) -> list[_Row]:
    """This process's rows; if it has none, one of weight 0, since others may wait for its pass."""
    run, seed = batch.run, 0
    if run.config.tuning.dropout > 0:
        seed = int(torch.randint(2**31, (), generator=run.rng))
    shared = run.team.share(range(len(batch.inputs)))
    share = 1.0 / batch.step_tokens if shared else 0.0
    weights = batch.weights or [1.0] * len(batch.inputs)
    return [
        _Row(run, start + row, batch.targets[row], share * weights[row], seed + row)
        for row in shared or [0]
    ]


def _embed(batches: Sequence[MicroBatch]) -> Text | None:
    """The rows of all micro-batches; None if they do not fit into memory.

    Nothing has been drawn from the runs' generators before.
    """
    first = batches[0].run
    inputs = [row for batch in batches for row in batch.inputs]
    for last in (False, True):
        try:
            return first.backbone.embed_rows(inputs)
        except RuntimeError as error:
            if first.team.sharded or not _is_out_of_memory(error):
                raise
        if last and len(batches) == 1:
            raise UserError(
                "The rows of one step do not fit into memory; lower "
                f"{setting('tuning.batch_size')} or {setting('tuning.max_length')}."
            )
        first.backbone.free_memory()  # recorded steps hold memory, too
    return None


# -- prompts of several lengths and places ---------------------------------------------------------


def _stack(prompts: Sequence[Tensor]) -> Tensor:
    """Prompts of several lengths as one tensor [B, P, H]."""
    longest = max(part.shape[1] for part in prompts)
    return torch.cat([_pad(part, longest) for part in prompts])


def _pad(prompts: Tensor, length: int) -> Tensor:
    """[B, P, H] with zeros up to `length` vectors."""
    missing = length - prompts.shape[1]
    return nn.functional.pad(prompts, (0, 0, 0, missing)) if missing else prompts


def _prompt_lengths(prompts: Sequence[Tensor], spans: Sequence[slice]) -> Tensor | None:
    """The length of each row's prompt [B]; None where all are of one length."""
    if len({part.shape[1] for part in prompts}) == 1:
        return None
    return torch.cat(
        [
            torch.full((span.stop - span.start,), part.shape[1])
            for part, span in zip(prompts, spans, strict=True)
        ]
    )


def _prompt_of(prompts: Sequence[Tensor], spans: Sequence[slice]) -> Tensor:
    """Which of all prompts each row uses [B]."""
    indices, first = [], 0
    for part, span in zip(prompts, spans, strict=True):
        rows = span.stop - span.start
        indices.append(first + (torch.arange(rows) if len(part) == rows else torch.zeros(rows)))
        first += len(part)
    return torch.cat(indices).long()


def _prompt_positions(batches: Sequence[MicroBatch]) -> Tensor | None:
    """Before which token each row's prompt goes [B]; None where all come first."""
    if all(batch.run.config.prompt.place == "prefix" for batch in batches):
        return None
    positions = []
    for batch in batches:
        ids, mask = batch.run.backbone.collate(batch.inputs)
        at = batch.run.backbone_with_head.prompt_columns(ids, mask, batch.run.config.prompt.place)
        positions.append(torch.zeros_like(mask[:, 0]) if at is None else at)
    return torch.cat(positions)


# -- passes within the token budget ----------------------------------------------------------------


def _run_passes(
    batch: Sequence[_Row], prompts: Tensor, text: Text, budget: TokenBudget
) -> tuple[Tensor, Tensor]:
    """Each row's loss [B] and the gradient of the prompts, in the shape of these.

    In one pass, or in as many as the memory needs.
    """
    backbone, team = batch[0].run.backbone, batch[0].run.team
    nll = torch.zeros(len(text.mask), device=prompts.device)
    gradient = torch.zeros_like(prompts)
    # gradients of the whole model cannot be undone, and sharded processes pass in step
    single = not backbone.frozen or team.sharded
    passes = [list(batch)] if single else _split(batch, prompts, text, budget)
    while passes:
        rows = passes.pop()
        saved = _head_gradients(rows)
        try:
            losses = _pass(rows, prompts, text)
        except RuntimeError as error:
            if single or not _is_out_of_memory(error):
                raise
            losses = None
        if losses is not None:
            if len(rows) == len(nll):
                return losses
            indices = torch.tensor([row.position for row in rows])
            nll.index_copy_(0, to_device(indices, prompts.device), losses[0])
            if text.prompt_of is not None:
                indices = torch.unique(text.prompt_of[indices])
            gradient.index_add_(0, to_device(indices, prompts.device), losses[1])
            continue
        if len(rows) == 1:
            raise UserError(
                f"A single row does not fit into memory; lower {setting('tuning.max_length')}, "
                f"or store fewer activations with {setting('tuning.recompute')}."
            )
        for parameter, before in saved.items():
            parameter.grad = before
        backbone.free_memory()
        budget.tokens = min(budget.tokens, sum(_row_lengths(rows, prompts, text)) / 2)
        passes += [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return nll, gradient


def _head_gradients(rows: Sequence[_Row]) -> dict[nn.Parameter, Tensor | None]:
    """The gradients of the rows' heads so far; a pass that runs out of memory may add to them."""
    heads = {id(row.run): row.run.prompt.head for row in rows}.values()
    return {
        parameter: None if parameter.grad is None else parameter.grad.clone()
        for head in heads
        if head is not None
        for parameter in head.parameters()
    }


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in str(error) for words in ("can't allocate memory", "ALLOC_FAILED")
    )


def _row_lengths(rows: Sequence[_Row], prompts: Tensor, text: Text) -> list[int]:
    """The tokens of each row, prompt included."""
    assert text.lengths is not None
    prompt_lengths = prompts.shape[1] if text.prompt_lengths is None else text.prompt_lengths
    lengths: list[int] = (text.lengths + prompt_lengths).tolist()
    return [lengths[row.position] for row in rows]


def _split(
    batch: Sequence[_Row], prompts: Tensor, text: Text, budget: TokenBudget
) -> list[list[_Row]]:
    """The rows of each pass: all, within the budget; padded rows by length."""
    lengths = _row_lengths(batch, prompts, text)
    if not _packs(batch[0].run):
        max_padding = MAX_PADDING if prompts.device.type == "cpu" else math.inf
        passes = by_length(lengths, len(batch), max_padding, max_tokens=budget.tokens)
        return [[batch[row] for row in sorted(rows)] for rows in passes]
    packed: list[list[_Row]] = []
    tokens = 0
    for row, length in zip(batch, lengths, strict=True):
        tokens += length
        if tokens > budget.tokens or not packed:
            packed.append([])
            tokens = length
        packed[-1].append(row)
    return packed


def _pass(rows: Sequence[_Row], prompts: Tensor, text: Text) -> tuple[Tensor, Tensor]:
    """One forward and backward pass of the frozen model."""
    backbone, device = rows[0].run.backbone, prompts.device
    tunings = [row.run.config.tuning for row in rows]
    if len(rows) < len(text.mask):
        indices = torch.tensor([row.position for row in rows])
        text = text.rows(indices.tolist())
        if text.prompt_of is not None:
            indices, of_row = torch.unique(text.prompt_of, return_inverse=True)
            text = text._replace(prompt_of=of_row)
        prompts = prompts[to_device(indices, device)]
    assert text.lengths is not None
    width, length = int(text.lengths.max()), prompts.shape[1]
    longest = length if text.prompt_lengths is None else int(text.prompt_lengths.max())
    text = text._replace(
        embeds=text.embeds[:, :width],
        mask=text.mask[:, :width],
        ids=None if text.ids is None else text.ids[:, :width],
    )
    weight = torch.tensor([row.weight for row in rows])
    z_weight = weight * torch.tensor([tuning.z_loss for tuning in tunings])
    rates = None
    if tunings[0].dropout > 0:
        rates = torch.tensor([tuning.dropout for tuning in tunings])
    seeds = torch.tensor([row.seed for row in rows])
    targets = [row.target for row in rows]
    with backbone.training_mode(rates, seeds, any(tuning.recompute for tuning in tunings)):
        nll, gradient = _combined_backbone(rows).gradients(
            prompts[:, :longest],
            text,
            targets,
            to_device(weight, device),
            to_device(z_weight, device),
        )
    nll = torch.where(to_device(weight > 0, device), nll, 0)
    return nll, _pad(gradient, length)


def _combined_backbone(rows: Sequence[_Row]) -> Backbone:
    """The model that answers all rows; where runs have heads, each row by its own run's."""
    first = rows[0].run.backbone_with_head
    if all(row.run is rows[0].run for row in rows):
        return first
    by_run = [list(group) for _, group in groupby(rows, key=lambda row: id(row.run))]
    heads = [group[0].run.prompt.head for group in by_run]
    return first.with_heads(heads, [len(group) for group in by_run])
