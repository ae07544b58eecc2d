"""What a prompt is asked: texts, or rows with the columns of its task."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UserError
from .memory import table_rows

Question = str | Mapping[str, Any]
"""A text, or a row with the columns of the prompt's task."""


def question_list(questions: Any) -> list[Question]:
    """One question, several, or those of a DataFrame or a dataset, as a list."""
    table = table_rows(questions)
    if table is not None:
        return list(table)
    if isinstance(questions, str | Mapping) or not isinstance(questions, Iterable):
        return [questions]
    return list(questions)


def check_question(question: Any, number: int) -> None:
    if not isinstance(question, str | Mapping):
        raise UserError(
            f"Question {number} is {question!r}; a question is a text, "
            "or a mapping of columns such as {'text': '...'}."
        )
