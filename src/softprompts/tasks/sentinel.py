"""T5's first sentinel before every answer: a model trained by span corruption alone has only ever written what begins with one
(Lester 2021 §2.2, "Span Corruption + Sentinel")."""

from typing import Any

from ..errors import UserError

SENTINEL = "<extra_id_0>"


def opened(answers: list[list[int]], tokenizer: Any, name: str, sentinel: bool) -> list[list[int]]:
    """The ids of answers, behind the sentinel of `name`'s tokenizer where a task asks for it."""
    if not sentinel:
        return answers
    known = tokenizer.get_vocab()
    if SENTINEL not in known:
        raise UserError(
            f"{name} has no {SENTINEL} to begin an answer with; take a T5, or leave --sentinel out."
        )
    return [[known[SENTINEL], *ids] for ids in answers]
