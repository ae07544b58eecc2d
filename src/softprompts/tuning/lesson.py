"""Lessons: what runs learn from next. The rows of many runs go through the frozen model together, each with its own run's prompt.

Rows never see each other, so every run gets the loss and the gradient it would have had alone, up to the order in which numbers are added.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ..backbone import Backbone, Text
from ..backbone.device import sent
from ..backbone.masked import Headed, Heads
from ..errors import UserError
from .batches import FEW

if TYPE_CHECKING:
    from .run import Run

WASTE = 1.25
"""The most that padding may add to a group of rows."""


BRIEF = 8
"""Tokens of a target, such as a label, that may be padded to without much waste."""


class Lesson(NamedTuple):
    """The rows of one forward pass of a run, as ids."""

    run: "Run"
    inputs: list[list[int]]
    targets: list[list[int]]
    tokens: int
    """Target tokens of the whole step, which its loss is a mean over."""


@dataclass
class Room:
    """The most tokens of a forward pass; where memory sets a limit, it is found."""

    tokens: float = math.inf


def learn(lessons: Sequence[Lesson], room: Room) -> list[Tensor]:
    """The loss of each lesson; the gradients are added to what its run learns."""
    losses: dict[int, Tensor] = {}
    order = sorted(range(len(lessons)), key=lambda index: _kind(lessons[index]))
    for _, alike in groupby(order, key=lambda index: _kind(lessons[index])):
        which = list(alike)
        losses |= zip(which, _learn_alike([lessons[index] for index in which], room), strict=True)
    return [losses[index] for index in range(len(lessons))]


def _kind(lesson: Lesson) -> tuple[bool, str, int]:
    """Lessons of one kind go through the model together; those that write much would have the others write as many columns."""
    head, longest = lesson.run.prompt.head, lesson.run.longest_target
    return (
        lesson.run.config.tuning.dropout > 0,
        "" if head is None else head.pool,
        longest.bit_length() if longest > BRIEF else 0,
    )


class _Row(NamedTuple):
    """A row to read: whose it is, where it stands in the batch, its target, what its loss counts, the seed of its dropout."""

    run: "Run"
    place: int
    target: list[int]
    weight: float
    seed: int


def _learn_alike(lessons: Sequence[Lesson], room: Room) -> list[Tensor]:
    team, text = lessons[0].run.team, _embedded(lessons)
    if text is None:
        half = len(lessons) // 2
        return [*_learn_alike(lessons[:half], room), *_learn_alike(lessons[half:], room)]
    vectors, spans, batch = list[Tensor](), list[slice](), list[_Row]()
    for lesson in lessons:
        run, begin = lesson.run, spans[-1].stop if spans else 0
        spans.append(slice(begin, begin + len(lesson.inputs)))
        own = text.rows(spans[-1])
        vectors.append(
            run.prompt(own.embeds, own.mask, run.rng)
        )  # of all rows in every process: the same noise however many there are
        seed = (
            int(torch.randint(2**31, (), generator=run.rng)) if run.config.tuning.dropout > 0 else 0
        )
        mine = team.share(range(len(lesson.inputs)))
        weight = (
            1.0 / lesson.tokens if mine else 0.0
        )  # a process without a row goes through the motions: the others may wait for it
        batch += [
            _Row(run, begin + row, lesson.targets[row], weight, seed + row) for row in mine or [0]
        ]
    text = text._replace(at=_at(lessons), given=_lengths(vectors))
    nll, gradient = _passes(batch, _stacked([part.detach() for part in vectors]), text, room)
    torch.autograd.backward(
        vectors,
        [gradient[span, : part.shape[1]] for span, part in zip(spans, vectors, strict=True)],
    )
    return [nll[span].sum() / lesson.tokens for span, lesson in zip(spans, lessons, strict=True)]


def _embedded(lessons: Sequence[Lesson]) -> Text | None:
    """The rows of all; None where they are too many for the memory. Nothing was drawn from the runs' generators before."""
    first = lessons[0].run
    for last in (False, True):
        try:
            return first.backbone.embed_rows([row for lesson in lessons for row in lesson.inputs])
        except RuntimeError as error:
            if first.team.sharded or not _is_memory(error):
                raise
        if last and len(lessons) == 1:
            raise UserError(
                "The rows of one step do not fit into memory; lower --batch-size or --max-length."
            )
        first.backbone.forget()  # recorded steps hold memory of their own
    return None


def _stacked(vectors: Sequence[Tensor]) -> Tensor:
    """Prompts of several lengths as one tensor: [B, P, H]."""
    most = max(part.shape[1] for part in vectors)
    return torch.cat([_wide(part, most) for part in vectors])


def _wide(vectors: Tensor, most: int) -> Tensor:
    """[B, P, H] with zeros up to `most` vectors."""
    return (
        vectors
        if vectors.shape[1] == most
        else nn.functional.pad(vectors, (0, 0, 0, most - vectors.shape[1]))
    )


def _lengths(vectors: Sequence[Tensor]) -> Tensor | None:
    """How many of the stacked vectors are each row's own; None: all."""
    if len({part.shape[1] for part in vectors}) == 1:
        return None
    return torch.cat([torch.full((len(part),), part.shape[1]) for part in vectors])


def _at(lessons: Sequence[Lesson]) -> Tensor | None:
    """Where each row's prompt goes in; None: before all."""
    if all(lesson.run.config.prompt.place == "prefix" for lesson in lessons):
        return None
    found = []
    for lesson in lessons:
        ids, mask = lesson.run.backbone.collate(lesson.inputs)
        at = lesson.run.speaker.at(ids, mask, lesson.run.config.prompt.place)
        found.append(torch.zeros_like(mask[:, 0]) if at is None else at)
    return torch.cat(found)


def _passes(
    batch: Sequence[_Row], vectors: Tensor, text: Text, room: Room
) -> tuple[Tensor, Tensor]:
    """Each row's loss [B] and the gradient of its vectors [B, P, H], in as many passes as memory asks for."""
    backbone, team = batch[0].run.backbone, batch[0].run.team
    nll, gradient = torch.zeros(len(vectors), device=vectors.device), torch.zeros_like(vectors)
    once = (
        not backbone.frozen or team.sharded
    )  # a pass that cannot be taken back, or that others take in step
    todo = [list(batch)] if once else _groups(batch, vectors, text, room)
    while todo:
        rows = todo.pop()
        kept = _heads(rows)
        try:
            found = _pass(rows, vectors, text)
        except RuntimeError as error:
            if once or not _is_memory(error):
                raise
            found = None
        if found is not None:
            if len(rows) == len(vectors):
                return found
            where = sent(torch.tensor([row.place for row in rows]), vectors.device)
            nll.index_copy_(0, where, found[0])
            gradient.index_copy_(0, where, found[1])
            continue
        if len(rows) == 1:
            raise UserError(
                "One row alone does not fit into memory; lower --max-length, or keep fewer activations with --recompute."
            )
        for head, before in kept.items():
            head.grad = before
        backbone.forget()
        room.tokens = min(room.tokens, sum(_sizes(rows, vectors, text)) / 2)
        todo += [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return nll, gradient


def _heads(rows: Sequence[_Row]) -> dict[nn.Parameter, Tensor | None]:
    """What the heads of these rows' runs have learned in this step so far: a pass adds to it, and may have to be taken back."""
    heads = {id(row.run): row.run.prompt.head for row in rows}.values()
    return {
        own: None if own.grad is None else own.grad.clone()
        for head in heads
        if head is not None
        for own in head.parameters()
    }


def _is_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(
        words in str(error) for words in ("can't allocate memory", "ALLOC_FAILED")
    )


def _sizes(rows: Sequence[_Row], vectors: Tensor, text: Text) -> list[int]:
    """The tokens of each row, prompt included."""
    assert text.sizes is not None
    total = text.sizes + (vectors.shape[1] if text.given is None else text.given)
    sizes: list[int] = total.tolist()
    return [sizes[row.place] for row in rows]


def _groups(batch: Sequence[_Row], vectors: Tensor, text: Text, room: Room) -> list[list[_Row]]:
    """The rows of each pass: all, within `room`; where rows are padded, those of like length together."""
    sizes = _sizes(batch, vectors, text)
    packs = batch[0].run.backbone.packs and batch[0].run.config.tuning.dropout == 0
    order = range(len(batch)) if packs else sorted(range(len(batch)), key=lambda row: -sizes[row])
    groups: list[list[int]] = []
    tokens = 0
    for row in order:
        many = len(groups[-1]) + 1 if groups else 1
        padded = tokens + sizes[row] if packs or not groups else many * sizes[groups[-1][0]]
        wasteful = not packs and tokens >= FEW and padded > WASTE * (tokens + sizes[row])
        if not groups or padded > room.tokens or wasteful:
            groups.append([])
            tokens = 0
        groups[-1].append(row)
        tokens += sizes[row]
    return [sorted((batch[row] for row in group), key=lambda row: row.place) for group in groups]


def _pass(rows: Sequence[_Row], vectors: Tensor, text: Text) -> tuple[Tensor, Tensor]:
    """One forward and backward pass of the frozen model."""
    backbone, tuning, device = (
        rows[0].run.backbone,
        [row.run.config.tuning for row in rows],
        vectors.device,
    )
    if len(rows) < len(vectors):
        where = [row.place for row in rows]
        text, vectors = text.rows(where), vectors[sent(torch.tensor(where), device)]
    assert text.sizes is not None
    width, length = int(text.sizes.max()), vectors.shape[1]
    longest = length if text.given is None else int(text.given.max())
    text = text._replace(
        embeds=text.embeds[:, :width],
        mask=text.mask[:, :width],
        ids=None if text.ids is None else text.ids[:, :width],
    )
    weight = torch.tensor([row.weight for row in rows])
    z = weight * torch.tensor([each.z_loss for each in tuning])
    rates = torch.tensor([each.dropout for each in tuning]) if tuning[0].dropout > 0 else None
    with backbone.learning(
        rates, torch.tensor([row.seed for row in rows]), any(each.recompute for each in tuning)
    ):
        targets = [row.target for row in rows]
        nll, gradient = _speaker(rows).gradients(
            vectors[:, :longest], text, targets, sent(weight, device), sent(z, device)
        )
    nll = torch.where(sent(weight > 0, device), nll, 0)
    return nll, _wide(gradient, length)


def _speaker(rows: Sequence[_Row]) -> Backbone:
    """The model that answers all rows: where runs have heads, each row by its own run's."""
    first = rows[0].run.speaker
    if not isinstance(first, Headed) or all(row.run is rows[0].run for row in rows):
        return first
    owners = [list(own) for _, own in groupby(rows, key=lambda row: id(row.run))]
    heads = [own[0].run.prompt.head for own in owners]
    return Headed(
        first.base,
        Heads([head for head in heads if head is not None], [len(own) for own in owners]),
        [],
    )
