"""Engine: many tuned prompts on one frozen model.

Rows for any of them share batches; each gets the answer its prompt would give alone.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from ..backbone import Backbone
from ..errors import UserError
from ..tuning.bank import PromptBank, Query
from ..tuning.tuned import Question, Tuned, check_question


class Engine:
    """Prompts by name, stacked once and, where the model can, cached."""

    def __init__(
        self, backbone: Backbone, prompts: Mapping[str, Tuned], batch_size: int = 256
    ) -> None:
        if not prompts:
            raise UserError("There is no prompt to answer with; name at least one.")
        for name, tuned in prompts.items():
            tuned.card.check_backbone(backbone, name)
        self.tuned = {
            name: dataclasses.replace(
                tuned, backbone=backbone, prompt=tuned.prompt.to(backbone.device)
            )
            for name, tuned in prompts.items()
        }
        self.batch_size = batch_size
        self.bank = PromptBank([tuned.predictor() for tuned in self.tuned.values()])

    def answer(self, questions: Sequence[tuple[str, Question]]) -> list[str]:
        """An answer to each question by the prompt it names, in order."""
        return self.bank.answers(self._queries(questions), batch_size=self.batch_size)

    def probabilities(self, questions: Sequence[tuple[str, Question]]) -> list[dict[str, float]]:
        """The probabilities of the named prompt's labels, for each question."""
        queries = self._queries(questions)
        for name, _ in questions:
            if not self._tuned(name).form.labels:
                raise UserError(
                    f"The prompt {name} generates its answers and has no labels; ask it for an "
                    "answer instead."
                )
        return self.bank.probabilities(queries, self.batch_size)

    def every(self, names: Sequence[str], questions: Sequence[Question]) -> list[list[str]]:
        """The answers of several prompts to the same questions, in one batch; a list per prompt."""
        answers = iter(self.answer([(name, question) for name in names for question in questions]))
        return [[next(answers) for _ in questions] for _ in names]

    def ensemble(
        self,
        names: Sequence[str],
        questions: Sequence[Question],
        by: Literal["vote", "mean"] = "vote",
    ) -> list[str]:
        """One answer of several prompts to each question: the majority vote (Lester 2021, §6), or
        the label with the highest mean log-probability. The first prompt decides ties."""
        if not names:
            raise UserError("An ensemble needs prompts; name at least one.")
        if by == "vote":
            return [
                Counter(votes).most_common(1)[0][0]
                for votes in zip(*self.every(names, questions), strict=True)
            ]
        labels = self._tuned(names[0]).form.labels
        for name in names:
            if set(self._tuned(name).form.labels) != set(labels):
                raise UserError(
                    f"The prompts {names[0]} and {name} have different labels; use a vote instead."
                )
        queries = self._queries([(name, question) for question in questions for name in names])
        rows = iter(self.bank.log_probabilities(queries, self.batch_size))
        by_question = [[next(rows) for _ in names] for _ in questions]
        return [
            max(labels, key=lambda label: sum(row[label] for row in members))
            for members in by_question
        ]

    def _queries(self, questions: Sequence[tuple[str, Question]]) -> list[Query]:
        """The questions as ids for the bank."""
        for number, pair in enumerate(questions, 1):
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise UserError(
                    f"Question {number} is {pair!r}; give pairs of a prompt's name and a question."
                )
            check_question(pair[1], number)
        inputs = [(name, self._input(name, question)) for name, question in questions]
        numbers = {name: number for number, name in enumerate(self.tuned)}
        return self.bank.tokenise([(numbers[name], text) for name, text in inputs])

    def _input(self, name: str, question: Question) -> str:
        inputs = self._tuned(name).inputs([question])
        if len(inputs) != 1:
            raise UserError(
                f"The prompt {name} makes {len(inputs)} inputs of one row; give it rows that are "
                "one question each."
            )
        return inputs[0]

    def _tuned(self, name: str) -> Tuned:
        if name not in self.tuned:
            raise UserError(
                f"There is no prompt {name!r} here; choose one of {', '.join(self.tuned)}."
            )
        return self.tuned[name]
