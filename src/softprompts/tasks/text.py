"""Raw text as a task: read a beginning, write what follows (prefix LM). It has C4's role among SPoT's sources."""

import random
from pathlib import Path

from ..errors import UserError
from .definition import Example

PREFIX_LM = "prefix-lm"
_LONGEST = 160
"""Words of a document that are used at once: beginning and rest."""
_REST = 24
"""The most words to write."""


def prefix_lm(train: str, validation: str | None, seed: int) -> tuple[list[Example], list[Example]]:
    """Every passage of up to 160 words cut once, at a place drawn by seed; a twentieth is held out where there is no other file."""
    examples = _cut(_documents(train), seed)
    if validation is not None:
        return examples, _cut(_documents(validation), seed)
    held = set(random.Random(seed).sample(range(len(examples)), max(1, len(examples) // 20)))
    if len(held) == len(examples):
        raise UserError(
            f"{train} holds a single passage; give a longer text, or a second file with --validation."
        )
    return [e for i, e in enumerate(examples) if i not in held], [
        e for i, e in enumerate(examples) if i in held
    ]


def _documents(path: str) -> list[list[str]]:
    """Documents are separated by blank lines."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"The text {path} cannot be read ({error}); it must be a UTF-8 file."
        ) from None
    return [document.split() for document in text.split("\n\n") if len(document.split()) > 1]


def _cut(documents: list[list[str]], seed: int) -> list[Example]:
    rng = random.Random(seed)
    examples = []
    for document in documents:
        for begin in range(0, len(document), _LONGEST):
            words = document[begin : begin + _LONGEST]
            if len(words) < 2:
                continue
            place = rng.randint(1, len(words) - 1)
            examples.append(
                Example(" ".join(words[:place]), " ".join(words[place : place + _REST]))
            )
    if not examples:
        raise UserError("The text holds no passage of two words; give a longer one.")
    return examples
