"""T5's first sentinel before each answer.

A model trained only by span corruption has never generated text that does not begin with one
(Lester 2021, §2.2, "Span Corruption + Sentinel").
"""

from typing import Any

from ..errors import UserError, setting

SENTINEL = "<extra_id_0>"


def prepend_sentinel(
    answers: list[list[int]], tokenizer: Any, model: str, sentinel: bool
) -> list[list[int]]:
    """The token ids of answers, after the sentinel of `model`'s tokenizer if `sentinel`."""
    if not sentinel:
        return answers
    vocabulary = tokenizer.get_vocab()
    if SENTINEL not in vocabulary:
        raise UserError(
            f"The tokenizer of {model} has no token {SENTINEL} to begin an answer with; "
            f"use a T5 model, or leave out {setting('task.sentinel')}."
        )
    return [[vocabulary[SENTINEL], *ids] for ids in answers]
