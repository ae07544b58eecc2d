"""Question answering: SQuAD in T5's format, MRQA in and out of domain, and multiple choice."""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import UserError
from .sources import Row
from .task_definition import (
    PREDICT,
    UNLABELLED,
    Definition,
    Example,
    collapse_spaces,
    column_of,
    label_of,
    text_of,
)

_PUNCTUATION = re.compile(f"([{re.escape(string.punctuation)}])")


def pad_punctuation(text: str) -> str:
    """Put spaces around ASCII punctuation, then collapse spaces, as in T5."""
    return collapse_spaces(_PUNCTUATION.sub(r" \1 ", text))


def answers_of(row: Row) -> list[str]:
    """Answers from a list, the Hub's {"text": [...]}, DROP's {"spans": [...]}, or one string."""
    value: Any = row.values.get(
        "answers", row.values.get("answers_spans", row.values.get("answer"))
    )
    if isinstance(value, dict):
        value = value.get("text", value.get("spans", value.get("aliases")))
    answers = [value] if isinstance(value, str) else value
    if (
        not isinstance(answers, list)
        or not answers
        or not all(isinstance(answer, str) for answer in answers)
    ):
        raise UserError(
            f"{row.location}: the column 'answers' holds no answers; it must be a list of strings."
        )
    return answers


def span(row: Row, split: str) -> Iterator[Example]:
    """`question: ... context: ...` in, the first answer out; metrics accept any answer."""
    if split == PREDICT and not {"answers", "answers_spans", "answer"} & row.values.keys():
        answers = [UNLABELLED]
    else:
        answers = [pad_punctuation(answer) for answer in answers_of(row)]
    context = text_of(row, "context" if "context" in row.values else "passage")
    question = pad_punctuation(text_of(row, "question"))
    text = collapse_spaces(f"question: {question} context: {pad_punctuation(context)}")
    yield Example(text, answers[0], {"answers": answers})


def multiple_choice(
    name: str,
    hub: str,
    keys: Sequence[str],
    options: Sequence[str],
    count: int,
    label: Mapping[str, int] = {"label": 0},
    aliases: Mapping[str, str] = {},
    columns: tuple[str, ...] = (),
) -> Definition:
    """`key: value ... choice1: ... choice2: ...` in, `choice1`, `choice2` ... out, as in T5's COPA.

    `label` names the columns that may hold the answer, as a letter or a number, each with the
    number of its first choice.
    """
    words = tuple(f"choice{number + 1}" for number in range(count))
    letters = dict(zip(string.ascii_uppercase, words, strict=False))

    def preprocess(row: Row, split: str) -> Iterator[Example]:
        parts = [f"{key}: {text_of(row, column_of(row, key, aliases))}" for key in keys]
        parts += [
            f"{word}: {option}"
            for word, option in zip(words, _options(row, options, count), strict=True)
        ]
        column = next((name for name in label if name in row.values), "label")
        target = letters.get(str(row.values.get(column)))
        target = target or label_of(row, column, words, first=label.get(column, 0))
        yield Example(collapse_spaces(" ".join(parts)), target)

    columns = columns or (*keys, *options)
    return Definition(name, hub, preprocess, ("accuracy",), words, columns=columns)


def _options(row: Row, names: Sequence[str], count: int) -> list[str]:
    """The choices, from one column that holds a list or from one column each."""
    for name in names:
        value = row.values.get(name)
        if isinstance(value, list):
            if len(value) != count or not all(isinstance(option, str) for option in value):
                raise UserError(f"{row.location}: the column {name!r} must hold {count} strings.")
            return list(value)
    return [text_of(row, name) for name in names if name in row.values][:count] or [
        text_of(row, names[0])
    ]


def _spans(name: str, hub: str, **options: Any) -> Definition:
    return Definition(name, hub, span, ("f1", "em"), columns=("question", "context"), **options)


MRQA = "mrqa-workshop/mrqa"

DEFINITIONS = [
    _spans("spot_sources/squad", "rajpurkar/squad"),
    _spans("spot_sources/drop", "ucinlp/drop"),
    *(
        _spans(f"mrqa_ood/{name}", f"{MRQA}:{name}", word=name, splits={"validation": "test"})
        for name in ("textbookqa", "bioasq")
    ),
    *(
        _spans(f"mrqa_ood/{name}", MRQA, word=name)
        for name in ("race", "relation_extraction", "duorc", "drop")
    ),
    *(
        _spans(f"mrqa/{name}", f"{MRQA}:{name}", word=name)
        for name in ("squad", "news_qa", "trivia_qa", "search_qa", "hotpot_qa", "natural_questions")
    ),
    multiple_choice(
        "spot_sources/cosmosqa",
        "allenai/cosmos_qa",
        ("context", "question"),
        ("answers", "answer0", "answer1", "answer2", "answer3"),
        4,
        columns=("context", "question", "answers"),
    ),
    _spans("spot_sources/cosmosqa_gen", "allenai/cosmos_qa", word="cosmosqa"),
    multiple_choice(
        "spot_sources/hellaswag",
        "Rowan/hellaswag",
        ("context",),
        ("endings",),
        4,
        aliases={"context": "ctx"},
    ),
    multiple_choice(
        "spot_sources/race",
        "ehovy/race:all",
        ("article", "question"),
        ("options",),
        4,
        label={"label": 0, "answer": 0},
    ),
    multiple_choice(
        "spot_sources/winogrande",
        "allenai/winogrande:winogrande_xl",
        ("sentence",),
        ("option1", "option2"),
        2,
        label={"label": 0, "answer": 1},
    ),
    multiple_choice("rainbow/piqa", "ybisk/piqa", ("goal",), ("sol1", "sol2"), 2),
    multiple_choice(
        "rainbow/social_iqa",
        "allenai/social_i_qa",
        ("context", "question"),
        ("answerA", "answerB", "answerC"),
        3,
        label={"label": 1},
    ),
    multiple_choice(
        "rainbow/anli",
        "allenai/art",
        ("obs1", "obs2"),
        ("hyp1", "hyp2"),
        2,
        label={"label": 1},
        aliases={"obs1": "observation_1", "obs2": "observation_2"},
    ),
]
