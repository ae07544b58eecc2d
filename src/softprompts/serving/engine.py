"""Engine: many tuned prompts on one frozen model. Rows for any of them share batches; each gets the answer its prompt gives alone."""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ..artifacts.prompt_file import check_backbone
from ..backbone import Backbone
from ..errors import UserError
from ..tuning.api import Tuned, check_question
from ..tuning.evaluate import Asked, Bank

Question = str | Mapping[str, Any]
"""A text, or a row with the columns of a prompt's task."""


class Engine:
    """Prompts by name, stacked once and, where the model can, remembered."""

    def __init__(
        self, backbone: Backbone, prompts: Mapping[str, Tuned], batch_size: int = 256
    ) -> None:
        if not prompts:
            raise UserError("There is no prompt to answer with; name at least one.")
        for name, tuned in prompts.items():
            check_backbone(name, tuned.card, backbone)
        self.tuned = {
            name: dataclasses.replace(
                tuned, backbone=backbone, prompt=tuned.prompt.to(backbone.device)
            )
            for name, tuned in prompts.items()
        }
        self.batch_size = batch_size
        self.bank = Bank([tuned.predictor() for tuned in self.tuned.values()])

    def answer(self, questions: Sequence[tuple[str, Question]]) -> list[str]:
        """An answer to each question by the prompt it names, in order."""
        return self.bank.answers(self._asked(questions), batch_size=self.batch_size)

    def probabilities(self, questions: Sequence[tuple[str, Question]]) -> list[dict[str, float]]:
        """The shares of probability of the named prompt's label words, for each question."""
        asked = self._asked(questions)
        wordless = next((name for name, _ in questions if not self._tuned(name).form.labels), None)
        if wordless is not None:
            raise UserError(
                f"The prompt {wordless} writes freely and has no labels to choose among; ask it for an answer."
            )
        return self.bank.probabilities(asked, self.batch_size)

    def every(self, names: Sequence[str], questions: Sequence[Question]) -> list[list[str]]:
        """The answers of each of several prompts to the same questions, as one batch: a list for each prompt."""
        told = iter(self.answer([(name, question) for name in names for question in questions]))
        return [[next(told) for _ in questions] for _ in names]

    def ensemble(
        self,
        names: Sequence[str],
        questions: Sequence[Question],
        by: Literal["vote", "mean"] = "vote",
    ) -> list[str]:
        """One answer of several prompts to each question: what most of them say (Lester 2021 §6), or the label of highest mean
        log-probability. Where it is even, the prompt named first decides."""
        if not names:
            raise UserError("An ensemble needs prompts; name at least one.")
        if by == "vote":
            return [
                Counter(answers).most_common(1)[0][0]
                for answers in zip(*self.every(names, questions), strict=True)
            ]
        labels = self._tuned(names[0]).form.labels
        other = next(
            (name for name in names if set(self._tuned(name).form.labels) != set(labels)), None
        )
        if other is not None:
            raise UserError(
                f"The prompts {names[0]} and {other} choose among other labels; let them vote instead."
            )
        asked = self._asked([(name, question) for question in questions for name in names])
        told = self.bank.log_probabilities(asked, self.batch_size)
        each = [told[begin : begin + len(names)] for begin in range(0, len(told), len(names))]
        return [max(labels, key=lambda label: sum(shares[label] for shares in row)) for row in each]

    def _asked(self, questions: Sequence[tuple[str, Question]]) -> list[Asked]:
        """The questions as ids for the bank."""
        for number, asked in enumerate(questions, 1):
            if not isinstance(asked, (tuple, list)) or len(asked) != 2:
                raise UserError(
                    f"Question {number} is {asked!r}; give pairs of a prompt's name and a question."
                )
            check_question(asked[1], number)
        inputs = [(name, self._input(name, question)) for name, question in questions]
        numbers = {name: number for number, name in enumerate(self.tuned)}
        return self.bank.tokenised([(numbers[name], text) for name, text in inputs])

    def _input(self, name: str, question: Question) -> str:
        inputs = self._tuned(name).inputs([question])
        if len(inputs) != 1:
            raise UserError(
                f"The prompt {name} makes {len(inputs)} questions of one row; give it rows that are one question each."
            )
        return inputs[0]

    def _tuned(self, name: str) -> Tuned:
        if name not in self.tuned:
            raise UserError(
                f"There is no prompt {name!r} here; choose one of {', '.join(self.tuned)}."
            )
        return self.tuned[name]
