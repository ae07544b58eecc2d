"""Raw text as a task: continue a prefix (prefix LM). It stands for C4 among SPoT's sources."""

import random
from pathlib import Path

from ..errors import UserError, setting
from .sampling import partition
from .task_definition import Example

PREFIX_LM = "prefix-lm"
# the maximum number of words of a passage (prefix and continuation), and of a target
_PASSAGE_WORDS, _TARGET_WORDS = 160, 24


def prefix_lm(train: str, validation: str | None, seed: int) -> tuple[list[Example], list[Example]]:
    """Training and validation examples: each passage, cut once at a random position.

    Without a validation file, a twentieth of the passages is held out.
    """
    examples = _cut(_documents(train), seed)
    if validation is not None:
        return examples, _cut(_documents(validation), seed)
    held_out = random.Random(seed).sample(range(len(examples)), max(1, len(examples) // 20))
    if len(held_out) == len(examples):
        raise UserError(
            f"{train} has only one passage; use a longer text, "
            f"or give a second file with {setting('task.validation')}."
        )
    return partition(examples, held_out)


def _documents(path: str) -> list[list[str]]:
    """The words of each document; documents are separated by blank lines."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read ({error}); it must be a UTF-8 text file.") from None
    return [document.split() for document in text.split("\n\n") if len(document.split()) > 1]


def _cut(documents: list[list[str]], seed: int) -> list[Example]:
    rng, examples = random.Random(seed), []
    for document in documents:
        for begin in range(0, len(document), _PASSAGE_WORDS):
            words = document[begin : begin + _PASSAGE_WORDS]
            if len(words) > 1:
                cut = rng.randint(1, len(words) - 1)
                target = words[cut : cut + _TARGET_WORDS]
                examples.append(Example(" ".join(words[:cut]), " ".join(target)))
    if not examples:
        raise UserError("The text has no passage of at least two words; use a longer one.")
    return examples
