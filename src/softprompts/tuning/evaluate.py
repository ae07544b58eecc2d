"""Predictions with a prompt: by greedy generation, or the label of highest log-probability."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial

import torch

from ..backbone import Backbone, Place, with_chat
from ..errors import UserError, setting
from ..prompt import Prompt
from ..tasks import Task, prepend_sentinel
from .advice import MULTILINGUAL
from .bank import OnRows, PromptBank, Query, ignore_rows

FREE_LENGTH = 32
"""The most tokens of an answer if there are no labels that limit it."""
MAX_CALIBRATED = 1000
"""The most rows whose label probabilities are computed at the end of a run."""
PART = 1024
"""Rows whose labels are scored between two reports of progress."""


class Predictor:
    """A prompt in use: texts in, answers out, in their order."""

    def __init__(
        self,
        backbone: Backbone,
        prompt: Prompt,
        labels: Sequence[str],
        scoring: str = "auto",
        max_length: int = 512,
        batch_size: int = 64,
        answer_length: int | None = None,
        sentinel: bool = False,
        chat: bool | None = False,
    ) -> None:
        if scoring not in ("auto", "generate", "labels"):
            raise UserError(f"There is no scoring {scoring!r}; choose generate or labels.")
        backbone = with_chat(backbone, chat).with_head(prompt.head, labels)
        self.backbone, self.prompt, self.labels = backbone, prompt, list(labels)
        self.scoring = backbone.default_scoring if scoring == "auto" else scoring
        self.batch_size = batch_size
        check_answerable(backbone, prompt.config.place, self.labels, self.scoring)
        self.candidates = label_ids(backbone, self.labels, sentinel)
        self.spellings = label_spellings(backbone, self.labels, self.candidates)
        lengths = map(len, backbone.tokenise_targets(labels))
        self.answer_length = (max([*lengths, answer_length or 0]) or FREE_LENGTH) + sentinel
        self.budget = backbone.text_budget(prompt.config.length, max_length, self.answer_length)

    def __call__(self, texts: Sequence[str], on_rows: OnRows = ignore_rows) -> list[str]:
        """Answers; a generated one may match no label."""
        return self.answers(self.backbone.tokenise(texts, self.budget), on_rows) if texts else []

    def answers(self, rows: Iterable[Sequence[int]], on_rows: OnRows = ignore_rows) -> list[str]:
        """The same for texts that are tokenised already."""
        return self._bank.answers([(0, row) for row in rows], on_rows, self.batch_size)

    def truncate(self, row: Sequence[int]) -> list[int]:
        """A row of ids truncated to what the prompt leaves for a text."""
        return self.backbone.truncate(row, self.budget)

    def probabilities(
        self, texts: Sequence[str], on_rows: OnRows = ignore_rows
    ) -> list[dict[str, float]]:
        """The probabilities of the labels, which sum to 1, for each text."""
        if not self.labels:
            raise UserError("This prompt generates its answers and has no labels to choose among.")
        rows = self.backbone.tokenise(texts, self.budget) if texts else []
        score = partial(self._bank.probabilities, batch_size=self.batch_size)
        return in_parts(score, [(0, row) for row in rows], on_rows)

    @cached_property
    def _bank(self) -> PromptBank:
        """The prompt as it is at the first prediction; later training needs a new predictor."""
        return PromptBank([self])


def answer_all(
    jobs: Sequence[tuple[Predictor, Iterable[Sequence[int]]]],
    on_rows: OnRows = ignore_rows,
    batch_size: int = 64,
    probabilities: Mapping[int, list[dict[str, float]]] | None = None,
) -> list[list[str]]:
    """Each predictor's answers to its own rows; predictors on one model share batches.

    `probabilities`: lists to which those of the labels are added, by the number of the job; see
    `PromptBank.answers`.
    """
    answers: list[list[str]] = [[] for _ in jobs]
    for model in dict.fromkeys(id(predictor.backbone.model) for predictor, _ in jobs):
        group = [job for job, (p, _) in enumerate(jobs) if id(p.backbone.model) == model]
        queries = [(number, row) for number, job in enumerate(group) for row in jobs[job][1]]
        bank = PromptBank([jobs[job][0] for job in group])
        wanted = {job: rows for job, rows in (probabilities or {}).items() if job in group}
        scores: dict[int, dict[str, float]] = {
            index: {} for index, (number, _) in enumerate(queries) if group[number] in wanted
        }
        answered = bank.answers(queries, on_rows, batch_size, scores)
        for index, ((number, _), answer) in enumerate(zip(queries, answered, strict=True)):
            answers[group[number]].append(answer)
            if scores.get(index):
                wanted[group[number]].append(scores[index])
    return answers


def can_calibrate(task: Task, rows: int) -> bool:
    """Whether the label probabilities of `rows` rows of a task are worth computing."""
    return bool(task.labels) and task.members[0] is task and rows <= MAX_CALIBRATED


def in_parts(
    score: Callable[[Sequence[Query]], list[dict[str, float]]],
    queries: Sequence[Query],
    on_rows: OnRows = ignore_rows,
) -> list[dict[str, float]]:
    """`score(queries)`, a part at a time, so that its progress can be shown."""
    results: list[dict[str, float]] = []
    for start in range(0, len(queries), PART):
        part = queries[start : start + PART]
        results += score(part)
        on_rows(len(part))
    return results


# -- labels and lengths ----------------------------------------------------------------------------


def check_answerable(backbone: Backbone, place: Place, labels: Sequence[str], scoring: str) -> None:
    """Refuse a place of the prompt, or a scoring, that the backbone does not support."""
    if scoring == "generate" and not backbone.generates:
        raise UserError(
            f"{backbone.name} cannot generate text; use {setting('tuning.scoring', 'labels')}."
        )
    backbone.check_place(place)
    if not labels and scoring == "labels":
        remedy = (
            f"use {setting('tuning.scoring', 'generate')}"
            if backbone.generates
            else f"name them with {setting('task.labels')} when it is imported"
        )
        raise UserError(f"This prompt has no labels to choose among; {remedy}.")


def label_ids(backbone: Backbone, labels: Sequence[str], sentinel: bool) -> list[list[int]]:
    """The token ids of each label as an answer."""
    return prepend_sentinel(
        backbone.tokenise_targets(labels), backbone.tokenizer, backbone.name, sentinel
    )


def label_spellings(
    backbone: Backbone, labels: Sequence[str], candidates: Sequence[Sequence[int]]
) -> dict[str, str]:
    """The label for each text that the backbone generates for it.

    A tokenizer may change case or spaces. A label that it cannot spell is an error.
    """
    spellings: dict[str, str] = {}
    for label, ids in zip(labels, candidates, strict=True):
        text = backbone.decode(torch.tensor([ids]))[0]
        if not text or backbone.unk_id in ids:
            words = ",".join(f"{other}=WORD" for other in labels)
            raise UserError(
                f"{backbone.name} cannot generate the label {label!r}; give every label a word "
                f"that it can, with {setting('task.labels', words)}, or use a multilingual model, "
                f"such as {setting('model', MULTILINGUAL)}."
            )
        if text in spellings:
            raise UserError(
                f"{backbone.name} spells the labels {spellings[text]!r} and {label!r} the same; "
                f"give one of them another word with {setting('task.labels')}."
            )
        spellings[text] = label
    return spellings
