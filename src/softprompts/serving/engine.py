"""Engine: many tuned prompts on one frozen model.

Rows for any of them share batches; each gets the answer its prompt would give alone.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from ..backbone import Backbone
from ..errors import UserError, choices, setting
from ..tasks.questions import Question, question_list
from ..tuning.bank import PromptBank, Query
from ..tuning.evaluate import in_parts
from ..tuning.progress import RowProgress
from ..tuning.tuned import Tuned, load

Combination = Literal["vote", "mean", "probability"]
"""How several prompts answer together."""
Scores = Callable[..., list[dict[str, float]]]


class Engine:
    """Prompts by name, stacked once and, where the model can, cached."""

    def __init__(
        self,
        backbone: Backbone,
        prompts: Mapping[str, Tuned],
        batch_size: int = 256,
        scoring: str | None = None,
        verbose: bool = True,
    ) -> None:
        """`scoring` is that of all prompts; by default, each has its own.

        `verbose`: show progress where answers take more than a few seconds.
        """
        if not prompts:
            raise UserError("An engine needs at least one prompt; name one.")
        for name, tuned in prompts.items():
            tuned.card.check_backbone(backbone, name)
        self.tuned = {
            name: dataclasses.replace(
                tuned, backbone=backbone, prompt=tuned.prompt.to(backbone.device)
            )
            for name, tuned in prompts.items()
        }
        self.batch_size, self.verbose = batch_size, verbose
        self.bank = PromptBank([tuned.predictor(scoring) for tuned in self.tuned.values()])

    def answer(self, questions: Sequence[tuple[str, Question]]) -> list[str]:
        """An answer to each question by the prompt it names, in order."""
        return self._answers(self._queries(questions))

    def probabilities(self, questions: Sequence[tuple[str, Question]]) -> list[dict[str, float]]:
        """The probabilities of the named prompt's labels, for each question."""
        queries = self._queries(questions)
        for name, _ in questions:
            self._labels(name)
        return self._scored(self.bank.probabilities, queries)

    def every(self, names: Sequence[str], rows: Sequence[Question]) -> list[list[str]]:
        """The answers of several prompts to the same rows, in one batch; a list per prompt."""
        rows = question_list(rows)
        asked = [(name, row, number) for name in names for number, row in enumerate(rows, 1)]
        answers = iter(self._answers(self._tokenised(asked)))
        return [[next(answers) for _ in rows] for _ in names]

    def ensemble(
        self,
        names: Sequence[str],
        rows: Sequence[Question],
        by: Combination = "vote",
    ) -> list[str]:
        """One answer of several prompts to each row: the majority vote (Lester 2021, §6), or
        the label with the highest mean log-probability (`mean`) or mean probability
        (`probability`). The first prompt decides ties."""
        if by not in get_args(Combination):
            raise UserError(f"{setting('by')} is {by!r}; {choices(by, get_args(Combination))}")
        _check_members(names)
        if by == "vote":
            return [majority(votes) for votes in zip(*self.every(names, rows), strict=True)]
        means = self.mean_probabilities(names, rows, logs=by == "mean")
        return [max(mean, key=lambda label: mean[label]) for mean in means]

    def mean_probabilities(
        self, names: Sequence[str], rows: Sequence[Question], logs: bool = False
    ) -> list[dict[str, float]]:
        """The probabilities of the labels, or their logs, averaged over several prompts, for each
        row."""
        _check_members(names)
        rows, labels = question_list(rows), self._labels(names[0])
        for name in names:
            if set(self._labels(name)) != set(labels):
                raise UserError(
                    f"The prompts {names[0]} and {name} have different labels; use a vote instead."
                )
        asked = [(name, row, number) for number, row in enumerate(rows, 1) for name in names]
        queries = self._tokenised(asked)
        score = self.bank.log_probabilities if logs else self.bank.probabilities
        scores = iter(self._scored(score, queries))
        by_row = [[next(scores) for _ in names] for _ in rows]
        return [
            {label: sum(member[label] for member in members) / len(names) for label in labels}
            for members in by_row
        ]

    def _answers(self, queries: Sequence[Query]) -> list[str]:
        on_rows = RowProgress(len(queries), self.verbose)
        return self.bank.answers(queries, on_rows, self.batch_size)

    def _scored(self, score: Scores, queries: Sequence[Query]) -> list[dict[str, float]]:
        score = partial(score, batch_size=self.batch_size)
        return in_parts(score, queries, RowProgress(len(queries), self.verbose))

    def _queries(self, questions: Sequence[tuple[str, Question]]) -> list[Query]:
        for number, pair in enumerate(questions, 1):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise UserError(
                    f"Question {number} is {pair!r}; give pairs of a prompt's name and a question."
                )
        return self._tokenised([(*pair, number) for number, pair in enumerate(questions, 1)])

    def _tokenised(self, asked: Sequence[tuple[str, Question, int]]) -> list[Query]:
        """Questions by the prompts they are for, each with the number that errors call it by."""
        inputs = [(name, self._input(name, question, number)) for name, question, number in asked]
        members = {name: member for member, name in enumerate(self.tuned)}
        return self.bank.tokenise([(members[name], text) for name, text in inputs])

    def _input(self, name: str, question: Question, number: int) -> str:
        inputs = self._tuned(name).inputs([question], number)
        if len(inputs) != 1:
            raise UserError(
                f"The prompt {name} turns one row into {len(inputs)} inputs; give it rows with one "
                "question each."
            )
        return inputs[0]

    def _labels(self, name: str) -> list[str]:
        labels = self._tuned(name).form.labels
        if not labels:
            raise UserError(
                f"The prompt {name} generates its answers and has no labels; ask it for an "
                "answer instead."
            )
        return labels

    def _tuned(self, name: str) -> Tuned:
        if name not in self.tuned:
            raise UserError(f"The engine has no prompt {name!r}; {choices(name, self.tuned)}")
        return self.tuned[name]


def _check_members(names: Sequence[object]) -> None:
    if not names:
        raise UserError("An ensemble needs prompts; name at least one.")


def majority(votes: Sequence[str]) -> str:
    """The most frequent answer; of several, the one that came first."""
    return Counter(votes).most_common(1)[0][0]


def ensemble(
    prompts: Sequence[str | Path | Tuned],
    rows: Sequence[Question],
    by: Combination = "vote",
    verbose: bool = True,
) -> list[str]:
    """One answer of several prompts, or their folders, to each text or row.

    By majority vote, or by the mean `probability` or log-probability (`mean`) of the labels. All
    prompts are of one backbone, which is loaded once.
    """
    engine = make_engine(prompts, verbose=verbose)
    return engine.ensemble(list(engine.tuned), rows, by)


def probabilities(
    prompts: str | Path | Tuned | Sequence[str | Path | Tuned],
    rows: Sequence[Question],
    verbose: bool = True,
) -> list[dict[str, float]]:
    """The probabilities of the labels for each text or row: those of one prompt, or the mean of
    several."""
    engine = make_engine(prompts, verbose=verbose)
    return engine.mean_probabilities(list(engine.tuned), rows)


def make_engine(
    prompts: str | Path | Tuned | Sequence[str | Path | Tuned],
    scoring: str | None = None,
    verbose: bool = True,
    **options: Any,
) -> Engine:
    """An engine of prompts, or of their folders, which share the first one's backbone.

    `options` are those of `load`.
    """
    if isinstance(prompts, str | Path | Tuned):
        prompts = [prompts]
    loaded = [prompt for prompt in prompts if isinstance(prompt, Tuned)]
    backbone = loaded[0].backbone if loaded else None
    tuned: dict[str, Tuned] = {}
    for number, prompt in enumerate(prompts, 1):
        if not isinstance(prompt, Tuned):
            member = load(prompt, **({"backbone": backbone} if backbone else options))
            backbone = member.backbone
            name = str(prompt)
        else:
            member, name = prompt, str(prompt.folder or f"prompt {number}")
        if name in tuned:
            raise UserError(f"The prompt {name} is named twice; name each prompt once.")
        tuned[name] = member
    if backbone is None:
        raise UserError("An ensemble needs prompts; name at least one.")
    return Engine(backbone, tuned, scoring=scoring, verbose=verbose)
